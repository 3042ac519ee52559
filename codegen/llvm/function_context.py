"""What is known at a point of a function while it is being written."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from ...core.errors import CompileError
from ...ir.bounds import Interval, interval_of, loop_range
from ...ir.expr import Expr, Shuffle
from .values import LlvmValue
from .writer import FunctionWriter

EmitShuffle = Callable[[FunctionWriter, Shuffle, LlvmValue, LlvmValue], LlvmValue]
"""(writer, what is asked for, the value that lanes have, the lane they name) -> the value that they get."""


@dataclass(slots=True)
class FunctionContext:
    """The function being written, with its buffers and loop variables.

    ``tiles``: the number of the first tile register of a buffer of tiles; ``tiles_configured``: whether the function has set
    these registers up. ``known_addresses`` and ``known_results`` are stacks of what has been computed already: an inner scope (a
    loop body, a branch) sees what dominates it, and its own entries vanish with it. ``known_results`` holds the expression
    too, so that its identity stays taken. ``emit_shuffle``: how lanes of a warp get each other's values, where there are
    any. ``streamed``: buffers whose vectors are stored past the caches.
    """

    w: FunctionWriter
    pointers: dict[str, LlvmValue] = field(default_factory=dict)
    variables: dict[str, LlvmValue] = field(default_factory=dict)
    extents: dict[str, int] = field(default_factory=dict)
    in_parallel: bool = False
    tiles: dict[str, int] = field(default_factory=dict)
    tile_shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    tiles_configured: bool = False
    emit_shuffle: EmitShuffle | None = None
    non_temporal: frozenset[str] = frozenset()
    known_addresses: list[dict[object, LlvmValue]] = field(default_factory=lambda: [{}])
    known_results: list[dict[tuple[int, str], tuple[Expr, LlvmValue]]] = field(default_factory=lambda: [{}])

    @contextmanager
    def scope(self) -> Iterator[None]:
        self.known_addresses.append({})
        self.known_results.append({})
        yield
        self.known_addresses.pop()
        self.known_results.pop()

    @contextmanager
    def statement(self) -> Iterator[None]:
        """A statement of its own: what earlier ones loaded may have changed."""
        kept, self.known_results = self.known_results, [{}]
        yield
        self.known_results = kept

    def interval(self, expr: Expr) -> Interval:
        """The values an index can take here."""
        return interval_of(expr, {name: loop_range(extent) for name, extent in self.extents.items()})

    def known_address(self, key: object) -> LlvmValue | None:
        for scope in reversed(self.known_addresses):
            if key in scope:
                return scope[key]
        return None

    def known_result(self, expr: Expr, mask: LlvmValue | None) -> LlvmValue | None:
        key = (id(expr), mask.text if mask else "")
        for scope in reversed(self.known_results):
            if key in scope:
                return scope[key][1]
        return None

    def remember(self, expr: Expr, mask: LlvmValue | None, value: LlvmValue) -> LlvmValue:
        self.known_results[-1][(id(expr), mask.text if mask else "")] = (expr, value)
        return value

    def pointer(self, name: str) -> LlvmValue:
        if name not in self.pointers:
            raise CompileError(f"buffer {name} is not in scope; in scope: {', '.join(self.pointers) or 'none'}")
        return self.pointers[name]

    def variable(self, name: str) -> LlvmValue:
        if name not in self.variables:
            raise CompileError(f"loop variable {name} is not in scope; in scope: {', '.join(self.variables) or 'none'}")
        return self.variables[name]
