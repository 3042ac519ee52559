"""Where the rows of a tile begin, in an input and in shared memory.

Row ``j`` of an input begins at ``sum(step * (j // rows))`` elements for all pairs (rows, step) of its ``TileRows``. The
first pair has ``rows`` 1, and its step is the pitch. A further pair stands for each further axis that the rows run
over, unless the rows go on at the same pitch there.

A row that begins anywhere in memory is copied by aligned chunks as it is, if the rows in shared memory begin at the
same places modulo a chunk. So each step in shared memory is congruent to that of the input.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from ....ir.expr import WARP_LANES, Expr, index
from ....ir.linear_form import LinearForm
from ....te.workload import Axis
from ...problems.permute import Permute
from ...space.columns import Size
from ...tile.masked_loads import MaskedLoad

WIDEST_BYTES = 16
"""Bytes of the widest access."""
BANKS = 32
"""Banks of shared memory."""
BANK_WORD_BYTES = 4
"""Bytes of a word of a bank."""


@dataclass(frozen=True, slots=True)
class TileRows:
    """The steps from row to row: (rows, elements after each so many rows), columns for a space, plain ints for one
    setting."""

    steps: tuple[tuple[int, Size], ...]

    def begin(self, row: Expr, period: int) -> Expr:
        """Return where ``row`` begins, which may be negative, down to ``-period``. ``period`` is a multiple of the
        rows of all steps."""
        total = index(0)
        for rows, step in self.steps:
            if int(step):
                number = row if rows == 1 else (row + period) // rows - period // rows
                total = total + number * int(step)
        return total

    def most(self, rows: Size) -> Size:
        """Return the most elements from the begin of a row to that of the row which comes ``rows`` later, in shared
        memory."""
        return sum((step * (rows if unit == 1 else (rows - 1) // unit + 1) for unit, step in self.steps), start=0)


def input_rows(offset: LinearForm, axes: Sequence[Axis]) -> TileRows:
    """Return where the rows of an input begin that are numbered along ``axes``, the last of which is the fastest.
    ``offset`` is the offset of an element of the input."""
    steps: list[tuple[int, Size]] = []
    rows, expected = 1, 0
    for axis in reversed(axes):
        step = offset.coefficient(axis.name)
        if not steps or step != expected:
            steps.append((rows, step - expected))
        rows, expected = rows * axis.extent, step * axis.extent
    return TileRows(tuple(steps))


@dataclass(frozen=True, slots=True)
class ColumnReads:
    """How warps read the columns of a tile: each lane so many rows that make 16 bytes, aligned in the output.
    ``element_bytes``: of the input. ``vector``: rows of a lane. ``output_pitch``: elements from a column to the next in
    the output."""

    element_bytes: int
    vector: int
    output_pitch: int

    def best_pitch(self, least: int, chunk: int) -> int:
        """Return the pitch of rows with the fewest conflicts: ``least`` or so many chunks more."""
        widest = WIDEST_BYTES // self.element_bytes
        return min(range(least, least + widest, chunk), key=lambda pitch: _conflicts(self, pitch))


def column_reads(problem: Permute, masked: MaskedLoad) -> ColumnReads:
    """Return how the tile of an input is read to be stored to the first output."""
    tensor = problem.stages[0].tensor
    pitch = tensor.strides[problem.axes.index(problem.input_axes[-1])]
    return ColumnReads(masked.load.dtype.bytes, max(1, WIDEST_BYTES // tensor.dtype.bytes), pitch)


@cache
def _conflicts(reads: ColumnReads, pitch: int) -> int:
    """Return the most words of one bank that a warp asks for at once: 8 lanes in each of 4 columns."""
    words = set()
    for lane in range(WARP_LANES):
        vector, column = lane % 8, lane // 8
        row = (vector + 1) * reads.vector - column * reads.output_pitch % reads.vector
        words.add((row * pitch + column) * reads.element_bytes // BANK_WORD_BYTES)
    return max(Counter(word % BANKS for word in words).values())


def shared_rows(rows: TileRows, reads: ColumnReads, tile_in: Size, chunk: Size) -> TileRows:
    """Return where the rows of a tile of ``tile_in`` columns begin in shared memory, if they are copied by chunks of
    ``chunk`` elements. No two rows share a chunk. Of the pitches that are possible then, up to a widest chunk more than
    the least, it is the one that spreads the ``reads`` best over the banks."""
    (_, step), *further = rows.steps
    least = tile_in + chunk + (step - tile_in - chunk) % chunk
    keys, place = np.unique(np.stack([np.ravel(least), np.ravel(chunk)]), axis=1, return_inverse=True)
    found = np.array([reads.best_pitch(int(a), int(b)) for a, b in keys.T])[np.ravel(place)]
    pitch = found if np.ndim(least) else int(found[0])
    return TileRows(((1, pitch), *((n, step % chunk) for n, step in further)))


def shared_lead(rows: TileRows, alignment: Size, chunk: Size) -> Size:
    """Return the elements of whole chunks that ``alignment`` rows take."""
    return -(-rows.most(alignment) // chunk) * chunk


def shared_elements(rows: TileRows, tile_out: Size, alignment: Size, chunk: Size) -> Size:
    """Return the elements of a tile of ``tile_out`` rows with ``alignment`` rows in front, wherever in a chunk the
    first row begins."""
    return shared_lead(rows, alignment, chunk) + -(-rows.most(tile_out) // chunk) * chunk + chunk
