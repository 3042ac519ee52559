"""Applies loop primitives to a kernel, one after the other, and finds nests by the tensor that they compute."""

from collections.abc import Sequence, Set

from ....ir.buffer import Buffer, MemoryScope
from ....ir.rewrite import fresh_name
from ....ir.stmt import Allocate, For, Kernel, Stmt, Store, substatements, walk_statements
from ...loop_nest.tree import find_loop, names_in
from ...primitives.cache_read import cache_read
from ...primitives.compute_at import compute_at
from ...primitives.fuse import fuse
from ...primitives.parallelise import parallelise
from ...primitives.reorder import reorder
from ...primitives.rfactor import rfactor
from ...primitives.split import split
from ...primitives.unroll import unroll
from ...primitives.vectorise import vectorise


class LoopEditor:
    """Holds the kernel so far; every change goes through a primitive. ``elsewhere``: names that are taken outside of
    this kernel."""

    def __init__(self, kernel: Kernel, elsewhere: Set[str] = frozenset()) -> None:
        self.kernel = kernel
        self._elsewhere = elsewhere

    def nests(self, tensor: str, inside: str | None = None) -> list[list[str]]:
        """Return the loops around each store to ``tensor``, in program order; only those below ``inside`` if given."""
        found: list[list[str]] = []

        def visit(stmt: Stmt, loops: list[str]) -> None:
            if isinstance(stmt, For):
                loops = [*loops, stmt.var]
            elif isinstance(stmt, Store) and stmt.buffer.name == tensor:
                found.append(loops if inside is None else loops[loops.index(inside) + 1 :])
            for below in substatements(stmt):
                visit(below, loops)

        visit(self.kernel.body, [])
        return found

    def extent(self, loop: str) -> int:
        """Return how many iterations a loop has."""
        return find_loop(self.kernel, loop, primitive="cpu_loops").loop.extent

    def fresh(self, base: str) -> str:
        """Return ``base``, or with a number behind it where that is taken."""
        return fresh_name(base, names_in(self.kernel) | self._elsewhere)

    def split(self, loop: str, factor: int, outer: str, inner: str) -> tuple[str, str]:
        """Split a loop. Returns the names of the two loops: those asked for, or the next free ones."""
        taken = (names_in(self.kernel) | self._elsewhere) - {loop}
        outer_name = fresh_name(outer, taken)
        inner_name = fresh_name(inner, taken | {outer_name})
        self.kernel = split(self.kernel, loop, factor, outer=outer_name, inner=inner_name)
        return outer_name, inner_name

    def fuse(self, loops: Sequence[str], fused: str) -> str:
        """Fuse ``loops``, each directly inside the one before it. Returns the name of the fused loop."""
        current = loops[0]
        for position, inner in enumerate(loops[1:], start=2):
            name = self.fresh(fused if position == len(loops) else f"{fused}_part")
            self.kernel = fuse(self.kernel, current, inner, fused=name)
            current = name
        return current

    def reorder(self, loops: Sequence[str]) -> None:
        if len(loops) > 1:
            self.kernel = reorder(self.kernel, list(loops))

    def parallelise(self, loop: str) -> None:
        if self.extent(loop) > 1:
            self.kernel = parallelise(self.kernel, loop)

    def vectorise(self, loop: str) -> None:
        if self.extent(loop) > 1:
            self.kernel = vectorise(self.kernel, loop)

    def unroll(self, loop: str) -> None:
        self.kernel = unroll(self.kernel, loop)

    def compute_at(self, tensor: str, loop: str, scope: MemoryScope) -> None:
        self.kernel = compute_at(self.kernel, tensor, loop, scope=scope)

    def cache_read(self, tensor: str, loop: str) -> str:
        """Copy what ``loop`` reads of ``tensor`` to a local buffer. Returns the buffer's name."""
        before = {b.name for b in _allocated(self.kernel)}
        self.kernel = cache_read(self.kernel, tensor, loop, scope=MemoryScope.LOCAL)
        return next(b.name for b in _allocated(self.kernel) if b.name not in before)

    def rfactor(self, tensor: str, loop: str) -> str:
        """Give each iteration of ``loop`` partial results of its own. Returns the name of their tensor."""
        name = self.fresh(f"{tensor}_part")
        self.kernel = rfactor(self.kernel, tensor, loop, name=name)
        return name


def _allocated(kernel: Kernel) -> list[Buffer]:
    return [s.buffer for s in walk_statements(kernel.body) if isinstance(s, Allocate)]
