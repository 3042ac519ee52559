"""Write kernels statement by statement: blocks nest by ``with``, and what a tile sketch does reads in program order.

w = Writer()
with w.loop("i", 4) as i:
    x = w.allocate("x", (8,), float32, Scope.REGISTER)
    with w.loop("v", 8, LoopKind.UNROLLED) as v:
        w.store(x, (v,), Load(a, (i, v)))
body = w.finish()
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from ..core.dtypes import DType
from .buffer import Buffer, Layout, Scope
from .expr import Expr, Var
from .gpu import Barrier, Level
from .stmt import Allocate, Bound, For, HardwareAxis, If, Launch, LoopKind, Stmt, Store, seq


class Writer:
    """Statements in the order they are written. Names must be unique within a kernel: the caller sees to it."""

    def __init__(self) -> None:
        self._open: list[list[_Item]] = [[]]

    def emit(self, stmt: Stmt) -> None:
        """Append any statement."""
        self._open[-1].append(stmt)

    def store(self, buffer: Buffer, indices: Sequence[Expr], value: Expr, mask: Expr | None = None) -> None:
        self.emit(Store(buffer, tuple(indices), value, mask))

    def barrier(self, level: Level = Level.BLOCK) -> None:
        self.emit(Barrier(level))

    def allocate(
        self, name: str, shape: Sequence[int], dtype: DType, scope: Scope, layout: Layout | None = None
    ) -> Buffer:
        """A buffer that lives until the end of the block that is open now."""
        buffer = Buffer(name, tuple(shape), dtype, scope, layout)
        self._open[-1].append(buffer)
        return buffer

    @contextmanager
    def loop(self, name: str, extent: int, kind: LoopKind = LoopKind.SERIAL) -> Iterator[Var]:
        with self._block(lambda body: For(name, extent, kind, body)):
            yield Var(name)

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Statements in a row; what is allocated among them lives no longer."""
        with self._block(lambda body: body):
            yield

    @contextmanager
    def when(self, condition: Expr | None) -> Iterator[None]:
        """Statements under a condition; None is no condition."""
        if condition is None:
            yield
            return
        with self._block(lambda body: If(condition, body)):
            yield

    @contextmanager
    def launch(
        self,
        name: str,
        bounds: Sequence[tuple[str, int, HardwareAxis]],
        *,
        min_blocks: int = 0,
        streamed: Sequence[str] = (),
    ) -> Iterator[tuple[Var, ...]]:
        """A device function; gives the variables of ``bounds`` (name, extent, axis), in their order."""
        axes = tuple(Bound(*b) for b in bounds)
        with self._block(lambda body: Launch(name, axes, body, min_blocks, tuple(streamed))):
            yield tuple(Var(b.var) for b in axes)

    def finish(self) -> Stmt:
        """All that was written, once every block is closed."""
        assert len(self._open) == 1, "a block is still open"
        return _closed(self._open[0])

    @contextmanager
    def _block(self, close: Callable[[Stmt], Stmt]) -> Iterator[None]:
        self._open.append([])
        yield
        self.emit(close(_closed(self._open.pop())))


_Item = Stmt | Buffer


def _closed(items: Sequence[_Item]) -> Stmt:
    """The items in order, what follows a buffer standing inside its allocation."""
    body: list[Stmt] = []
    for item in reversed(items):
        if isinstance(item, Buffer):
            body = [Allocate(item, seq(*body))]
        else:
            body.insert(0, item)
    return seq(*body)
