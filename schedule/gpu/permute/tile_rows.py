"""Where the rows of a tile begin, in an input and in shared memory.

Row ``j`` begins at ``sum(step * (j // rows))`` elements for all pairs (rows, step) of its ``RowSteps``. The first pair
has ``rows`` 1, and its step is the pitch. A further pair stands for each further axis that the rows run over, unless
the rows go on at the same pitch there.

Rows that begin anywhere in memory are copied by aligned chunks as they are, if each row begins at the same place of a
chunk in shared memory. So all steps in shared memory are congruent to those of the input, modulo a chunk.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np

from ....ir.expr import WARP_LANES, Expr, index
from ....ir.linear_form import LinearForm
from ...problems.permute import Permute
from ...space.columns import Size
from ...tile.load_analysis import flat_offset
from ...tile.masked_loads import MaskedLoad

WIDEST_BYTES = 16
"""Bytes of the widest access."""
BANKS = 32
"""Banks of shared memory."""
BANK_WORD_BYTES = 4
"""Bytes of a word of a bank."""
VECTORS_OF_LINE = 8
"""Vectors of 16 bytes in a cache line, which neighbouring lanes store."""


@dataclass(frozen=True, slots=True)
class RowSteps:
    """The steps from row to row: (rows, elements after each so many rows). The elements are columns for a space, plain
    ints for one setting."""

    steps: tuple[tuple[int, Size], ...]

    def begin(self, row: Expr, period: int) -> Expr:
        """Return where ``row`` begins, which is ``-period`` or more. ``period`` is a multiple of the rows of all
        steps."""
        total: Expr = index(0)
        for rows, step in self.steps:
            if step:
                number = row if rows == 1 else (row + period) // rows - period // rows
                total = total + number * step
        return total

    def begin_by_axes(self, row: Expr, period: int) -> Expr:
        """Return the same as a sum over the axes that rows run over, in which no part is larger than the input."""
        total: Expr = index(0)
        stride, known = 0, 1
        for n, (rows, step) in enumerate(self.steps):
            stride, known = stride * (rows // known) + step, rows
            number = row if len(self.steps) == 1 else (row + period) // rows
            if n + 1 < len(self.steps):
                number = number % (self.steps[n + 1][0] // rows)
            elif len(self.steps) > 1:
                number = number - period // rows
            total = total + number * stride
        return total

    def most(self, rows: Size) -> Size:
        """Return the most elements from the begin of a row to that of the row which comes ``rows`` later, in shared
        memory."""
        return sum((step * (rows if unit == 1 else (rows - 1) // unit + 1) for unit, step in self.steps), start=0)


def input_offset(masked: MaskedLoad) -> LinearForm:
    """Return the offset in its input of the element that ``masked`` loads."""
    offset = flat_offset(masked.load)
    assert offset is not None  # see ``permute_of``
    return offset


def input_rows(problem: Permute, masked: MaskedLoad) -> RowSteps:
    """Return where the rows of an input begin that are numbered along the output's axes."""
    offset = input_offset(masked)
    steps: list[tuple[int, Size]] = []
    rows, expected = 1, 0
    for axis in reversed(problem.output_axes):
        step = offset.coefficient(axis.name)
        if not steps or step != expected:
            steps.append((rows, step - expected))
        rows, expected = rows * axis.extent, step * axis.extent
    return RowSteps(tuple(steps))


def tile_rows(problem: Permute, masked: MaskedLoad, tile_in: Size, chunk: Size) -> RowSteps:
    """Return where the rows of a tile of ``tile_in`` columns begin in shared memory, if they are copied by chunks of
    ``chunk`` elements. No two rows share a chunk. Of the pitches that are possible then, up to 16 bytes more than the
    least, it is the one with the fewest bank conflicts."""
    (_, step), *further = input_rows(problem, masked).steps
    reads, least = _column_reads(problem, masked), tile_in + chunk + (step - tile_in - chunk) % chunk
    pitch = _for_each(reads.best_pitch, least, chunk)
    return RowSteps(((1, pitch), *((rows, step % chunk) for rows, step in further)))


def shared_lead(rows: RowSteps, alignment: Size, chunk: Size) -> Size:
    """Return the elements of whole chunks that ``alignment`` rows take."""
    return -(-rows.most(alignment) // chunk) * chunk


def shared_elements(rows: RowSteps, tile_out: Size, alignment: Size, chunk: Size) -> Size:
    """Return the elements of a tile of ``tile_out`` rows with ``alignment`` rows in front, wherever in a chunk the
    first row begins."""
    return shared_lead(rows, alignment, chunk) + -(-rows.most(tile_out) // chunk) * chunk + chunk


def bank_conflicts(problem: Permute, masked: MaskedLoad, pitch: Size, pack: Size) -> Size:
    """Return the most words of one bank that a warp asks for at once when it reads aligned columns of a tile whose rows
    are ``pitch`` elements apart and ``pack`` to a word."""
    reads = _column_reads(problem, masked)
    return _for_each(lambda *of_tile: _conflicts(reads, *of_tile), pitch, pack)


@dataclass(frozen=True, slots=True)
class _ColumnReads:
    """How a warp reads columns of a tile: each lane so many rows that they make 16 bytes, which are aligned in the
    output. ``element_bytes``: of the input. ``vector``: rows of a lane. ``output_pitch``: elements in the output from a
    column to the next."""

    element_bytes: int
    vector: int
    output_pitch: int

    def best_pitch(self, least: int, chunk: int) -> int:
        """Return the pitch of rows with the fewest conflicts: ``least``, or some chunks more."""
        widest = WIDEST_BYTES // self.element_bytes
        return min(range(least, least + widest, chunk), key=lambda pitch: _conflicts(self, pitch))


def _column_reads(problem: Permute, masked: MaskedLoad) -> _ColumnReads:
    tensor = problem.stages[0].tensor
    pitch = tensor.strides[problem.axes.index(problem.input_axes[-1])]
    return _ColumnReads(masked.load.dtype.bytes, max(1, WIDEST_BYTES // tensor.dtype.bytes), pitch)


@cache
def _conflicts(reads: _ColumnReads, pitch: int, pack: int = 1) -> int:
    words = set()
    for lane in range(WARP_LANES):
        column, vector = divmod(lane, VECTORS_OF_LINE)
        row = (vector + 1) * reads.vector - column * reads.output_pitch % reads.vector
        element = row // pack * pitch + column * pack + row % pack
        words.add(element * reads.element_bytes // BANK_WORD_BYTES)
    return max(Counter(word % BANKS for word in words).values())


def _for_each(function: Callable[[int, int], int], a: Size, b: Size) -> Size:
    """Return ``function`` of two numbers, or of each pair of two columns."""
    pairs, place = np.unique(np.stack([np.ravel(a), np.ravel(b)]), axis=1, return_inverse=True)
    found = np.array([function(int(first), int(second)) for first, second in pairs.T], np.int64)[np.ravel(place)]
    return found if np.ndim(a) else int(found[0])
