"""A writer that never gives a name twice."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from ...core.dtypes import DType
from ...ir.buffer import Buffer, Layout, MemoryScope
from ...ir.build import Writer
from ...ir.expr import Var
from ...ir.stmt import HardwareAxis, LoopKind
from .register_reads import Names


class NamingWriter(Writer):
    """Gives loops, buffers and axes the names that are asked for, with a number behind those that are ``taken``."""

    def __init__(self, taken: Iterable[str]) -> None:
        super().__init__()
        self._names = Names(taken)

    def fresh(self, name: str) -> str:
        """A name for anything else."""
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
        min_blocks: int = 0,
        evict_first: Sequence[str] = (),
    ) -> Iterator[tuple[Var, ...]]:
        named = [(self._names.fresh(axis), extent, kind) for axis, extent, kind in axes]
        with super().launch(name, named, min_blocks=min_blocks, evict_first=evict_first) as variables:
            yield variables
