"""Single values that blocks of a cooperative launch hand to each other, each with a flag in the same word of memory.

Nobody waits for all others, as at the barrier of the grid, but for the values that it needs (the tile descriptors of
decoupled look-back in CUB, the LL protocol of NCCL). A word has 32 bits of a value, and above them its flag: a value of
32 bits takes one word, one of 64 bits takes two. The words of a launch hold 0 at first:

    store 0 to the words
    GridBarrierArrive()
    ...                     # work that needs no value
    GridBarrierWait()
    FlaggedStore(words, at, value)          # by one thread, once
    FlaggedLoad(register, (), words, at)    # by any thread

Nothing else that a block wrote is seen by who has loaded its value.
"""

from dataclasses import dataclass

from ...core.dtypes import DType
from ..buffer import Buffer
from ..expr import Expr
from ..stmt import Operation

WORD_BITS = 32
"""Bits of a value in a word."""
FLAG = 1 << WORD_BITS
"""The flag of a word that has been stored."""


@dataclass(frozen=True, slots=True)
class FlaggedStore(Operation):
    """Stores ``value``, of 32 or 64 bits, to the words of ``target`` that begin at ``target_indices``, with their
    flags."""

    target: Buffer
    target_indices: tuple[Expr, ...]
    value: Expr


@dataclass(frozen=True, slots=True)
class FlaggedLoad(Operation):
    """Waits until the words of ``source`` that begin at ``source_indices`` have flags, and loads their value to the
    register ``target[target_indices]``."""

    target: Buffer
    target_indices: tuple[Expr, ...]
    source: Buffer
    source_indices: tuple[Expr, ...]


def flagged_words(dtype: DType) -> int:
    """Return how many words a value takes."""
    return -(-dtype.bits // WORD_BITS)
