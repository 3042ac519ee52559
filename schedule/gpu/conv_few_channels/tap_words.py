"""In which order the taps and channels of a window are multiplied.

With few channels, what a window sees of a row of pixels is a short run of contiguous elements. A *word* is what a
register holds of it: one element of 32 bits, or two of 16 bits that begin at an even place, which are one load from
shared memory. A run of 9 elements of 16 bits is 5 words, of which the last or the first has another element, too::

    window at an even place     0 1   2 3   4 5   6 7   8 x
    window at an odd place      x 0   1 2   3 4   5 6   7 8

Where windows begin at even and at odd places, pixels of one parity are multiplied together, with filters in that
order. Since any order of k will do, the whole words of all runs come first, and then the *partial* ones, so that most
registers need no mask. What is no element of the run is replaced by zero, since an infinity times 0 is a NaN.
"""

from dataclasses import dataclass
from math import prod

from ....ir.expr import Expr, Select, index, minimum
from ....te.functions import equal
from ...problems.gemm import Gemm
from ...problems.image_window import ImageWindow
from ..conv_mma.sizes import warp_atom


@dataclass(frozen=True, slots=True)
class Word:
    """The word number ``word`` of what a window sees of row number ``row`` of its taps. ``first``: the number of its
    first element in that run, which may be -1. ``exists``: on which condition it is such a word; None: always."""

    row: Expr
    word: Expr
    first: Expr
    exists: Expr | None


@dataclass(frozen=True, slots=True)
class TapWords:
    """How the taps of ``window`` are words of ``unit`` elements."""

    window: ImageWindow
    unit: int

    @property
    def run(self) -> int:
        """How many elements a window sees of a row."""
        return self.window.taps[-1] * self.window.channels

    @property
    def rows(self) -> int:
        """How many rows a window sees."""
        return prod(self.window.taps[:-1])

    @property
    def step(self) -> int:
        """How many elements neighbouring windows are apart."""
        return self.window.strides[-1] * self.window.channels

    @property
    def parities(self) -> int:
        """How many pixels there are until a window begins at the same place of a word again."""
        return self.unit if self.step % self.unit else 1

    @property
    def fronts(self) -> tuple[int, ...]:
        """How many elements of the first word lie before the run, for each parity."""
        first = self.window.lower[-1] * self.window.channels
        return tuple((first + parity * self.step) % self.unit for parity in range(self.parities))

    @property
    def words(self) -> int:
        """How many words of a row are multiplied: those that the runs of any parity have."""
        return max(-(-(front + self.run) // self.unit) for front in self.fronts)

    @property
    def whole(self) -> int:
        """How many words of a row are whole, at every parity."""
        return min((front + self.run) // self.unit - -(-front // self.unit) for front in self.fronts)

    @property
    def partial(self) -> int:
        """How many words of a row may have other elements, too."""
        return self.words - self.whole

    @property
    def count(self) -> int:
        """How many words a window has."""
        return self.rows * self.words

    def is_masked(self, first: int, count: int) -> bool:
        """Return whether some of ``count`` words from number ``first`` on may have elements that are none of a run."""
        return first + count > self.rows * self.whole

    def word(self, number: Expr, first: int, count: int, parity: Expr) -> Word:
        """Return the word with a number that is one of ``count`` from ``first`` on, of windows with this parity."""
        whole = self.rows * self.whole
        begins = [-(-front // self.unit) for front in self.fronts]
        front = _by_parity(self.fronts, parity)
        found = list[tuple[Expr, Expr]]()
        exists = None
        if first < whole:
            inside = number if first + count <= whole else minimum(number, index(whole - 1))
            found.append((inside // self.whole, inside % self.whole + _by_parity(begins, parity)))
        if first + count > whole:
            partial, most = number - whole, self.rows * max(self.partial, 1)
            exists = number < self.count if first + count > self.count else None
            place = partial % self.partial if self.partial > 1 else index(0)
            # with a partial word ahead of the whole ones, the next one is behind them
            step = _by_parity([self.whole + 1 if begin else 1 for begin in begins], parity)
            word = place * step + _by_parity([0 if begin else self.whole for begin in begins], parity)
            row = minimum(partial, index(most - 1)) // max(self.partial, 1)
            found.append((row, word))
        (row, word), *others = found
        for other_row, other_word in others:
            row = Select(number < whole, row, other_row)
            word = Select(number < whole, word, other_word)
        return Word(row, word, word * self.unit - front, exists)


def _by_parity(values: tuple[int, ...] | list[int], parity: Expr) -> Expr:
    """Return one of two numbers, or the only one."""
    if len(set(values)) == 1:
        return index(values[0])
    return Select(equal(parity, 0), index(values[0]), index(values[1]))


def tap_words(gemm: Gemm) -> TapWords:
    """Return how the taps of a convolution are words."""
    atom = warp_atom(gemm)
    assert atom is not None and gemm.window is not None
    return TapWords(gemm.window, atom.register_elements)
