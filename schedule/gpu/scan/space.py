"""Describes the settings of scans: how many threads share a line, and how much of it they hold in registers at a
time."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ....core.schedule import KnobValue
from ....core.target import Target
from ....ir.expr import WARP_LANES
from ....ir.stmt import Kernel
from ...problems.scan import ScanProblem, scan_problem
from ...sketch import Peaks
from ...space.columns import Bools, Columns, Derived, Floats, Ints, derived_once
from ...space.constraint import Constraint
from ...space.knob import Knob, Quantity
from ...tile_sketch import TileSketch, planned
from ..occupancy import MOST_BLOCKS
from ..peaks import gpu_peaks
from ..plan import GpuPlan
from ..quantities import GPU_QUANTITIES, gpu_columns
from .kernel import scan_kernel
from .prior import SECTOR_BYTES, contiguous_bytes, held_share, scan_seconds
from .sizes import LineSplit, ScanSizes, scan_sizes

MAX_VECTOR_BYTES = 16
"""Bytes of the widest access of the hardware."""
MOST_HELD = 32
"""Registers of a thread for the elements of a chunk, at most: with more, too few threads run at once."""
SLOWER_SHARED = 1.3
"""Settings whose CTAs share lines are left out where they are estimated to take so many times as long as the best."""
LARGEST_SHARED = 512
"""So many threads a CTA has at most where CTAs share columns."""

QUANTITIES = (
    *GPU_QUANTITIES,
    Quantity("contiguous_bytes", "B", "how much of memory a warp reads at once in one piece"),
    Quantity("chunks", "chunks", "how many chunks of its lines a block scans one after the other"),
    Quantity("ctas_per_line", "CTAs", "how many blocks share a line"),
    Quantity("segments", "segments", "how many parts of a chunk of a line are combined through shared memory"),
    Quantity("idle_share", "fraction", "the share of the elements of all chunks that do not exist"),
)


@dataclass(frozen=True)
class ScanPlan(GpuPlan):
    """The settings of a scan on a target."""

    problem: ScanProblem
    target: Target

    @property
    def knobs(self) -> tuple[Knob, ...]:
        vector = Knob(
            "vector_width", self.problem.vectors(MAX_VECTOR_BYTES), "how many elements a thread reads at once", 2
        )
        items = Knob("items", (1, 2, 4, 8, 16, 32), "how many vectors of a chunk a thread has in registers")
        stages = Knob("stages", (1, 2), "how many chunks of its lines a thread has in registers or on their way")
        if self.problem.along_rows:
            shape = (
                Knob("threads_per_row", (1, 2, 4, 8, 16, *_POWERS), "how many threads of a CTA share a row"),
                Knob("rows_per_cta", (1, 2, 4, 8, 16, *_POWERS), "how many rows a CTA works on at a time"),
            )
        else:
            shape = (
                Knob("threads_x", (4, 8, 16, 32, 64, 128), "how many threads of a CTA are next to each other in a row"),
                Knob("threads_y", (1, 2, 4, 8, 16, 32, 64, 128), "how many threads of a CTA share a column"),
            )
        together = (LineSplit.COOPERATIVE, LineSplit.DECOUPLED_LOOKBACK, LineSplit.SINGLE_PASS)
        splits = tuple(s.value for s in LineSplit if self.target.kind == "cuda" or s not in together)
        split = (
            Knob("line_split", splits, "how several CTAs share a line"),
            Knob("ctas_per_sm", _CTAS_PER_SM, "how many CTAs a multiprocessor has where lines are shared"),
        )
        return (vector, *shape, items, stages, *split)

    @derived_once
    def sizes(self, columns: Columns) -> ScanSizes[Ints]:
        return scan_sizes(self.problem, self.target, columns)

    @property
    def _shape(self) -> tuple[str, str]:
        return ("threads_per_row", "rows_per_cta") if self.problem.along_rows else ("threads_y", "threads_x")

    @property
    def constraints(self) -> tuple[Constraint, ...]:
        shared, across = self._shape
        return (
            Constraint(
                f"{shared} times {across} is a whole number of warps, and at most 1024",
                self._shape,
                lambda c: _is_block(c.ints(shared) * c.ints(across)),
            ),
            Constraint(
                "half as many threads or items would not hold the whole line",
                ("vector_width", shared, "items"),
                self._no_larger_than_lines,
            ),
            Constraint(
                f"half of {across} would not hold all lines",
                ("vector_width", *self._shape),
                lambda c: self._no_wider_than_lines(c, across),
            ),
            Constraint(
                "ctas_per_sm is 1 where CTAs do not share lines, and with line_split single_pass",
                ("line_split", "ctas_per_sm"),
                lambda c: (
                    ~(c.flags("line_split", LineSplit.NONE.value) | c.flags("line_split", LineSplit.SINGLE_PASS.value))
                    | (c.ints("ctas_per_sm") == 1)
                ),
            ),
            Constraint(
                "where CTAs share lines a line has several of them, each of which would have more chunks with the next "
                "smaller ctas_per_sm",
                (*self._chunked, across),
                self._is_shared_out,
            ),
            self.rule(
                "stages is 1 where a CTA has one chunk of a line",
                (*self._chunked, across, "stages"),
                lambda s: (s.stages == 1) | (s.chunks > 1),
            ),
            self.rule(
                "registers and shared memory of a multiprocessor have room for a CTA, and for ctas_per_sm of them with "
                "line_split cooperative and decoupled_lookback",
                (*self._chunked, across, "stages"),
                lambda s: self.limits.resident(s) >= np.where(s.cooperative == 1, s.min_ctas_per_sm, 1),
            ),
            Constraint(
                "a launch has at most 2^31 - 1 blocks",
                ("vector_width", across),
                lambda c: -(-self._line_vectors(c) // c.ints(across)) <= MOST_BLOCKS,
            ),
        )

    @property
    def _chunked(self) -> tuple[str, ...]:
        """The knobs that say how many chunks a CTA has of a line, but for how many lines it has next to each other."""
        return ("vector_width", self._shape[0], "items", "line_split", "ctas_per_sm")

    def _is_shared_out(self, c: Columns) -> Bools:
        s = self.sizes(Columns(c.knobs, c.codes, {**c.defaults, "stages": 1}))  # which makes no difference
        fewer = np.array([0, *_CTAS_PER_SM])[np.searchsorted(_CTAS_PER_SM, c.ints("ctas_per_sm"))]
        most = self.target.threads * fewer // (s.blocks // s.ctas_per_line)
        distinct = (most == 0) | (-(-self.problem.length // s.chunk) > s.chunks * most)
        whole = c.flags("line_split", LineSplit.NONE.value)
        found: Bools = whole | ((s.ctas_per_line > 1) & distinct)
        return found

    def _line_vectors(self, c: Columns) -> Ints:
        """Lines, or vectors of lines, that threads take next to each other."""
        whole = np.full(len(c), self.problem.lines)
        return whole if self.problem.along_rows else whole // c.ints("vector_width")

    def _no_larger_than_lines(self, c: Columns) -> Bools:
        threads, items = c.ints(self._shape[0]), c.ints("items")
        step = c.ints("vector_width") if self.problem.along_rows else 1
        least = WARP_LANES if self.problem.along_rows and self.problem.lines == 1 else 1
        fewer_threads = (threads <= least) | (threads // 2 * step < self.problem.length)
        fewer_items = (items == 1) | (threads * (items // 2) * step < self.problem.length)
        found: Bools = fewer_threads & fewer_items
        return found

    def _no_wider_than_lines(self, c: Columns, across: str) -> Bools:
        count, shared = c.ints(across), c.ints(self._shape[0])
        needed = (count // 2 < self._line_vectors(c)) | (count * shared <= WARP_LANES)
        first = next(k.values[0] for k in self.knobs if k.name == across)
        found: Bools = needed | (count == first)
        return found

    def promising(self, columns: Columns, peaks: Peaks) -> Bools:
        """Blocks of 128 threads and more, with a few vectors each; a second stage where blocks are few. CTAs share
        lines, each of which has a CTA's whole threads, where that is estimated not to be slower."""
        s, p = self.sizes(columns), self.problem
        held = s.items * s.vector * p.accumulation.accumulator_dtype.bytes // 4
        good = (s.threads >= min(128, p.lines * p.length)) & (held <= MOST_HELD)
        good &= (held >= 4) | (s.chunks == 1)
        good &= contiguous_bytes(p, s) >= min(SECTOR_BYTES, p.lane_axis.extent * min(p.element_bytes))
        shared = s.ctas_per_line > 1
        good &= ~shared | ((s.line_vectors == 1) if p.along_rows else (s.threads <= LARGEST_SHARED))
        seconds = self.prior_seconds(columns, peaks)
        best, best_whole = (seconds[rows].min(initial=np.inf) for rows in (good, good & ~shared))
        good &= ~shared | (seconds <= min(SLOWER_SHARED * best, best_whole))
        return good

    def prior_seconds(self, columns: Columns, peaks: Peaks) -> Floats:
        return scan_seconds(self.problem, self.sizes(columns), self.limits, gpu_peaks(self.target, peaks))

    def derive(self, columns: Columns) -> Derived:
        s, p = self.sizes(columns), self.problem
        return {
            **gpu_columns(
                self.target, s, wanted=s.items * s.vector * s.stages * sum(m.load.dtype.bytes for m in p.body_loads)
            ),
            "contiguous_bytes": contiguous_bytes(p, s),
            "chunks": s.chunks,
            "ctas_per_line": s.ctas_per_line,
            "segments": s.segments,
            "idle_share": 1 - 1 / held_share(p, s),
        }

    def lower(self, setting: Mapping[str, KnobValue]) -> Kernel:
        return scan_kernel(self.problem, self.sizes_of(setting))


_POWERS = (32, 64, 128, 256, 512, 1024)
_CTAS_PER_SM = (1, 2, 3, 4, 6, 8, 16)


def _is_block(threads: Ints) -> Bools:
    found: Bools = (threads % WARP_LANES == 0) & (threads <= 1024)
    return found


CUDA_SCAN = TileSketch("cuda_scan", 2, QUANTITIES, planned(scan_problem, ScanPlan))
AMDGPU_SCAN = TileSketch("amdgpu_scan", 2, QUANTITIES, planned(scan_problem, ScanPlan), kind="amdgpu")
