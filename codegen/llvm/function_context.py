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
"""Arguments: the writer, the shuffle, the value that lanes have, the lane that they read from. Result: the value
that they get."""


@dataclass(slots=True)
class FunctionContext:
    """The function being written, with its buffers and loop variables.

    ``tiles`` maps a buffer of tiles to the number of its first tile register; ``tiles_configured`` says whether the
    function has configured these registers. ``known_addresses`` and ``known_results`` are stacks of values that were
    computed before (value numbering). An inner scope, such as a loop body or a branch, sees what dominates it; its own
    entries vanish with it. ``emit_shuffle`` writes how lanes of a warp read each other's values, where there are warps.
    ``non_temporal`` names buffers whose vectors are stored past the caches.
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
    known_results: list[dict[tuple[Expr, str], LlvmValue]] = field(default_factory=lambda: [{}])

    @contextmanager
    def scope(self) -> Iterator[None]:
        self.known_addresses.append({})
        self.known_results.append({})
        yield
        self.known_addresses.pop()
        self.known_results.pop()

    @contextmanager
    def statement(self) -> Iterator[None]:
        """Begin a new statement. Values that earlier statements loaded may have changed, so they are forgotten."""
        kept, self.known_results = self.known_results, [{}]
        yield
        self.known_results = kept

    def interval(self, expr: Expr) -> Interval:
        """Return the interval of values that an index can take here."""
        return interval_of(expr, {name: loop_range(extent) for name, extent in self.extents.items()})

    def known_address(self, key: object) -> LlvmValue | None:
        for scope in reversed(self.known_addresses):
            if key in scope:
                return scope[key]
        return None

    def known_result(self, expr: Expr, mask: LlvmValue | None) -> LlvmValue | None:
        key = (expr, mask.text if mask else "")
        for scope in reversed(self.known_results):
            if key in scope:
                return scope[key]
        return None

    def remember(self, expr: Expr, mask: LlvmValue | None, value: LlvmValue) -> LlvmValue:
        self.known_results[-1][expr, mask.text if mask else ""] = value
        return value

    def pointer(self, name: str) -> LlvmValue:
        if name not in self.pointers:
            raise CompileError(f"buffer {name} is not in scope; in scope: {', '.join(self.pointers) or 'none'}")
        return self.pointers[name]

    def variable(self, name: str) -> LlvmValue:
        if name not in self.variables:
            raise CompileError(f"loop variable {name} is not in scope; in scope: {', '.join(self.variables) or 'none'}")
        return self.variables[name]
