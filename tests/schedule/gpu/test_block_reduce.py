"""What the reductions across threads write, and which teams there are."""

from collections.abc import Sequence

import pytest

from tilewright.core.dtypes import float32
from tilewright.ir.buffer import Buffer, MemoryScope
from tilewright.ir.build import Writer
from tilewright.ir.expr import BinaryOp, ClusterLoad, Expr, Load, Shuffle, Var, walk
from tilewright.ir.gpu.barrier import Barrier, SyncScope
from tilewright.ir.stmt import Stmt, expressions, walk_statements
from tilewright.schedule.gpu.block_reduce import ThreadGroup, combine_of, group_reduce, group_scratch


def _written(group: ThreadGroup) -> tuple[Stmt, Sequence[Buffer]]:
    w = Writer()
    value = w.allocate("value", (), float32, MemoryScope.REGISTER)
    scratch = group_scratch(w, "sum", group, [float32])
    group_reduce(w, "sum", group, [value], combine_of(BinaryOp.ADD), scratch)
    return w.finish(), scratch


def _found(body: Stmt, kind: type[Expr]) -> list[Expr]:
    roots = [e for s in walk_statements(body) for e in expressions(s)]
    return [e for root in roots for e in walk(root) if isinstance(e, kind)]


@pytest.mark.parametrize(
    ("threads", "blocks", "shuffles", "level"),
    [
        (1, 1, 0, None),
        (8, 1, 3, None),
        (32, 1, 5, None),
        (64, 1, 6, SyncScope.BLOCK),
        (1024, 1, 10, SyncScope.BLOCK),
        (32, 4, 7, SyncScope.CLUSTER),
        (512, 8, 10, SyncScope.CLUSTER),
    ],
)
def test_lanes_shuffle_then_warps_meet_in_shared_memory(
    threads: int, blocks: int, shuffles: int, level: SyncScope | None
) -> None:
    group = ThreadGroup(Var("t"), threads, blocks=blocks)
    body, scratch = _written(group)
    assert len(_found(body, Shuffle)) == shuffles
    assert [s.scope for s in walk_statements(body) if isinstance(s, Barrier)] == ([] if level is None else [level])
    entries = max(1, threads // 32) * blocks
    reads = _found(body, ClusterLoad) if blocks > 1 else [e for e in _found(body, Load) if e.buffer in scratch]  # type: ignore[attr-defined]
    assert len(reads) == (0 if entries == 1 else -(-entries // 32))
    assert sum(b.bytes for b in scratch) == (4 * max(1, threads // 32) if entries > 1 else 0)


@pytest.mark.parametrize(("threads", "blocks"), [(48, 1), (0, 1), (64, 3), (16, 2)])
def test_other_groups_are_refused(threads: int, blocks: int) -> None:
    with pytest.raises(ValueError, match="allowed"):
        ThreadGroup(Var("t"), threads, blocks=blocks)
