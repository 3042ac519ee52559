"""Describes the space of kernels of windows of planes with weights: knobs, constraints, derived sizes and the prior
(sketch ``cuda_plane_window``)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod

import numpy as np

from ....core.schedule import KnobValue
from ....core.target import Target
from ....ir.expr import WARP_LANES
from ....ir.stmt import Kernel
from ....te.cost import minimum_bytes
from ....te.workload import Workload
from ...problems.plane_window import BLOCK_OUTPUTS, STEP_POSITIONS, STRIPS, PlaneWindow, plane_window_of
from ...sketch import Peaks
from ...space.columns import Bools, Columns, Derived, Floats, Ints, derived_once
from ...space.constraint import Constraint
from ...space.enumerate import has_legal_setting
from ...space.knob import Knob
from ...tile_sketch import TileSketch
from ..memory_prior import MemoryTraffic, memory_bound_seconds
from ..peaks import gpu_peaks
from ..plan import GpuPlan
from ..quantities import GPU_QUANTITIES, WINDOW_QUANTITIES, gpu_columns
from .kernel import VECTOR_BYTES, PlaneWindowSizes, accumulator_dtype, aligned_vectors, store_width
from .multiply_add import MultiplyAddWriter
from .toeplitz import ToeplitzWriter

SPARE_REGISTERS, PLANE_REGISTERS = 24, 24
"""Registers for addresses and constants, roughly, and further ones while the rows of several planes are loaded (from
compiled kernels)."""
PROMISING_REGISTERS = 168
"""Registers of a thread in promising settings, at most: with more, too few threads hide latencies."""
MOST_FILTER_REGISTERS = 64
"""Registers for a filter, at most. Rows of larger ones are loaded one after the other."""
LEAST_TILE = 256
"""Outputs of a tile, at least, where there are more tiles than pictures need."""
MOST_OUTPUTS = 128
"""Outputs of a strip in promising settings, at most: with more, kernels need more registers than is estimated."""
MOST_LOADS = 48
"""Vectors that a thread loads in promising settings, at most."""
MOST_SHARED_BYTES = 64 << 10
"""Shared memory of a block, at most."""
MOST_THREADS = 512
"""Threads of a block, at most."""
WASTE = 1.3
"""For how many more outputs promising settings have room at most than the thriftiest of them."""
LOAD_INSTRUCTIONS, FAR_LOAD_INSTRUCTIONS = 8, 16
"""Instructions for a vector that a thread loads and stores to shared memory, with its address and its mask, where the
tiles of a block are next to each other in memory and where they are not."""
STRIP_INSTRUCTIONS, WARP_INSTRUCTIONS = 60, 120
"""Instructions of a thread for where its strip lies, and for those of its warp."""
SCATTERED_INSTRUCTIONS = 12
"""Instructions for an output that is stored from shared memory alone. (All were counted in compiled kernels.)"""
INSTRUCTION_OPERATIONS = 2
"""An instruction takes as long as a fused multiplication and addition, which is so many operations."""

MMA_INSTRUCTIONS = 8
"""A matrix instruction takes a part of a multiprocessor as long as so many other instructions (2,150 operations a
cycle)."""
_MMA = Knob("mma", (0, 1), "whether mma.sync multiplies, by Toeplitz matrices of the rows of filters")
_SHARED_FILTER = Knob(
    "shared_filter", (0, 1), "whether the tiles of a block have one filter, and warps strips of several"
)

QUANTITIES = (*GPU_QUANTITIES, *WINDOW_QUANTITIES)


@dataclass(frozen=True)
class PlaneWindowPlan(GpuPlan):
    """The settings of a reduction over windows with weights on a target."""

    problem: PlaneWindow
    target: Target
    _known: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict, compare=False, repr=False)

    @property
    def knobs(self) -> tuple[Knob, ...]:
        width, height = self.problem.width.axis.extent, self.problem.height.axis.extent
        depth, multiplied = self.problem.depth.axis.extent, self.problem.toeplitz_atom is not None
        return (
            Knob(
                "tile_w",
                tuple(n for n in (1, 2, 4, 5, 7, 8, 14, 16, 32) if n <= width or (multiplied and n == BLOCK_OUTPUTS)),
                "how many neighbouring outputs along the width a thread computes",
            ),
            Knob(
                "tile_h",
                tuple(n for n in (1, 2, 3, 4, 5, 6, 7, 8, 14, 16) if n <= height),
                "how many neighbouring outputs along the height a thread computes",
            ),
            *([_tile_d(depth)] if depth > 1 else []),
            Knob("tiles_w", _parts(width), "how many tiles the columns of a plane are divided into"),
            Knob("tiles_h", _parts(height), "how many tiles the rows of a plane are divided into"),
            Knob("row_tiles", (1, 2, 3, 4, 6, 8, 16, 32), "how many tiles of rows a block has"),
            Knob("staged_epilogue", (0, 1), "whether outputs go through shared memory"),
            *((_MMA, _SHARED_FILTER) if multiplied else ()),
        )

    @property
    def defaults(self) -> Mapping[str, KnobValue]:
        return {"mma": 0, "shared_filter": 0, "tile_d": 1}

    @property
    def _output_bytes(self) -> int:
        return sum(s.tensor.dtype.bytes for s in self.problem.outputs)

    @property
    def _planes(self) -> int:
        return prod(a.extent for a in self.problem.plane_axes)

    @derived_once
    def sizes(self, columns: Columns) -> PlaneWindowSizes:
        problem = self.problem
        knobs = columns.named("tile_w", "tile_h", "tile_d", "row_tiles", "mma", "shared_filter", "tiles_w", "tiles_h")
        tile_w, tile_h, tile_d, row_tiles, mma, shared_filter, tiles_w, tiles_h = knobs.values()
        staged = columns.ints("staged_epilogue")
        width, height = problem.width.axis.extent, problem.height.axis.extent
        strips_w, strips_h = _strips(width, tile_w, tiles_w), _strips(height, tile_h, tiles_h)
        tile_columns, tile_rows = strips_w * tile_w, strips_h * tile_h
        plane_rows, planes = problem.height.positions(tile_rows), problem.depth.positions(tile_d)
        load_width, lead = self._aligned_vectors(tile_columns, mma)
        k_steps = np.where(mma > 0, -(-(lead + problem.width.positions(BLOCK_OUTPUTS)) // STEP_POSITIONS), 0)
        widest = VECTOR_BYTES // max(m.load.dtype.bytes for m in problem.sliding_loads)
        step = tile_w * problem.width.stride
        near_width = np.gcd(step, widest)
        near = -(-(lead % near_width + problem.width.positions(tile_w)) // near_width) * near_width
        in_registers = np.where(mma > 0, 2 * k_steps * problem.window_rows, problem.points * len(problem.fixed_loads))
        looped = (in_registers > MOST_FILTER_REGISTERS) & (problem.window_rows > 1)
        near = np.where(mma > 0, tile_w - BLOCK_OUTPUTS + STEP_POSITIONS * k_steps, near)
        unit = np.maximum(load_width, near_width)
        last = (strips_w - 1) * step + np.where(mma > 0, 0, lead // near_width * near_width) + near
        pitch = -(-np.maximum(last, lead + problem.width.positions(tile_columns)) // unit) * unit
        strips = tile_d * strips_h * strips_w
        groups = np.where(shared_filter > 0, -(-row_tiles * strips // STRIPS), row_tiles * -(-strips // STRIPS))
        warps = np.where(mma > 0, groups, -(-row_tiles * strips // WARP_LANES))
        threads = warps * WARP_LANES
        vectors = pitch // load_width
        load_lines = np.clip(threads // vectors, 1, plane_rows)
        load_planes = np.clip(threads // (vectors * plane_rows), 1, row_tiles * planes)
        loads = -(-row_tiles * planes // load_planes) * -(-plane_rows // load_lines) * -(-vectors // threads)
        results = row_tiles * tile_d * tile_rows * np.minimum(tile_columns, width) * self._output_bytes
        shared_bytes = row_tiles * planes * plane_rows * pitch * self.problem.position_bytes + np.where(
            staged > 0, results, 0
        )
        loaded = loads * _words(load_width * self.problem.position_bytes)
        loaded = loaded + PLANE_REGISTERS * (problem.depth.axis.extent > 1)
        filter_rows = np.where(looped, 1, problem.window_rows)
        registers = self._registers(tile_w, tile_h, near, k_steps, filter_rows, loaded)
        return PlaneWindowSizes(
            **knobs,
            strips_w=strips_w,
            strips_h=strips_h,
            threads=threads,
            k_steps=k_steps,
            looped=looped.astype(np.int64),
            plane_rows=plane_rows,
            rows=planes * plane_rows,
            load_width=load_width,
            lead=lead,
            pitch=pitch,
            load_lines=load_lines,
            load_planes=load_planes,
            loads=loads,
            near_width=near_width,
            near=near,
            staged=staged,
            blocks=tiles_w * (self._planes * (problem.depth.axis.extent // tile_d) * tiles_h // row_tiles),
            shared_bytes=shared_bytes,
            registers=registers,
            resident=self.limits.resident_blocks(threads, registers, shared_bytes),
        )

    def _aligned_vectors(self, tile_columns: Ints, mma: Ints) -> tuple[Ints, Ints]:
        """Return ``aligned_vectors`` of each setting. Matrix instructions see no more positions than they must."""
        seen = self.problem.width.positions(BLOCK_OUTPUTS)
        most = {0: VECTOR_BYTES, 1: -(-seen // STEP_POSITIONS) * STEP_POSITIONS - seen}
        keys = list(zip(tile_columns.tolist(), mma.tolist(), strict=True))
        for n, m in set(keys) - self._known.keys():
            self._known[n, m] = aligned_vectors(self.problem, n, most[m])
        found = np.array([self._known[key] for key in keys], np.int64).reshape(-1, 2)
        return found[:, 0], found[:, 1]

    def _registers(
        self, tile_w: Ints, tile_h: Ints, near: Ints, k_steps: Ints, filter_rows: Ints, loaded: Ints
    ) -> Ints:
        """Return the estimated registers of a thread that loads so many words of the block's tiles first, and has so
        many rows of the filter at a time. Rows of outputs that are complete are stored at once, so that only those of a
        window have accumulators where it has all of them."""
        problem, accumulator = self.problem, _words(accumulator_dtype(self.problem).bytes)
        whole = filter_rows == problem.window_rows
        open_rows = np.where(whole, np.minimum(tile_h, problem.height.window_points), tile_h)
        weights = len(problem.fixed_loads) * filter_rows * problem.width.window_points * accumulator
        wide = problem.width.positions(tile_w) * len(problem.sliding_loads) * accumulator * self._is_narrow
        sums = len(problem.reductions) * accumulator * tile_w * open_rows
        computing = weights + sums + wide + _words(near * self.problem.position_bytes)
        fragments = 2 * k_steps * filter_rows
        multiplying = fragments + tile_w // 2 * open_rows + near // 2
        with_mma = np.maximum(loaded + fragments * whole, multiplying)
        adding = np.maximum(loaded + weights * whole, computing)
        found: Ints = SPARE_REGISTERS + np.where(k_steps > 0, with_mma, adding)
        return found

    @property
    def _is_narrow(self) -> int:
        """1 where what is loaded is converted to be computed with, 0 elsewhere."""
        return int(self.problem.sliding_loads[0].load.dtype != accumulator_dtype(self.problem))

    @property
    def constraints(self) -> tuple[Constraint, ...]:
        names = tuple(k.name for k in self.knobs)
        width, height = self.problem.width.axis.extent, self.problem.height.axis.extent
        return (
            Constraint(
                "row_tiles divides the tiles of rows of all planes",
                tuple(n for n in names if n in ("tile_d", "tiles_h", "row_tiles")),
                lambda c: self._tiles(c) % c.ints("row_tiles") == 0,
            ),
            Constraint(
                "a plane has tiles_w tiles, whose columns are a multiple of tile_w",
                ("tile_w", "tiles_w"),
                lambda c: _has_tiles(width, c.ints("tile_w"), c.ints("tiles_w")),
            ),
            Constraint(
                "a plane has tiles_h tiles, whose rows are a multiple of tile_h",
                ("tile_h", "tiles_h"),
                lambda c: _has_tiles(height, c.ints("tile_h"), c.ints("tiles_h")),
            ),
            Constraint(
                f"with mma tile_w is a multiple of {BLOCK_OUTPUTS}",
                tuple(n for n in names if n in ("tile_w", "mma")),
                lambda c: (c.ints("mma") == 0) | (c.ints("tile_w") % BLOCK_OUTPUTS == 0),
            ),
            Constraint(
                "shared_filter is for mma and several row_tiles, which divide those that have one filter",
                tuple(n for n in names if n in ("tile_d", "tiles_h", "row_tiles", "mma", "shared_filter")),
                self._may_share,
            ),
            Constraint(
                f"a block has at most {MOST_THREADS} threads, one for each tile_h by tile_w outputs, or with mma a "
                f"warp for {STRIPS} times as many",
                names,
                lambda c: self.sizes(c).threads <= MOST_THREADS,
            ),
            *self.launch_rules(MOST_SHARED_BYTES),
        )

    def _tiles(self, columns: Columns) -> Ints:
        """Return how many tiles of rows there are."""
        return self._planes * (self.problem.depth.axis.extent // columns.ints("tile_d")) * columns.ints("tiles_h")

    def _may_share(self, columns: Columns) -> Bools:
        tiles = self._tiles(columns) // prod(a.extent for a in self.problem.filter_axes)
        row_tiles = columns.ints("row_tiles")
        several = (row_tiles > 1) & (tiles % row_tiles == 0) & (columns.ints("mma") > 0)
        found: Bools = (columns.ints("shared_filter") == 0) | several
        return found

    def promising(self, columns: Columns, peaks: Peaks) -> Bools:
        """Blocks have a few warps, and a part of a plane or whole ones. Outputs go through shared memory where threads
        could not store all neighbours that they have at once."""
        sizes, problem = self.sizes(columns), self.problem
        output = min((s.tensor.dtype for s in problem.outputs), key=lambda d: d.bytes)
        whole = {int(n): store_width(problem, output, int(n)) == n for n in np.unique(sizes.tile_w)}
        direct = np.array([whole[int(n)] for n in sizes.tile_w], bool)
        direct |= (sizes.mma > 0) & (problem.width.axis.extent % 2 == 0)
        usual = (sizes.threads >= 64) | (sizes.blocks <= self.target.threads)
        usual &= (sizes.registers <= PROMISING_REGISTERS) & (direct == (sizes.staged == 0))
        usual &= (sizes.tile_w * sizes.tile_h <= MOST_OUTPUTS) & (sizes.loads <= MOST_LOADS)
        usual &= (sizes.row_tiles == 1) | (sizes.tiles_h == 1)
        room = sizes.blocks * sizes.threads * _outputs(sizes)
        thrifty = np.ones_like(usual)
        for with_mma in (sizes.mma == 0, sizes.mma > 0):
            thrifty &= ~with_mma | (
                room <= WASTE * np.min(room, where=usual & with_mma, initial=np.iinfo(np.int64).max)
            )
        found: Bools = usual & thrifty
        return found

    def prior_seconds(self, columns: Columns, peaks: Peaks) -> Floats:
        """All instructions of a thread count as arithmetic, since they are issued one by one: products, conversions of
        what is read, loads and stores with their addresses. Warps that multiply rows of several blocks store each block
        alone, which is half of a sector."""
        sizes, problem, workload = self.sizes(columns), self.problem, self.problem.workload
        threads, each = sizes.blocks * sizes.threads, len(problem.sliding_loads)
        both = zip(self._adding(sizes), self._multiplying(sizes), strict=True)
        instructions, accesses, read = (np.where(sizes.mma > 0, with_mma, without) for without, with_mma in both)
        staged = np.where(sizes.staged > 0, 2 * _outputs(sizes), 0)
        through_shared = (
            sizes.loads * sizes.load_width + read
        ) * self.problem.position_bytes + staged * self._output_bytes
        tile_bytes = sizes.row_tiles * sizes.rows * sizes.pitch * self.problem.position_bytes
        halves = np.where((sizes.mma > 0) & (sizes.staged == 0) & (sizes.tile_w > BLOCK_OUTPUTS), 2, 1)
        of_load = np.where(sizes.shared_filter > 0, FAR_LOAD_INSTRUCTIONS, LOAD_INSTRUCTIONS)
        ragged = (sizes.tiles_w > 1) | (problem.height.axis.extent % sizes.tile_rows > 0) | (sizes.shared_filter > 0)
        scattered = np.where(ragged & (sizes.staged > 0), SCATTERED_INSTRUCTIONS * _outputs(sizes), 0)
        loading = of_load * each * sizes.loads + scattered
        traffic = MemoryTraffic(
            blocks=sizes.blocks,
            resident=sizes.resident,
            memory_bytes=minimum_bytes(workload),
            l2_bytes=sizes.blocks * tile_bytes + halves * sum(b.bytes for b in workload.output_buffers),
            shared_bytes=threads * through_shared,
            accesses=threads / WARP_LANES * (accesses + 2 * each * sizes.loads),
            operations=INSTRUCTION_OPERATIONS * threads * (loading + instructions),
        )
        return memory_bound_seconds(gpu_peaks(self.target, peaks), traffic)

    def _lines(self, sizes: PlaneWindowSizes) -> Ints:
        """Return how often a strip reads a row of the input."""
        height = self.problem.height
        rows = np.where(sizes.looped > 0, sizes.tile_h * height.window_points, height.positions(sizes.tile_h))
        found: Ints = self.problem.depth.window_points * rows
        return found

    def _adding(self, sizes: PlaneWindowSizes) -> tuple[Ints, Ints, Ints]:
        """Return what a thread does that multiplies and adds: (instructions, loads and stores, positions that it reads
        from shared memory, those that lanes read one after the other counted so often)."""
        problem, outputs, each = self.problem, sizes.tile_w * sizes.tile_h, len(self.problem.sliding_loads)
        lines, weights = each * self._lines(sizes), len(problem.fixed_loads) * problem.points
        reads = lines * (sizes.near // sizes.near_width)
        dtype = problem.outputs[0].tensor.dtype
        widths = {int(n): store_width(problem, dtype, int(n)) for n in np.unique(sizes.tile_w)}
        vectors = outputs // np.array([widths[int(n)] for n in sizes.tile_w], np.int64)
        stores = len(problem.outputs) * np.where(sizes.staged > 0, 2 * outputs, vectors)
        converted = self._is_narrow * (lines * problem.width.positions(sizes.tile_w) + weights) + outputs
        conflicts = np.gcd(sizes.tile_w * problem.width.stride // sizes.near_width, WARP_LANES // 4)
        accesses = reads + weights + stores
        terms = len(problem.reductions) * problem.points
        instructions = STRIP_INSTRUCTIONS + terms * outputs + converted + accesses
        return instructions, accesses, conflicts * lines * sizes.near

    def _multiplying(self, sizes: PlaneWindowSizes) -> tuple[Ints, Ints, Ints]:
        """Return the same of a thread of a warp that multiplies matrices."""
        problem, lines = self.problem, self._lines(sizes)
        fragments = problem.window_rows * sizes.k_steps
        products = sizes.tile_h * (sizes.tile_w // BLOCK_OUTPUTS) * fragments
        stores = len(problem.outputs) * _outputs(sizes) // np.where(sizes.staged > 0, 1, 2)
        accesses = 4 * fragments + lines * -(-sizes.near // STEP_POSITIONS) + stores
        instructions = WARP_INSTRUCTIONS + MMA_INSTRUCTIONS * products + 8 * fragments + 5 * stores + accesses
        return instructions, accesses, lines * sizes.near * STRIPS // WARP_LANES

    def derive(self, columns: Columns) -> Derived:
        sizes = self.sizes(columns)
        return {
            **gpu_columns(self.target, sizes, wanted=sizes.loads * sizes.load_width * self.problem.position_bytes),
            "outputs": _outputs(sizes),
            "loads_per_output": sizes.rows * sizes.pitch / (sizes.tile_d * sizes.tile_rows * sizes.tile_columns),
        }

    def lower(self, setting: Mapping[str, KnobValue]) -> Kernel:
        sizes = self.sizes_of(setting)
        return (ToeplitzWriter if sizes.mma else MultiplyAddWriter)(self.problem, sizes).kernel()


def _outputs(sizes: PlaneWindowSizes) -> Ints:
    """Return how many outputs a thread computes. The lanes of a warp share those of sixteen strips with mma."""
    found: Ints = sizes.tile_h * sizes.tile_w * np.where(sizes.mma > 0, STRIPS, WARP_LANES) // WARP_LANES
    return found


def _tile_d(depth: int) -> Knob:
    values = tuple(n for n in (1, 2, 3, 4, 5, 6, 7, 8, 14, 16) if depth % n == 0)
    return Knob("tile_d", values, "how many neighbouring planes of outputs a tile has")


def _parts(extent: int) -> tuple[int, ...]:
    """Return into how many tiles an extent may be divided, such as that of a picture or of a long signal."""
    few = tuple(n for n in (1, 2, 3, 4, 7, 8, 14, 16, 32) if n == 1 or extent >= 4 * n)
    return few + tuple(n for n in (64, 128, 256, 512, 1024) if extent >= LEAST_TILE * n)


def _strips(extent: int, strip: Ints, tiles: Ints) -> Ints:
    """Return how many strips of so many outputs each of so many tiles of an extent has."""
    of_tile = -(-extent // tiles)
    return -(-of_tile // strip)


def _has_tiles(extent: int, strip: Ints, tiles: Ints) -> Bools:
    """Return where so many tiles of equally many whole strips cover an extent, and fewer do not."""
    found: Bools = -(-extent // (_strips(extent, strip, tiles) * strip)) == tiles
    return found


def _words(size: Ints | int) -> Ints | int:
    """Return how many registers so many bytes take."""
    return -(-size // 4)


def _plan(workload: Workload, target: Target) -> PlaneWindowPlan | None:
    problem = plane_window_of(workload)
    if problem is None:
        return None
    plan = PlaneWindowPlan(problem, target)
    spanned = prod(w.positions(1) for w in problem.moving)
    in_registers = spanned <= MOST_FILTER_REGISTERS // 2  # else there may be no legal setting
    return plan if in_registers or has_legal_setting(plan.knobs, plan.constraints, plan.defaults) else None


CUDA_PLANE_WINDOW = TileSketch("cuda_plane_window", 1, QUANTITIES, _plan)
