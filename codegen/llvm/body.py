"""What is known at a point of a function while it is being written."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from ...core.errors import CompileError
from ...ir.bounds import Interval, interval_of, loop_range
from ...ir.expr import Expr, Shuffle
from .values import Value
from .writer import FunctionWriter

Exchange = Callable[[FunctionWriter, Shuffle, Value, Value], Value]
"""(writer, what is asked for, the value that lanes have, the lane they name) -> the value that they get."""


@dataclass(slots=True)
class Body:
    """The function being written, with its buffers and loop variables.

    ``tiles``: the number of the first tile register of a buffer of tiles; ``tiles_ready``: whether the function has set
    these registers up. ``addresses`` and ``results`` are stacks of what has been computed already: an inner scope (a
    loop body, a branch) sees what dominates it, and its own entries vanish with it. ``results`` holds the expression
    too, so that its identity stays taken. ``exchange``: how lanes of a warp get each other's values, where there are
    any. ``non_temporal``: buffers whose vectors are stored past the caches.
    """

    w: FunctionWriter
    pointers: dict[str, Value] = field(default_factory=dict)
    variables: dict[str, Value] = field(default_factory=dict)
    extents: dict[str, int] = field(default_factory=dict)
    in_parallel: bool = False
    tiles: dict[str, int] = field(default_factory=dict)
    tile_shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    tiles_ready: bool = False
    exchange: Exchange | None = None
    non_temporal: frozenset[str] = frozenset()
    addresses: list[dict[object, Value]] = field(default_factory=lambda: [{}])
    results: list[dict[tuple[int, str], tuple[Expr, Value]]] = field(default_factory=lambda: [{}])

    @contextmanager
    def scope(self) -> Iterator[None]:
        self.addresses.append({})
        self.results.append({})
        yield
        self.addresses.pop()
        self.results.pop()

    @contextmanager
    def statement(self) -> Iterator[None]:
        """A statement of its own: what earlier ones loaded may have changed."""
        kept, self.results = self.results, [{}]
        yield
        self.results = kept

    def interval(self, expr: Expr) -> Interval:
        """The values an index can take here."""
        return interval_of(expr, {name: loop_range(extent) for name, extent in self.extents.items()})

    def known_address(self, key: object) -> Value | None:
        for scope in reversed(self.addresses):
            if key in scope:
                return scope[key]
        return None

    def known_result(self, expr: Expr, mask: Value | None) -> Value | None:
        key = (id(expr), mask.text if mask else "")
        for scope in reversed(self.results):
            if key in scope:
                return scope[key][1]
        return None

    def remember(self, expr: Expr, mask: Value | None, value: Value) -> Value:
        self.results[-1][(id(expr), mask.text if mask else "")] = (expr, value)
        return value

    def pointer(self, name: str) -> Value:
        if name not in self.pointers:
            raise CompileError(f"buffer {name} is not in scope; in scope: {', '.join(self.pointers) or 'none'}")
        return self.pointers[name]

    def variable(self, name: str) -> Value:
        if name not in self.variables:
            raise CompileError(f"loop variable {name} is not in scope; in scope: {', '.join(self.variables) or 'none'}")
        return self.variables[name]
