"""Write kernels statement by statement. Blocks nest by ``with``, so that what a tile sketch does reads in program
order.

w = Writer()
with w.loop("i", 4) as i:
    x = w.allocate("x", (8,), float32, MemoryScope.REGISTER)
    with w.loop("v", 8, LoopKind.UNROLLED) as v:
        w.store(x, (v,), Load(a, (i, v)))
body = w.finish()
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

from ..core.dtypes import DType
from .buffer import Buffer, Layout, MemoryScope
from .expr import Expr, Var, conjunction
from .gpu.barrier import Barrier, SyncScope
from .stmt import Allocate, AxisBinding, For, HardwareAxis, If, Launch, LoopKind, Stmt, Store, seq


class Writer:
    """The statements of a kernel in the order in which they are written. The caller sees to it that names are unique
    within a kernel."""

    def __init__(self) -> None:
        self._open: list[list[_Item]] = [[]]

    def emit(self, stmt: Stmt) -> None:
        """Append any statement."""
        self._open[-1].append(stmt)

    def store(self, buffer: Buffer, indices: Sequence[Expr], value: Expr, mask: Expr | None = None) -> None:
        self.emit(Store(buffer, tuple(indices), value, mask))

    def barrier(self, scope: SyncScope = SyncScope.BLOCK) -> None:
        self.emit(Barrier(scope))

    def allocate(
        self, name: str, shape: Sequence[int], dtype: DType, scope: MemoryScope, layout: Layout | None = None
    ) -> Buffer:
        """Allocate a buffer that lives until the end of the block that is open now."""
        buffer = Buffer(name, tuple(shape), dtype, scope, layout)
        self._open[-1].append(buffer)
        return buffer

    @contextmanager
    def loop(self, name: str, extent: int, kind: LoopKind = LoopKind.SERIAL) -> Iterator[Var]:
        with self._block(lambda body: For(name, extent, kind, body)):
            yield Var(name)

    def unrolled(self, name: str, extent: int) -> AbstractContextManager[Var]:
        """A loop whose body is written out for each of its iterations."""
        return self.loop(name, extent, LoopKind.UNROLLED)

    def vectorized(self, name: str, lanes: int) -> AbstractContextManager[Var]:
        """A loop over the lanes of vectors."""
        return self.loop(name, lanes, LoopKind.VECTORIZED)

    @contextmanager
    def shared_out(
        self, name: str, items: int, threads: int, thread: Expr, kind: LoopKind = LoopKind.SERIAL
    ) -> Iterator[Expr]:
        """A loop over those of ``items`` items that one of ``threads`` threads has: from number ``thread`` on every
        ``threads``-th. Give the number of each."""
        with self.loop(name, -(-items // threads), kind) as n:
            item = n * threads + thread
            with self.when(item < items if items % threads else None):
                yield item

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Statements in a row. What is allocated among them lives no longer than they do."""
        with self._block(lambda body: body):
            yield

    @contextmanager
    def when(self, *conditions: Expr | None) -> Iterator[None]:
        """Statements that run where all ``conditions`` hold; one that is None always does."""
        condition = conjunction(*conditions)
        if condition is None:
            yield
            return
        with self._block(lambda body: If(condition, body)):
            yield

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
        """A device function; gives the variables of ``axes`` (name, extent, axis), in their order. ``count``: how many
        of the first axis a call has, where the grid is dynamic."""
        bindings = tuple(AxisBinding(*a, count=count if n == 0 else None) for n, a in enumerate(axes))
        hints = tuple(evict_first), tuple(prefetch_lines)
        with self._block(lambda body: Launch(name, bindings, body, min_blocks, *hints)):
            yield tuple(Var(b.var) for b in bindings)

    def finish(self) -> Stmt:
        """Return all that was written. Every block must be closed."""
        assert len(self._open) == 1, "a block is still open"
        return _closed(self._open[0])

    @contextmanager
    def _block(self, close: Callable[[Stmt], Stmt]) -> Iterator[None]:
        self._open.append([])
        yield
        self.emit(close(_closed(self._open.pop())))


_Item = Stmt | Buffer


def _closed(items: Sequence[_Item]) -> Stmt:
    """Return the items in order. What follows a buffer stands inside its allocation."""
    body: list[Stmt] = []
    for item in reversed(items):
        if isinstance(item, Buffer):
            body = [Allocate(item, seq(*body))]
        else:
            body.insert(0, item)
    return seq(*body)
