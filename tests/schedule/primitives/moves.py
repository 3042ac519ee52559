"""Random legal sequences of primitives: what the property tests apply to random workloads."""

from collections.abc import Callable, Sequence
from math import prod

import numpy as np

from tilewright.core.errors import IllegalSchedule
from tilewright.ir.buffer import MemoryScope
from tilewright.ir.rewrite import loads_of, loop_names
from tilewright.ir.stmt import For, If, Kernel, Stmt, Store, substatements, walk_statements
from tilewright.schedule.primitives import (
    cache_read,
    cache_write,
    compute_at,
    fuse,
    inline,
    parallelise,
    reorder,
    rfactor,
    split,
    unroll,
    vectorise,
    write_back,
)

MOST_STEPS = 30_000
"""Stores a kernel may run: above, a move that repeats work is not taken."""

Move = Callable[[Kernel, np.random.Generator, str], Kernel]


def _one(draw: np.random.Generator, items: Sequence[str]) -> str:
    return items[int(draw.integers(len(items)))] if items else ""


def _tensors(kernel: Kernel) -> list[str]:
    return list(dict.fromkeys(s.buffer.name for s in walk_statements(kernel.body) if isinstance(s, Store)))


def _readers(kernel: Kernel, tensor: str) -> list[str]:
    """The loops around reads of ``tensor``, among them those of its own nest."""
    return [s.var for s in walk_statements(kernel.body) if isinstance(s, For) and _reads(s, tensor)]


def _reads(stmt: Stmt, tensor: str) -> bool:
    return any(load.buffer.name == tensor for load in loads_of(stmt))


def _writers(kernel: Kernel, tensor: str) -> list[str]:
    return [
        loop.var
        for loop in walk_statements(kernel.body)
        if isinstance(loop, For)
        and any(isinstance(s, Store) and s.buffer.name == tensor for s in walk_statements(loop))
    ]


def _scope(draw: np.random.Generator) -> MemoryScope:
    return MemoryScope.REGISTER if draw.integers(2) else MemoryScope.LOCAL


def _split(kernel: Kernel, draw: np.random.Generator, new: str) -> Kernel:
    loop = _one(draw, loop_names(kernel.body))
    factor = int(draw.choice([1, 2, 3, 4, 5, 8, 16]))
    if draw.integers(4) == 0:
        return split(kernel, loop, factor, outer=f"{new}o", inner=f"{new}i", tail="peel")
    return split(kernel, loop, factor, outer=f"{new}o", inner=f"{new}i")


def _fuse(kernel: Kernel, draw: np.random.Generator, new: str) -> Kernel:
    outer = _one(draw, loop_names(kernel.body))
    below = next(s for s in walk_statements(kernel.body) if isinstance(s, For) and s.var == outer).body
    while isinstance(below, If):
        below = below.then
    return fuse(kernel, outer, below.var if isinstance(below, For) else outer, fused=new)


def _reorder(kernel: Kernel, draw: np.random.Generator, new: str) -> Kernel:
    loop = _one(draw, loop_names(kernel.body))
    below: Stmt = next(s for s in walk_statements(kernel.body) if isinstance(s, For) and s.var == loop)
    chain = []
    while isinstance(below, (For, If)):
        if isinstance(below, For):
            chain.append(below.var)
        below = substatements(below)[0]
    chosen = [name for name in chain if draw.integers(3)]
    return reorder(kernel, [chosen[int(n)] for n in draw.permutation(len(chosen))])


def _inline(kernel: Kernel, draw: np.random.Generator, new: str) -> Kernel:
    return inline(kernel, _one(draw, _tensors(kernel)))


def _compute_at(kernel: Kernel, draw: np.random.Generator, new: str) -> Kernel:
    tensor = _one(draw, _tensors(kernel))
    return compute_at(kernel, tensor, _one(draw, _readers(kernel, tensor)), scope=_scope(draw))


def _cache_read(kernel: Kernel, draw: np.random.Generator, new: str) -> Kernel:
    tensor = _one(draw, sorted({load.buffer.name for load in loads_of(kernel.body)}))
    return cache_read(kernel, tensor, _one(draw, _readers(kernel, tensor)), scope=_scope(draw))


def _cache_write(kernel: Kernel, draw: np.random.Generator, new: str) -> Kernel:
    tensor = _one(draw, _tensors(kernel))
    return cache_write(kernel, tensor, _one(draw, _writers(kernel, tensor)), scope=_scope(draw))


def _rfactor(kernel: Kernel, draw: np.random.Generator, new: str) -> Kernel:
    tensor = _one(draw, _tensors(kernel))
    return rfactor(kernel, tensor, _one(draw, _writers(kernel, tensor)), first=bool(draw.integers(2)))


def _write_back(kernel: Kernel, draw: np.random.Generator, new: str) -> Kernel:
    return write_back(kernel, _one(draw, _tensors(kernel)))


def _vectorise(kernel: Kernel, draw: np.random.Generator, new: str) -> Kernel:
    return vectorise(kernel, _one(draw, loop_names(kernel.body)))


def _unroll(kernel: Kernel, draw: np.random.Generator, new: str) -> Kernel:
    return unroll(kernel, _one(draw, loop_names(kernel.body)))


def _parallelise(kernel: Kernel, draw: np.random.Generator, new: str) -> Kernel:
    return parallelise(kernel, _one(draw, loop_names(kernel.body)))


SHAPING: dict[str, Move] = {
    "split": _split,
    "fuse": _fuse,
    "reorder": _reorder,
    "inline": _inline,
    "compute_at": _compute_at,
    "cache_read": _cache_read,
    "cache_write": _cache_write,
    "rfactor": _rfactor,
    "write_back": _write_back,
}
MARKING: dict[str, Move] = {"vectorise": _vectorise, "unroll": _unroll, "parallelise": _parallelise}


def random_moves(kernel: Kernel, draw: np.random.Generator, shaping: int, marking: int) -> list[tuple[str, Kernel]]:
    """(primitive, kernel after it) for as many of ``shaping`` + ``marking`` attempts as were legal."""
    taken = []
    attempts = [_one(draw, list(SHAPING)) for _ in range(shaping)] + [_one(draw, list(MARKING)) for _ in range(marking)]
    for number, name in enumerate(attempts):
        if not loop_names(kernel.body):
            break
        try:
            changed = {**SHAPING, **MARKING}[name](kernel, draw, f"n{number}")
        except IllegalSchedule as error:
            assert error.message.startswith(f"{name}: ") and error.field
            continue
        if steps(changed.body) <= MOST_STEPS:
            kernel = changed
            taken.append((name, kernel))
    return taken


def steps(stmt: Stmt) -> int:
    """How often stores run, guards not counted."""
    if isinstance(stmt, Store):
        return 1
    repeated = stmt.extent if isinstance(stmt, For) else 1
    return prod((repeated, sum(steps(below) for below in substatements(stmt))))
