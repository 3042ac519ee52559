"""Describes the space of scatters: knobs, constraints, derived sizes and the prior (sketch ``cuda_scatter``)."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ....core.schedule import KnobValue
from ....core.target import Target
from ....ir.expr import WARP_LANES
from ....ir.rewrite import free_variables, loads_of
from ....ir.stmt import Kernel
from ....te.cost import flops, minimum_bytes
from ....te.scatter import usual_count
from ....te.workload import Workload
from ...problems.scatter import ScatterProblem, scatter_problem
from ...sketch import Peaks
from ...space.columns import Bools, Columns, Derived, Floats, derived_once
from ...space.constraint import Constraint
from ...space.knob import Knob
from ...tile_sketch import TileSketch
from ..memory_prior import BLOCK_CYCLES, LOAD_LATENCY_SECONDS, TILE_SECONDS, MemoryTraffic, memory_bound_seconds
from ..peaks import GpuPeaks, gpu_peaks
from ..plan import GpuPlan
from ..quantities import GPU_QUANTITIES, gpu_columns
from .kernel import ScatterSizes, scatter_kernel
from .rank import VECTOR, ranking_block
from .sort import BUCKET_WARPS, LOADED_COUNTS, MOST_SHARES, MOST_WARPS

SPARE_REGISTERS = 24
"""Registers for addresses and constants, roughly."""
USUAL_REGISTERS = 16
"""Those that it takes, where terms are simple."""
MOST_ACCUMULATORS, MOST_VALUES = 32, 64
"""Accumulators of a thread, and values that it loads before it reduces the first, at most."""
MOST_SHARED_BYTES = 48 << 10
"""Shared memory of a block that reduces, at most."""
CHUNK, MOST_CHUNKS = 512, 128
"""A chunk of terms has about so many, where there are no more than so many chunks."""
MOST_KEYS = 1 << 20
"""Elements are in so many buckets at most as a block has threads, and have as many in each."""
L2_SECONDS = 400e-9
"""How long a load from L2 takes."""
SORT_SECONDS = 0.3e-6
"""How long a launch that sorts takes at least, besides what it takes to launch it."""
ROUND_CYCLES, BUCKET_COUNT_CYCLES, RANK_CYCLES = 3700.0, 1.8, 48.0
"""Cycles of a multiprocessor for a round in which blocks rank terms: all barriers and dependent loads, more for each
bucket, and more for each 32 terms."""
BUCKET_CYCLES, COUNTS_CYCLES = 1800.0, 2000.0
"""Cycles in which a block waits for terms of its bucket, and for counts of chunks."""
RANKING_THREADS = 768
"""How many threads a multiprocessor runs at once that rank."""
PIECES_SECONDS = 1e-6
"""How long the launch takes, besides, that finds no element with many terms."""
# These were fitted on launches of an H200 that sorted 32,768 to 1,000,000 terms into 128 to 1024 buckets. Estimates and
# times of all launches that sort differ by 15 % (standard deviation).
LEAST_PIECE, MOST_PIECES = 32, 2048
"""A piece has so many terms at least, and there are about so many pieces of a batch at most."""
SHARED_TERMS = 8192
"""Of fewer terms even a single element takes no longer than a few launches."""
PROMISING = 1.5
"""How many times as slow as the best estimate promising settings are at most."""
PROMISING_THREADS = 128
"""Threads of a block, at least."""
LINE_BYTES = 128
"""A load of a warp takes longer if it needs more lines of so many bytes than its lanes can load."""


@dataclass(frozen=True)
class ScatterPlan(GpuPlan):
    """The settings of a scatter on a target."""

    problem: ScatterProblem
    target: Target

    @property
    def _most_threads(self) -> int:
        return self.limits.threads_per_block

    @property
    def knobs(self) -> tuple[Knob, ...]:
        keys, most = self.problem.keys, self._most_threads
        buckets = tuple(n for n in (256, 128, 512, 1024) if n < keys and -(-keys // n) <= most)
        return (
            Knob(
                "buckets",
                (keys, *(n for n in buckets if keys > most)) if keys <= most else buckets,
                "how many buckets terms are sorted into first",
            ),
            Knob("vector_width", self._vector_widths, "how many neighbouring columns a thread loads at once"),
            Knob("threads_per_row", self._threads_per_row, "how many threads share the columns of an element"),
            Knob("vectors", (1, 2, 3, 4), "how many vectors of an element a thread has"),
            Knob("splits", (1, 4, 8, 32), "how many groups of threads share the terms of an element"),
            Knob("rows_per_cta", (1, 2, 4, 8, 16, 32, 64, 128), "how many elements a block reduces at once"),
            Knob("unroll", (4, 2, 8), "how many terms a thread loads before it reduces the first"),
            Knob("split_rows", (0, 1), "whether blocks share the terms of an element that has many"),
        )

    @property
    def _vector_widths(self) -> tuple[int, ...]:
        lane = self.problem.lane_axis
        most = max(1, self.target.vector_bytes // self._narrowest)
        return (*(n for n in (8, 4, 2) if lane is not None and n <= most and lane.extent % n == 0), 1)

    @property
    def _threads_per_row(self) -> tuple[int, ...]:
        return tuple(n for n in (1, 2, 4, 8, 16, 32, 64, 128, 256) if n == 1 or n < 2 * self.problem.columns)

    @property
    def _narrowest(self) -> int:
        """Bytes of an element of the narrowest tensor that a term reads along the columns, or of the result."""
        lane = self.problem.lane_axis
        loads = loads_of(self.problem.scatter.term)
        own = [e.dtype.bytes for e in loads if lane is not None and lane.name in free_variables(e)]
        return min(own, default=self.problem.scatter.stage.tensor.dtype.bytes)

    @property
    def _term_bytes(self) -> int:
        """Bytes that a term reads for each column."""
        return sum(e.dtype.bytes for e in dict.fromkeys(loads_of(self.problem.scatter.term)))

    @property
    def _chunks(self) -> int:
        return min(MOST_CHUNKS, -(-self.problem.terms // CHUNK))

    @property
    def _piece_terms(self) -> int:
        """How many terms a piece has that is a block's: a power of two, so that there are few pieces."""
        return max(LEAST_PIECE, 1 << (self.problem.terms // MOST_PIECES).bit_length())

    @derived_once
    def sizes(self, columns: Columns) -> ScatterSizes:
        p = self.problem
        buckets, width, per_row, vectors, splits, rows, unroll, shared_rows = (columns.ints(k.name) for k in self.knobs)
        threads, all_vectors = per_row * splits * rows, p.columns // width
        words = max(1, p.accumulation.accumulator_dtype.bytes // 4) * vectors * width
        row_parts = -(-all_vectors // (per_row * vectors))
        shared = np.where(splits * rows > 1, threads * words * 4, 0) + 8 * rows
        registers = SPARE_REGISTERS + words * (1 + unroll) + unroll
        return ScatterSizes(
            buckets=buckets,
            vector_width=width,
            threads_per_row=per_row,
            vectors=vectors,
            splits=splits,
            rows_per_cta=rows,
            unroll=unroll,
            piece_terms=np.where(shared_rows == 1, self._piece_terms, 0),
            chunks=np.full_like(buckets, self._chunks),
            row_parts=row_parts,
            threads=threads,
            blocks=-(-p.batches * p.keys // rows) * row_parts,
            registers=registers,
            shared_bytes=shared,
            resident=self.limits.resident_blocks(threads, registers, shared),
        )

    @property
    def constraints(self) -> tuple[Constraint, ...]:
        p = self.problem
        tile = ("vector_width", "threads_per_row", "vectors")
        rows = ("threads_per_row", "splits", "rows_per_cta")

        def no_idle_vector(c: Columns) -> Bools:
            width, per_row, vectors = (c.ints(name) for name in tile)
            all_vectors = p.columns // width
            found: Bools = ((vectors == 1) | ((vectors - 1) * per_row < all_vectors)) & (per_row < 2 * all_vectors)
            return found

        def usual_block(c: Columns) -> Bools:
            per_row, splits, per_cta = (c.ints(name) for name in rows)
            threads = per_row * splits * per_cta
            found: Bools = (threads >= WARP_LANES) & (threads <= self._most_threads)
            return found

        def few_registers(c: Columns) -> Bools:
            held = c.ints("vector_width") * c.ints("vectors")
            found: Bools = (held <= MOST_ACCUMULATORS) & (held * c.ints("unroll") <= MOST_VALUES)
            return found

        return (
            Constraint("each vector of a thread, and every second thread, has a column", tile, no_idle_vector),
            Constraint(f"a block has {WARP_LANES} to {self._most_threads} threads", rows, usual_block),
            Constraint(
                f"a thread has at most {MOST_ACCUMULATORS} accumulators and {MOST_VALUES} values of terms",
                ("vector_width", "vectors", "unroll"),
                few_registers,
            ),
            Constraint(
                "splits is at most the number of terms", ("splits",), lambda c: c.ints("splits") <= max(1, p.terms)
            ),
            Constraint(
                "blocks share the terms of an element only where there are enough for a piece",
                ("split_rows",),
                lambda c: (c.ints("split_rows") == 0) | (self._piece_terms <= p.terms),
            ),
            *self.launch_rules(MOST_SHARED_BYTES),
        )

    def promising(self, columns: Columns, peaks: Peaks) -> Bools:
        """Blocks have threads enough for an element with many more terms than those that are measured, and share its
        terms where it could take them longer than all others."""
        seconds, large = self.prior_seconds(columns, peaks), self.sizes(columns).threads >= PROMISING_THREADS
        large = large & (columns.ints("split_rows") == (self.problem.terms >= SHARED_TERMS))
        found: Bools = large & (seconds <= PROMISING * seconds.min(where=large, initial=np.inf))
        return found

    def prior_seconds(self, columns: Columns, peaks: Peaks) -> Floats:
        """All launches one after the other."""
        s, device = self.sizes(columns), gpu_peaks(self.target, peaks)
        of_sort = {int(n): self._sort_seconds(int(n), device) for n in np.unique(s.buckets)}
        seconds = np.asarray([of_sort[n] for n in s.buckets.tolist()], np.float64)
        pieces = PIECES_SECONDS + device.seconds(BLOCK_CYCLES) * self._pieces(s) * s.row_parts
        seconds = seconds + np.where(s.piece_terms > 0, device.launch_seconds + pieces, 0.0)
        return seconds + self._reduce_seconds(s, device)

    def _pieces(self, s: ScatterSizes) -> Floats:
        """Return how many pieces the terms of all batches have."""
        return np.asarray(self.problem.batches * (self.problem.terms // np.maximum(s.piece_terms, 1)), np.float64)

    def _reduce_seconds(self, s: ScatterSizes, device: GpuPeaks) -> Floats:
        """Threads wait for the bounds of an element, for numbers of terms and for these. A block takes as long as its
        longest element. Of one in pieces there are these, and a piece of other terms."""
        p, together = self.problem, s.splits * s.unroll
        of_each, piece = p.terms / p.keys, np.maximum(s.piece_terms, 1)
        in_pieces = (s.piece_terms > 0) & (of_each > 2 * piece)
        mean = np.where(in_pieces, of_each / piece + piece, of_each)
        usual = np.where(in_pieces, p.scatter.usual_length / piece + piece, p.scatter.usual_length)
        blocks = np.where(in_pieces, np.maximum(s.blocks, self._pieces(s) * s.row_parts), s.blocks)
        longest = mean + np.sqrt(2 * mean * np.log(s.rows_per_cta))
        trips = np.maximum(1 - np.exp(-mean * s.rows_per_cta), longest / together)
        slowest = 2 * np.ceil(usual / together) * LOAD_LATENCY_SECONDS
        elements, every = p.batches * p.keys * p.columns, p.batches * p.terms
        side_by_side = np.minimum(s.threads_per_row, WARP_LANES)
        lines = WARP_LANES // side_by_side * -(-side_by_side * s.vector_width * self._narrowest // LINE_BYTES)
        spread = np.maximum(1.0, lines * LINE_BYTES / (WARP_LANES * self.target.vector_bytes))
        work = every * p.columns / (s.vector_width * WARP_LANES) * spread
        held = s.vectors * s.vector_width
        registers = USUAL_REGISTERS + held + s.unroll * (1 + held * self._term_bytes / 4)
        resident = self.limits.resident_blocks(s.threads, registers.astype(np.int64), s.shared_bytes)
        waves = np.maximum(1.0, blocks / (np.maximum(resident, 1) * device.multiprocessors))
        traffic = MemoryTraffic(
            blocks=blocks,
            resident=resident,
            memory_bytes=minimum_bytes(p.workload),
            l2_bytes=every * p.columns * self._term_bytes
            + sum(b.bytes for b in p.workload.output_buffers)
            + 4 * s.row_parts * (every + p.batches * p.keys * 2),
            accesses=work * (1 + 1 / s.vectors)
            + (2 * s.splits / s.vectors + 1) * elements / (s.vector_width * WARP_LANES) * spread,
            rounds=1 + 2 * trips,
            operations=flops(p.workload),
        )
        seconds = memory_bound_seconds(device, traffic) + slowest / waves + TILE_SECONDS * blocks / self.target.threads
        return np.asarray(seconds, np.float64)

    def _sort_seconds(self, buckets: int, device: GpuPeaks) -> float:
        """Return how long the launches take that sort. All blocks that fill buckets read the counts of all chunks."""
        p, chunks, keys = self.problem, self._chunks, -(-self.problem.keys // buckets)
        warps, items = block = ranking_block(-(-p.terms // chunks), buckets, MOST_WARPS)
        rounds = -(-p.terms // (chunks * warps * items * WARP_LANES))
        shares = max(1, min(MOST_SHARES, chunks, warps * WARP_LANES * VECTOR // buckets))
        turns = -(-chunks // (shares * LOADED_COUNTS))
        cycles = 2 * rounds * self._round_cycles(p.batches * chunks, block, buckets, device)
        cycles += COUNTS_CYCLES * (1 + turns) * max(1.0, p.batches * chunks / device.multiprocessors)
        launches = 2
        if keys > 1:
            warps, items = block = ranking_block(usual_count(p.terms, buckets), keys, BUCKET_WARPS)
            rounds = -(-p.terms // (buckets * warps * items * WARP_LANES))
            passes = 1 if rounds == 1 else 2 * rounds
            cycles += passes * (BUCKET_CYCLES + self._round_cycles(p.batches * buckets, block, keys, device))
            launches += 1
        return launches * (device.launch_seconds + SORT_SECONDS) + cycles / device.clock_hz

    def _round_cycles(self, blocks: int, block: tuple[int, int], buckets: int, device: GpuPeaks) -> float:
        """Return the cycles of a round in which all blocks rank terms."""
        warps, items = block
        resident = max(1, RANKING_THREADS // (warps * WARP_LANES))
        at_once = min(float(resident), max(1.0, blocks / device.multiprocessors))
        waves = max(1.0, blocks / (resident * device.multiprocessors))
        return waves * (ROUND_CYCLES + BUCKET_COUNT_CYCLES * buckets + RANK_CYCLES * at_once * warps * items)

    def derive(self, columns: Columns) -> Derived:
        s = self.sizes(columns)
        return gpu_columns(self.target, s, wanted=s.unroll * s.vectors * s.vector_width * self._term_bytes)

    def lower(self, setting: Mapping[str, KnobValue]) -> Kernel:
        return scatter_kernel(self.problem, self.sizes_of(setting))


def _plan(workload: Workload, target: Target) -> ScatterPlan | None:
    problem = scatter_problem(workload)
    if problem is None or problem.keys > MOST_KEYS:
        return None
    return ScatterPlan(problem, target)


CUDA_SCATTER = TileSketch("cuda_scatter", 1, GPU_QUANTITIES, _plan)
