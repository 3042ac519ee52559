"""Describes the space of kernels whose threads have a tile of outputs each: knobs, constraints, derived sizes and the
prior (sketch ``cuda_thread_tile``)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import prod

import numpy as np

from ....core.schedule import KnobValue
from ....core.target import Target
from ....ir.buffer import Buffer
from ....ir.expr import WARP_LANES, Expr, Load, Var
from ....ir.rewrite import loads_of
from ....ir.stmt import Kernel
from ....te.cost import minimum_bytes
from ....te.evaluate import Evaluator
from ....te.workload import Workload
from ...problems.pointwise import Pointwise, on_own_axes, pointwise_of, with_joined_rows
from ...sketch import Peaks
from ...space.columns import Bools, Columns, Derived, Floats, derived_once
from ...space.constraint import Constraint
from ...space.knob import Knob, Quantity
from ...tile.delinearize import axis_indices
from ...tile.masked_loads import MaskedLoad, replace_masked_loads
from ...tile.stage_body import scalar_at
from ...tile_sketch import TileSketch, planned
from ..memory_prior import ACCESS_CYCLES, MemoryTraffic, memory_bound_seconds
from ..occupancy import MOST_BLOCKS
from ..peaks import gpu_peaks
from ..plan import GpuPlan
from ..quantities import GPU_QUANTITIES, gpu_columns
from ..term_cost import instructions_of, is_counted
from .kernel import ThreadTileSizes, thread_tile_kernel, tiled_axes
from .loads import CHUNK_BYTES, LoadGroup, ThreadTile, TileLoads, tile_loads
from .pieces import load_order, pieces_of

WIDTHS = (1, 2, 4, 8, 16, 3, 6, 12, 24, 48)
"""Widths of tiles; those of pixels of three channels among them."""
MOST_BYTES = 64
"""Bytes of the widest output of a tile, along the innermost axis."""
SPARE_REGISTERS = 20
"""Registers for addresses and constants, roughly."""
MOST_LOADED = 1.5
"""Loaded values for each register of a thread, above which the compiler spills: it postpones loads."""
PROMISING_REGISTERS = 160
"""Registers of a thread in promising settings, at most."""
PROMISING = 1.5
"""How many times as slow as the best estimate promising settings are at most."""
FAR = 1 << 32
"""More than any place in what a group loads."""
LOAD_CYCLES, ADDRESS_CYCLES = 1.0, 0.5
"""Cycles of a multiprocessor for a load of a warp, and for the address of a group of them (see ``ACCESS_CYCLES``)."""
LINE_BYTES, FAR_LINES = 128, 8
"""Bytes of a line of memory, and how many lines a warp reads of places that are loaded."""

QUANTITIES = (
    *GPU_QUANTITIES,
    Quantity("elements_per_thread", "elements", "output elements that a thread computes"),
    Quantity("loads_per_output", "loads", "loads for each output element"),
)


@dataclass(frozen=True, slots=True)
class _TileCost:
    """What a tile takes: ``registers`` for what it loads, ``loads`` and the ``bytes`` of them, ``cycles`` of a
    multiprocessor for the loads and stores of a warp, and ``instructions`` besides."""

    registers: int
    loads: int
    bytes: int
    cycles: float
    instructions: float


NO_TILE = _TileCost(1 << 20, 1, 1, 1.0, 1.0)
"""What is told of a tile that no kernel is written for."""


@dataclass(frozen=True)
class ThreadTilePlan(GpuPlan):
    """The settings of a pointwise problem whose threads have tiles."""

    problem: Pointwise
    target: Target
    _known: dict[ThreadTile, tuple[TileLoads | None, _TileCost]] = field(
        default_factory=dict, compare=False, repr=False
    )

    @property
    def knobs(self) -> tuple[Knob, ...]:
        widest = max(s.tensor.dtype.bytes for s in self.problem.stages)
        extent = self.problem.lane_axis.extent
        widths = tuple(v for v in WIDTHS if extent % v == 0 and v * widest <= MOST_BYTES)
        others = self._others
        return (
            Knob("vector_width", widths, "how many neighbouring elements along the innermost axis a thread computes"),
            Knob("unroll", (1, 2, 4, 8) if others else (1,), "how many neighbours along another axis it computes each"),
            Knob("unroll_axis", others or (0,), "which axis that is, counted from the innermost one, which is 0"),
            Knob("threads", (128, 256), "how many threads a block has"),
        )

    @property
    def _others(self) -> tuple[int, ...]:
        """The axes, counted from the innermost one, that have neighbours to share loads with."""
        axes = self.problem.axes[::-1]
        return tuple(n for n, a in enumerate(axes) if a != self.problem.lane_axis and a.extent % 2 == 0)

    @cached_property
    def _totals(self) -> int:
        """How many sums of an element are accumulated at once."""
        return len({p.stage.name for p in pieces_of(self.problem) if p.total is not None})

    def _tile(self, width: int, unroll: int, axis: int) -> ThreadTile:
        return ThreadTile(width, unroll, self.problem.axes[-1 - axis].name) if unroll > 1 else ThreadTile(width)

    def _of(self, tile: ThreadTile) -> tuple[TileLoads | None, _TileCost]:
        if tile not in self._known:
            divides = all(extent % n == 0 for extent, n in self._extents(tile))
            loads = tile_loads(self.problem, tile) if divides else None
            self._known[tile] = (loads, NO_TILE if loads is None else self._cost(tile, loads))
        return self._known[tile]

    def _extents(self, tile: ThreadTile) -> list[tuple[int, int]]:
        """Return the extents of axes with how many elements of a tile lie along them."""
        sizes = {self.problem.lane_axis.name: tile.width, tile.axis: tile.unroll}
        return [(a.extent, sizes.get(a.name, 1)) for a in self.problem.axes]

    @derived_once
    def sizes(self, columns: Columns) -> ThreadTileSizes:
        names = ("vector_width", "unroll", "unroll_axis")
        width, unroll, axis = (columns.ints(name) for name in names)
        threads = columns.ints("threads")
        settings = zip(width.tolist(), unroll.tolist(), axis.tolist(), strict=True)
        costs = [self._of(self._tile(*setting))[1] for setting in settings]
        outputs = sum(-(-s.tensor.dtype.bytes // 4) for s in self.problem.stages)
        registers = SPARE_REGISTERS + np.array([c.registers for c in costs]) + width * outputs
        tiles = prod(a.extent for a in self.problem.axes) // (width * unroll)
        most = self.limits.registers_per_thread
        return ThreadTileSizes(
            tiles=tiles,
            threads=threads,
            blocks=-(-tiles // threads),
            registers=registers,
            shared_bytes=np.zeros_like(threads),
            resident=self.limits.resident_blocks(threads, np.minimum(registers, most), 0),
            loaded_bytes=np.array([c.bytes for c in costs]),
            cycles=np.array([c.cycles for c in costs]),
            instructions=np.array([c.instructions for c in costs]),
        )

    @property
    def constraints(self) -> tuple[Constraint, ...]:
        return (
            Constraint(
                "unroll_axis is the first of its values where unroll is 1",
                ("unroll", "unroll_axis"),
                lambda c: (c.ints("unroll") > 1) | (c.ints("unroll_axis") == (self._others or (0,))[0]),
            ),
            self.rule(
                "unroll divides the axis unroll_axis, few places are computed one by one, and what a tile loads does "
                "not exceed the registers of a thread so far that the compiler would spill",
                ("vector_width", "unroll", "unroll_axis", "threads"),
                lambda s: s.registers <= MOST_LOADED * self.limits.registers_per_thread,
            ),
            self.rule("a launch has at most 2^31 - 1 blocks", None, lambda s: s.blocks <= MOST_BLOCKS),
        )

    def _cost(self, tile: ThreadTile, loads: TileLoads) -> _TileCost:
        each = tile.width * tile.unroll
        lines = {masked: self._lines(tile, group) for masked, group in {g.masked: g for g in loads.groups}.items()}
        cycles = 0.0
        for g in (g for g in loads.groups if g.chunks):
            each_load = max(LOAD_CYCLES, lines[g.masked], WARP_LANES * g.lanes * g.buffer.dtype.bytes / LINE_BYTES)
            cycles += len(g.chunks) * each_load + ADDRESS_CYCLES
        for row in (tile.width * s.tensor.dtype.bytes for s in self.problem.stages):
            each_store = max(ACCESS_CYCLES, min(WARP_LANES, WARP_LANES * row / LINE_BYTES))
            cycles += tile.unroll * row // min(row & -row, CHUNK_BYTES) * each_store
        cycles += len(loads.others) * each * ACCESS_CYCLES
        return _TileCost(
            registers=load_order(self.problem, tile, loads).registers + self._totals * each,
            loads=loads.accesses + len(loads.others) * each,
            bytes=sum(g.elements * g.buffer.dtype.bytes for g in loads.groups),
            cycles=cycles,
            instructions=self._instructions(tile, loads),
        )

    def _lines(self, tile: ThreadTile, group: LoadGroup) -> int:
        """Return how many lines of memory a warp reads by each load of a group."""
        base, number, size = group.base.to_expr(), Var("tile#"), group.buffer.dtype.bytes
        if loads_of(base):
            return FAR_LINES
        axes = tiled_axes(self.problem, tile)
        first = prod(a.extent for a in axes) // 2 // WARP_LANES * WARP_LANES
        at = Evaluator({}, {number.name: (first, first + WARP_LANES)})
        return len(np.unique(at(scalar_at(base, axis_indices(number, axes))) * size // LINE_BYTES))

    def _instructions(self, tile: ThreadTile, loads: TileLoads) -> float:
        """Return how many instructions compute the outputs of a tile from what it loaded, and where to load it. What
        is the same for several elements is computed once."""
        sizes = {self.problem.lane_axis.name: (tile.width, 1)} | ({tile.axis: (1, tile.unroll)} if tile.axis else {})
        values: dict[MaskedLoad, Expr] = {}
        roots: list[Expr] = []
        for n, (given, masked) in enumerate(self.problem.loads.items()):
            values[given] = value = Load(Buffer(f"value_{n}#", (), masked.load.dtype), ())
            sizes[value.buffer.name] = (tile.width, tile.unroll)
            if masked in loads.places:
                numbers, places = loads.places[masked]
                which = numbers * FAR + places
                sizes[value.buffer.name] = (len({c.tobytes() for c in which.T}), len({r.tobytes() for r in which}))
                if len(np.unique(numbers)) > 1:
                    roots += masked.load.indices
        roots += [replace_masked_loads(s.body, values) for s in self.problem.stages]
        different: dict[Expr, tuple[int, int]] = {}

        def count(e: Expr) -> tuple[int, int]:
            """Return for how many places along the row, and along the other axis, a node differs."""
            if e not in different:
                name = e.name if isinstance(e, Var) else e.buffer.name if isinstance(e, Load) else ""
                below = [sizes.get(name, (1, 1)), *map(count, e.children)]
                different[e] = (max(n for n, _ in below), max(n for _, n in below))
            return different[e]

        for root in roots:
            count(root)
        return loads.accesses + sum(
            sum(instructions_of(node).values()) * prod(times) for node, times in different.items() if is_counted(node)
        )

    def promising(self, columns: Columns, peaks: Peaks) -> Bools:
        sizes, seconds = self.sizes(columns), self.prior_seconds(columns, peaks)
        fits = sizes.registers <= PROMISING_REGISTERS
        found: Bools = fits & (seconds <= PROMISING * seconds.min(initial=np.inf, where=fits))
        return found

    def prior_seconds(self, columns: Columns, peaks: Peaks) -> Floats:
        s = self.sizes(columns)
        warps = s.tiles / WARP_LANES
        traffic = MemoryTraffic(
            blocks=s.blocks,
            resident=s.resident,
            memory_bytes=minimum_bytes(self.problem.workload),
            l2_bytes=minimum_bytes(self.problem.workload),
            accesses=warps * s.cycles / ACCESS_CYCLES,
            operations=2 * s.tiles * s.instructions,
        )
        return memory_bound_seconds(gpu_peaks(self.target, peaks), traffic)

    def derive(self, columns: Columns) -> Derived:
        s = self.sizes(columns)
        return {
            **gpu_columns(self.target, s, wanted=s.loaded_bytes),
            "elements_per_thread": columns.ints("vector_width") * columns.ints("unroll"),
            "loads_per_output": s.loaded_bytes / (columns.ints("vector_width") * columns.ints("unroll")),
        }

    def lower(self, setting: Mapping[str, KnobValue]) -> Kernel:
        s = self.sizes_of(setting)
        tile = self._tile(*(int(setting[name]) for name in ("vector_width", "unroll", "unroll_axis")))
        loads = self._of(tile)[0]
        assert loads is not None
        return thread_tile_kernel(self.problem, tile, loads, s.tiles, s.threads)


def thread_tile_problem(workload: Workload) -> Pointwise | None:
    """Return the problem on axes that tiles may lie along; None where each vector is loaded by itself anyway, and where
    a tile shares nothing: no tensor is read at several places, and there are no short rows with something for each
    column."""
    flat, problem = pointwise_of(workload), on_own_axes(workload)
    if workload.dynamic or flat is None or problem is None or not flat.scattered:
        return None
    read, joined = [m.load.buffer.name for m in problem.distinct_loads], with_joined_rows(problem)
    shares = len(set(read)) < len(read) or (joined is not problem and len(read) > 1)
    return joined if shares else None


CUDA_THREAD_TILE = TileSketch("cuda_thread_tile", 1, QUANTITIES, planned(thread_tile_problem, ThreadTilePlan))
