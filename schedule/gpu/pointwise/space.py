"""Describes the space of pointwise kernels: knobs, constraints, derived sizes and the prior (sketch
``cuda_pointwise``)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import gcd

import numpy as np

from ....core.schedule import KnobValue
from ....core.target import Target
from ....ir.expr import WARP_LANES, Expr, Load, distinct_nodes
from ....ir.rewrite import loads_of
from ....ir.stmt import Kernel
from ....te.cost import flops, minimum_bytes
from ....te.evaluate import Evaluator
from ...problems.pointwise import Pointwise, pointwise_of
from ...sketch import Peaks
from ...space.columns import Bools, Columns, Derived, Floats, Ints, derived_once
from ...space.constraint import Constraint
from ...space.knob import Knob, Quantity
from ...tile.load_analysis import flat_offset
from ...tile.masked_loads import MaskedLoad
from ...tile.pieces import lanes_of_piece
from ...tile_sketch import TileSketch, planned
from ..memory_prior import TILE_SECONDS, MemoryTraffic, memory_bound_seconds
from ..occupancy import MOST_BLOCKS
from ..peaks import gpu_peaks
from ..plan import GpuPlan
from ..quantities import GPU_QUANTITIES, gpu_columns
from ..term_cost import instructions_of, is_counted
from .kernel import PointwiseSizes, is_own_element, pointwise_kernel, runs_of_vector

MAX_VECTOR_BYTES = 16
"""Bytes of the widest access of the hardware."""
SPARE_REGISTERS = 12
"""Registers for addresses and constants, roughly (from compiled kernels)."""
MOST_LOADED = 1.5
"""Loaded values for each register of a thread, above which the compiler spills. It postpones loads for which there is
no register (from compiled kernels of 10 to 40 inputs)."""
PROMISING_REGISTERS = 160
"""Registers of a thread in promising settings, at most: with more, too few threads hide the latency of loads."""
PROMISING_VECTOR_BYTES = 8
"""Least bytes of a promising vector, of the narrowest element; narrower ones keep too few bytes in flight."""

MOST_WASTE = 1.15
"""How many elements the lanes along a row may take at most for each that there is."""
VECTORS, ROW = "vectors", "row"
"""The values of ``unroll_along``."""
LONG_ROW = 64
"""Rows of so many elements have few vectors that reach into the next one."""
UNROLLED_RUNS = 1.03
"""How much longer several vectors at any offset take than one for each thread: an H200 takes 64.8 us to roll 8191x8191
halves by one vector, 68.9 by two and 66.5 by four; 36.3, 37.9 and 38.5 us to permute 32x513x16x127."""
MANY_VECTORS = 1 << 21
"""With so many vectors, blocks of 256 threads and more are the fastest (measured: a gelu of 2^25 floats takes an H200
75 us with 128, and 65 us with more)."""
LARGE_BYTES, BYTES_AT_ONCE = 3 << 27, 6 << 20
"""Where so many bytes are moved, the tiles of all resident blocks read so many at most, twice as many where caches
evict them first. A hardswish that moves 512 MB takes an H100 179 us with 4 MB at once, 209 with 8 and 235 with 17; with
``evict_first`` it takes 179 with 8 and 187 with 17."""

LINE_BYTES, SCATTERED_ACCESSES = 128, 24
"""A load of a warp whose lanes read elements in as many lines counts as so many: an H200 took 47 us to copy every other
pixel of 32x256x56x56 halves with channels last and to multiply them, of which the product should take 12."""

QUANTITIES = (
    *GPU_QUANTITIES,
    Quantity("vector_bytes", "B", "bytes of the widest access"),
    Quantity("elements_per_thread", "elements", "output elements that a thread computes from one round of loads"),
    Quantity("tiles_per_block", "tiles", "tiles that a block computes one after the other"),
)


@dataclass(frozen=True)
class PointwisePlan(GpuPlan):
    """The settings of a pointwise problem on a target."""

    problem: Pointwise
    target: Target

    @property
    def knobs(self) -> tuple[Knob, ...]:
        return (
            Knob("vector_width", self._vector_widths(), "how many contiguous elements a thread computes as one vector"),
            Knob("unroll", (1, 2, 4), "how many vectors a thread loads before it computes the first"),
            Knob("threads", (128, 256, 512), "how many threads a block has"),
            Knob("persistent", (0, 1), "whether as many blocks as fit compute all tiles, or each tile has its block"),
            Knob("evict_first", (0, 1), "whether large buffers are marked as not worth keeping in caches"),
            Knob(
                "unroll_along",
                (VECTORS, ROW) if self.problem.row >= WARP_LANES and self.problem.dynamic is None else (VECTORS,),
                "whether the vectors of a block follow each other (vectors), or each warp has those of one row (row)",
            ),
        )

    def _element_bytes(self) -> list[int]:
        """Return the element sizes of the outputs and of the inputs that are loaded as vectors."""
        outputs = [s.tensor.dtype.bytes for s in self.problem.stages]
        return outputs + [r.load.dtype.bytes for r in self.problem.vector_loads]

    def _vector_widths(self) -> tuple[int, ...]:
        """Return the widths with at most one access for the narrowest element and at most two for the widest. They
        divide the innermost axis. Where all axes are a single one, elements behind the last vector are computed
        alone."""
        problem = self.problem
        sizes, extent = self._element_bytes(), gcd(problem.lane_axis.extent, problem.element_unit)
        has_rest = problem.row > 0 and problem.dynamic is None
        return tuple(
            v
            for v in (1, 2, 4, 8, 16)
            if (v <= problem.elements if has_rest else extent % v == 0)
            and v * min(sizes) <= MAX_VECTOR_BYTES
            and v * max(sizes) <= 2 * MAX_VECTOR_BYTES
        )

    @cached_property
    def _accesses(self) -> Ints:
        """How often a thread accesses memory to load the vectors of one place, for each width. What several outputs
        read is loaded once, where neither a condition nor a loaded index is in the way."""
        found, loads = [], self.problem.vector_loads
        for width in self._vector_widths():
            each = {m: self._accesses_of(m, width) for m in loads}
            alone = [m for m, n in each.items() if n == width > 1 and m.mask is None and _is_direct(m.load)]
            shared = min(sum(each[m] for m in alone), self._elements_of(alone, width))
            found.append(sum(n for m, n in each.items() if m not in alone) + shared)
        return np.array(found)

    def _elements_of(self, loads: Sequence[MaskedLoad], width: int) -> int:
        """Return how many elements such loads read for a vector in the middle of the output."""
        axes, lane = self.problem.axes, self.problem.lane_axis
        first = {a.name: a.extent // 2 for a in axes} | {lane.name: lane.extent // width * 3 // 7 * width}
        place = Evaluator({}, {name: (n, n + (width if name == lane.name else 1)) for name, n in first.items()})
        elements = set[tuple[object, ...]]()
        for load in (m.load for m in loads):
            indices = [np.broadcast_to(place(i).reshape(-1), width) for i in load.indices]
            elements |= {(load.buffer.name, *at) for at in zip(*(i.tolist() for i in indices), strict=True)}
        return len(elements)

    def _accesses_of(self, masked: MaskedLoad, width: int) -> int:
        """Return in how many accesses a vector is loaded."""
        problem = self.problem
        if not problem.scattered or is_own_element(problem, masked):
            return 1
        runs = runs_of_vector(problem, masked, width)
        if runs:  # two chunks for each run, and sometimes single elements
            return sum(2 * abs(run.stride) for run in runs) + 1
        alone = width // lanes_of_piece(masked, problem.lane_axis.name, width)
        return alone * (SCATTERED_ACCESSES if self._reads_lines(masked) else 1)

    def _reads_lines(self, masked: MaskedLoad) -> bool:
        """Return whether neighbours of a row are read from different lines of memory."""
        offset = flat_offset(masked.load)
        stride = 0 if offset is None else abs(offset.coefficient(self.problem.lane_axis.name))
        return stride * masked.load.dtype.bytes >= LINE_BYTES

    @cached_property
    def _instructions(self) -> float:
        """How many instructions an element takes where places are computed by floats, as those of a resized image are;
        0 where they are not, and memory is all that counts."""
        places = [i for m in self.problem.distinct_loads for i in m.load.indices if _is_computed(i)]
        nodes = set(distinct_nodes(*places, *(s.body for s in self.problem.stages))) if places else set[Expr]()
        return sum(sum(instructions_of(node).values()) for node in nodes if is_counted(node))

    @cached_property
    def _widths_in_runs(self) -> tuple[int, ...]:
        """The widths of vectors in another order whose elements are loaded alone at the ends of long rows only."""
        problem, lane = self.problem, self.problem.lane_axis.name
        if not problem.scattered:
            return ()
        others = [m for m in problem.vector_loads if not is_own_element(problem, m)]
        long = problem.row == 0 or problem.row >= LONG_ROW
        return tuple(
            width
            for width in self._vector_widths()
            if all(lanes_of_piece(m, lane, width) > 1 or (long and runs_of_vector(problem, m, width)) for m in others)
        )

    @derived_once
    def sizes(self, columns: Columns) -> PointwiseSizes:
        problem, limits, multiprocessors = self.problem, self.limits, self.target.threads
        knobs = columns.named("vector_width", "unroll", "threads")
        width, unroll, threads = knobs.values()
        vectors = problem.elements // width
        along_row, row = columns.flags("unroll_along", ROW), max(problem.row, 1)
        row_parts = np.where(along_row, -(-row // (unroll * WARP_LANES)), 0)
        of_rows = -(-(problem.elements // row) * row_parts // (threads // WARP_LANES))
        tiles = np.where(along_row, of_rows, -(-vectors // (unroll * threads)))
        each = sum(r.load.dtype.bytes for r in problem.vector_loads)
        vector_bytes, scalar_loads = each * width, len(problem.distinct_loads) - len(problem.vector_loads)
        accesses = self._accesses[np.searchsorted(self._vector_widths(), width)]
        scalar_bytes = 4 * scalar_loads
        registers = SPARE_REGISTERS + -(-(vector_bytes + scalar_bytes) * unroll // 4) + 2 * width
        resident = limits.resident_blocks(threads, registers, 0)
        at_once = np.maximum(resident, 1) * multiprocessors
        return PointwiseSizes(
            **knobs,
            row_parts=row_parts,
            vectors=vectors,
            tiles=tiles,
            blocks=np.where(columns.flags("persistent", 1), np.minimum(tiles, at_once), tiles),
            loaded_bytes=vector_bytes * unroll,
            accesses=vectors * (accesses + scalar_loads + len(problem.stages)),
            registers=registers,
            shared_bytes=np.zeros_like(threads),
            resident=resident,
            prefetching_ctas=limits.overlapping_ctas(resident, multiprocessors),
        )

    @property
    def constraints(self) -> tuple[Constraint, ...]:
        shape = ("vector_width", "unroll", "threads")
        return (
            self.rule(
                "the unroll vectors of vector_width elements that a thread loads first do not exceed its registers so "
                "far that the compiler would spill",
                shape,
                self._loads_fit,
            ),
            self.rule(
                "a launch has at most 2^31 - 1 blocks, which a larger vector_width, unroll or threads make fewer",
                (*shape, "persistent", "unroll_along"),
                lambda s: s.blocks <= MOST_BLOCKS,
            ),
            Constraint(
                "persistent is 0 where the blocks that fit on the device are no fewer than the tiles",
                (*shape, "persistent", "unroll_along"),
                self._persistence_matters,
            ),
            Constraint(
                "vector_width is 1 and persistent is 0 where unroll_along is row",
                ("vector_width", "persistent", "unroll_along"),
                lambda c: (
                    c.flags("unroll_along", VECTORS) | ((c.ints("vector_width") == 1) & (c.ints("persistent") == 0))
                ),
            ),
        )

    def _loads_fit(self, sizes: PointwiseSizes) -> Bools:
        limits = self.limits
        available = np.minimum(limits.registers_per_thread, limits.registers_per_multiprocessor // sizes.threads)
        found: Bools = sizes.loaded_bytes // 4 <= MOST_LOADED * available
        return found

    def _persistence_matters(self, columns: Columns) -> Bools:
        sizes = self.sizes(columns)
        found: Bools = columns.flags("persistent", 0) | (sizes.blocks < sizes.tiles)
        return found

    def promising(self, columns: Columns, peaks: Peaks) -> Bools:
        sizes, widths = self.sizes(columns), self._vector_widths()
        wide = (sizes.vector_width * min(self._element_bytes()) >= PROMISING_VECTOR_BYTES) | (
            sizes.vector_width == widths[-1]
        )
        if self.problem.scattered:  # neighbouring threads that load neighbouring elements may be better
            wide |= sizes.vector_width == 1
        smallest = (sizes.unroll == 1) & (sizes.threads == 128)
        full_tile = (sizes.unroll * sizes.threads <= sizes.vectors) | smallest
        # Persistent blocks pay only where each has much to do for one round of loads. Where elements are loaded one by
        # one, their indices are that: an H200 takes 147 us to roll 8191x8191 halves by them, 87 us by other blocks.
        pays = (sizes.unroll > 1) & (sizes.vector_width == widths[-1]) & (not self.problem.scattered)
        # Few lanes of a row without an element are worth it where each element is loaded alone.
        taken = sizes.row_parts * sizes.unroll * WARP_LANES
        along_row = self.problem.scattered & (sizes.unroll > 1) & (taken <= MOST_WASTE * self.problem.row)
        wide = np.where(sizes.row_parts > 0, along_row, wide)
        if self._widths_in_runs:  # no element of most vectors is loaded alone
            wide = np.isin(sizes.vector_width, self._widths_in_runs) & (sizes.row_parts == 0)
        promising = wide & full_tile & (columns.flags("persistent", 0) | pays)
        promising &= sizes.registers <= PROMISING_REGISTERS
        promising &= (sizes.threads >= 256) | (sizes.vectors < MANY_VECTORS)
        if minimum_bytes(self.problem.workload) >= LARGE_BYTES:
            resident = np.minimum(sizes.blocks, sizes.resident * self.target.threads)
            at_once = resident * sizes.threads * sizes.loaded_bytes // np.where(columns.flags("evict_first", 1), 2, 1)
            promising &= at_once <= max(BYTES_AT_ONCE, at_once.min(initial=np.iinfo(np.int64).max, where=promising))
        found: Bools = promising
        return found

    def prior_seconds(self, columns: Columns, peaks: Peaks) -> Floats:
        sizes, problem = self.sizes(columns), self.problem
        traffic = MemoryTraffic(
            blocks=sizes.blocks,
            resident=sizes.resident,
            rounds=sizes.tiles / sizes.blocks,
            memory_bytes=minimum_bytes(problem.workload),
            l2_bytes=problem.elements * sum(self._element_bytes()),
            accesses=sizes.accesses / WARP_LANES,
            operations=max(flops(problem.workload), 2 * problem.elements * self._instructions),
        )
        begins = TILE_SECONDS * sizes.tiles / self.target.threads
        seconds = begins + memory_bound_seconds(gpu_peaks(self.target, peaks), traffic)
        in_runs = np.isin(sizes.vector_width, self._widths_in_runs)
        found: Floats = np.where(in_runs & (sizes.unroll > 1), UNROLLED_RUNS, 1.0) * seconds
        return found

    def derive(self, columns: Columns) -> Derived:
        sizes = self.sizes(columns)
        widest = max(s.tensor.dtype.bytes for s in self.problem.stages)
        return {
            **gpu_columns(self.target, sizes, wanted=sizes.loaded_bytes),
            "vector_bytes": np.minimum(sizes.vector_width * widest, MAX_VECTOR_BYTES),
            "elements_per_thread": sizes.vector_width * sizes.unroll,
            "tiles_per_block": -(-sizes.tiles // sizes.blocks),
        }

    def lower(self, setting: Mapping[str, KnobValue]) -> Kernel:
        sizes = self.sizes_of(setting)
        return pointwise_kernel(self.problem, sizes, evict_first=setting["evict_first"] == 1)


def _is_computed(place: Expr) -> bool:
    """Return whether floats say where something is."""
    return any(node.dtype.is_float for node in distinct_nodes(place))


def _is_direct(load: Load) -> bool:
    """Return whether the indices of a load read no tensor."""
    return not any(map(loads_of, load.indices))


CUDA_POINTWISE = TileSketch("cuda_pointwise", 3, QUANTITIES, planned(pointwise_of, PointwisePlan), dynamic=True)
