"""Names for the loops and buffers of a kernel that clash with no other name in it."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager

from ...core.dtypes import DType
from ...ir.buffer import Buffer, Layout, MemoryScope
from ...ir.build import Writer
from ...ir.expr import Expr, Var
from ...ir.rewrite import fresh_name
from ...ir.stmt import HardwareAxis, LoopKind


def free_prefix(base: str, tensors: Collection[str]) -> str:
    """``base`` with as many underlines as it takes until no tensor's name begins with it.

    The prefix itself and every name that begins with it are free.
    """
    while any(name.startswith(base) for name in tensors):
        base += "_"
    return base


class NameSupply:
    """Hands out each name of a kernel once. ``taken``: the names that exist already."""

    def __init__(self, taken: Iterable[str]) -> None:
        self._taken = set(taken)

    def fresh(self, base: str) -> str:
        """``base``, with a number appended where it is taken."""
        name = fresh_name(base, self._taken)
        self._taken.add(name)
        return name


class FreshNameWriter(Writer):
    """A writer that never gives a name twice. Loops, buffers and axes get the names that are asked for, with a number
    appended to those that are ``taken``."""

    def __init__(self, taken: Iterable[str]) -> None:
        super().__init__()
        self._names = NameSupply(taken)

    def fresh(self, name: str) -> str:
        """Return a free name for anything else."""
        return self._names.fresh(name)

    def allocate(
        self, name: str, shape: Sequence[int], dtype: DType, scope: MemoryScope, layout: Layout | None = None
    ) -> Buffer:
        return super().allocate(self._names.fresh(name), shape, dtype, scope, layout)

    @contextmanager
    def loop(self, name: str, extent: int, kind: LoopKind = LoopKind.SERIAL) -> Iterator[Var]:
        with super().loop(self._names.fresh(name), extent, kind) as var:
            yield var

    @contextmanager
    def launch(
        self,
        name: str,
        axes: Sequence[tuple[str, int, HardwareAxis]],
        *,
        count: Expr | None = None,
        min_blocks: int = 0,
        evict_first: Sequence[str] = (),
        prefetch_lines: Sequence[str] = (),
    ) -> Iterator[tuple[Var, ...]]:
        named = [(self._names.fresh(axis), extent, kind) for axis, extent, kind in axes]
        hints = {"evict_first": evict_first, "prefetch_lines": prefetch_lines}
        with super().launch(name, named, count=count, min_blocks=min_blocks, **hints) as variables:
            yield variables
