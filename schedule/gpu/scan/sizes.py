"""How the lines of a scan are shared out among threads, and what a thread block takes of a multiprocessor.

A CTA takes one or several whole lines, chunk by chunk. A chunk is as much of them as its threads hold in registers:

    lines that are rows         row 0 |-- segment of warp 0 --|-- segment of warp 1 --|-- ... |  threads_per_row threads
                                       item 0: a vector of each lane, item 1: a vector of each lane, ...
    lines that are columns      thread (x, y) has vector x of the columns, and the y-th ``items`` rows of the chunk

A segment is what the lanes of one warp have of a line in a chunk. Segments are scanned each by itself; every thread
then adds what is before its segment. Few long lines are shared by several CTAs (``LineSplit``), each of which takes
some of the chunks.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

import numpy as np

from ....core.target import Target
from ....ir.expr import WARP_LANES
from ...problems.scan import ScanProblem
from ...space.columns import Columns, Ints
from ..occupancy import limits_of

N = TypeVar("N", int, Ints)
"""A number of one setting, or a column of the numbers of many settings."""

SPARE_REGISTERS = 26
"""Roughly how many registers a thread needs for addresses and prefixes (from compiled kernels)."""
SHARING_REGISTERS = 12
"""How many more it needs where CTAs share lines (kernels with fewer spill), apart from those for lines that are
columns."""
LOOK_BACK_WINDOW = 256
"""So many chunks a CTA looks back for in a single pass, or a few more if its threads are. With fewer, windows that wait
for each other would take longer than memory. The interpreter runs no more CTAs at once."""
LOOK_BACK_REGISTERS = 20
"""How many more it needs for values of 64 bits with decoupled look-back."""


class LineSplit(StrEnum):
    """How several CTAs share a line.

    - ``NONE``: they do not.
    - ``REDUCE_THEN_SCAN``: each has neighbouring chunks. A launch before the scan reduces them, so that what is read is
      read twice.
    - ``COOPERATIVE``: all CTAs run at once. Each has one of as many neighbouring chunks as there are CTAs, meets the
      others at the barrier of the grid, and has one of the next chunks. Everything is read once.
    - ``DECOUPLED_LOOKBACK``: the same, but a CTA waits for the sums of the chunks before its own instead of for all
      CTAs (Merrill and Garland, "Single-pass parallel prefix scan with decoupled look-back", 2016). It adds up as many
      of them each time, one for each other CTA, so that results are the same in every run.
    - ``SINGLE_PASS``: the same with a CTA for each chunk, which begin in their order. It adds up the sums of a window
      of chunks before its own, of which the first is that of all chunks until there. A launch before clears the flags.
    """

    NONE = "none"
    REDUCE_THEN_SCAN = "reduce_then_scan"
    COOPERATIVE = "cooperative"
    DECOUPLED_LOOKBACK = "decoupled_lookback"
    SINGLE_PASS = "single_pass"


@dataclass(frozen=True, slots=True, eq=False)
class ScanSizes(Generic[N]):
    """The sizes of one setting (N is int), or of many (N is a column of them).

    ``vector``: elements of one memory access. ``items``: vectors of a chunk that a thread has. ``line_threads``:
    threads that share a line. ``line_vectors``: lines (rows), or vectors of lines (columns), that a CTA takes next to
    each other. ``stages``: 2 where the next chunk is loaded while one is scanned. ``segments``: parts of a chunk of a
    line that are combined through shared memory. ``chunk``: elements of a line in a chunk. ``chunks``: how many of them
    a CTA has of a line. ``ctas_per_line``: how many CTAs share a line. ``cooperative``: whether (1 or 0) all of them
    run at once. ``look_back``: whether CTAs wait for sums with flags. ``window``: how many of them a CTA adds up where
    they do not all run at once. ``blocks``: CTAs of the launch. ``registers``: registers of a thread, estimated.
    ``shared_bytes``: shared memory of a CTA. ``min_ctas_per_sm``: CTAs for which a multiprocessor must have room.
    """

    vector: N
    items: N
    line_threads: N
    line_vectors: N
    stages: N
    segments: N
    chunk: N
    chunks: N
    ctas_per_line: N
    cooperative: N
    look_back: N
    window: N
    blocks: N
    registers: N
    shared_bytes: N
    min_ctas_per_sm: N

    @property
    def single_pass(self) -> N:
        """Whether (1 or 0) CTAs look back that do not all run at once."""
        return self.look_back - self.look_back * self.cooperative

    @property
    def threads(self) -> N:
        """Threads of a CTA."""
        return self.line_threads * self.line_vectors


def scan_sizes(problem: ScanProblem, target: Target, c: Columns) -> ScanSizes[Ints]:
    """Return the sizes of many settings."""
    limits = limits_of(target)
    vector, items, stages = c.ints("vector_width"), c.ints("items"), c.ints("stages")
    one = np.ones_like(vector)
    if problem.along_rows:
        line_threads, line_vectors = c.ints("threads_per_row"), c.ints("rows_per_cta")
        segments, width = np.maximum(line_threads // WARP_LANES, 1), one
        chunk, lines = line_threads * items * vector, one * problem.lines
    else:
        line_threads, line_vectors = c.ints("threads_y"), c.ints("threads_x")
        segments, width = -(-line_threads // np.maximum(WARP_LANES // line_vectors, 1)), vector
        chunk, lines = line_threads * items, problem.lines // vector
    groups = -(-lines // line_vectors)
    ctas_per_sm, whole = c.ints("ctas_per_sm"), c.flags("line_split", LineSplit.NONE.value)
    single = c.flags("line_split", LineSplit.SINGLE_PASS.value)
    look_back = single | c.flags("line_split", LineSplit.DECOUPLED_LOOKBACK.value)
    cooperative = (look_back & ~single) | c.flags("line_split", LineSplit.COOPERATIVE.value)
    all_chunks = -(-problem.length // chunk)
    most_ctas = np.where(whole, 1, np.maximum(target.threads * ctas_per_sm // groups, 1))
    most_ctas = np.where(single, all_chunks, most_ctas)
    chunks = -(-all_chunks // most_ctas)
    ctas_per_line = np.where(whole, 1, -(-all_chunks // chunks))
    words = -(-problem.accumulation.accumulator_dtype.bytes // 4)
    loaded = sum(-(-m.load.dtype.bytes * vector // 4) for m in problem.body_loads)
    later = sum(-(-m.load.dtype.bytes * vector // 4) for m in problem.later_loads)
    values = items * vector * words
    # What is loaded ahead is held beside the values of a chunk, which otherwise take its place.
    registers = SPARE_REGISTERS + np.maximum(values, items * loaded) + (stages - 1) * items * loaded
    registers = registers + later + 2 * words * (vector + width) + (items * words if problem.along_rows else 0)
    of_columns = 0 if problem.along_rows else 3 * words * width
    registers = registers + np.where(whole, 0, SHARING_REGISTERS + of_columns)
    registers = registers + np.where(look_back, LOOK_BACK_REGISTERS * (words - 1), 0)
    slots = np.where(chunks > 1, 2, 1) + np.where(whole, 0, 1)
    cell = words * 4
    shared_bytes = np.where(segments > 1, slots * segments * line_vectors * width * cell, 0)
    ctas = groups * ctas_per_line
    # The compiler is held to fewer CTAs than fit by the estimate, lest it spills where that is too low.
    surely = limits.resident_blocks(line_threads * line_vectors, registers + SPARE_REGISTERS, shared_bytes)
    needed = np.maximum(np.minimum(surely, -(-ctas // target.threads)), 1)
    return ScanSizes(
        vector=vector,
        items=items,
        line_threads=line_threads,
        line_vectors=line_vectors,
        stages=stages,
        segments=segments,
        chunk=chunk,
        chunks=chunks,
        ctas_per_line=ctas_per_line,
        cooperative=cooperative.astype(np.int64),
        look_back=look_back.astype(np.int64),
        window=-(-LOOK_BACK_WINDOW // line_threads) * line_threads,
        blocks=ctas,
        registers=registers,
        shared_bytes=shared_bytes,
        min_ctas_per_sm=np.where(cooperative, ctas_per_sm, needed),
    )
