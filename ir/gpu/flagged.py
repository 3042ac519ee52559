"""Single values that blocks of a launch hand to each other, each with a flag in the same word of memory.

Nobody waits for all others, as at the barrier of the grid, but for the values that it needs (the tile descriptors of
decoupled look-back in CUB, the LL protocol of NCCL). A word has 32 bits of a value, and above them its flag: a value of
32 bits takes one word, one of 64 bits takes two. The words of a launch hold 0 at first:

    store 0 to the words
    GridBarrierArrive()
    ...                     # work that needs no value
    GridBarrierWait()
    FlaggedStore(words, at, value)          # by one thread, once
    FlaggedLoad(register, at, words, at)    # by any thread

A thread that needs several values asks for all of them with ``FlaggedPeek``, before it waits for the first one.

In a launch that is not cooperative a block may wait for blocks of lower numbers alone, which begin before it does, and
an earlier launch clears the words.

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
MOST_PEEKED = 8
"""So many words a thread peeks at in kernels here, each of which takes two registers."""


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
    register ``target[target_indices]``. ``peeked``: registers that have these words as they were before; those that had
    a flag are not loaded again."""

    target: Buffer
    target_indices: tuple[Expr, ...]
    source: Buffer
    source_indices: tuple[Expr, ...]
    peeked: Buffer | None = None
    peeked_indices: tuple[Expr, ...] = ()


@dataclass(frozen=True, slots=True)
class FlaggedPeek(Operation):
    """Loads ``words`` words of ``source`` to registers from ``target[target_indices]`` on, with or without flags."""

    target: Buffer
    target_indices: tuple[Expr, ...]
    source: Buffer
    source_indices: tuple[Expr, ...]
    words: int


def peek(load: FlaggedLoad) -> FlaggedPeek:
    """Return what loads the words that ``load`` looks at first."""
    assert load.peeked is not None
    words = flagged_words(load.target.dtype)
    return FlaggedPeek(load.peeked, load.peeked_indices, load.source, load.source_indices, words)


def flagged_words(dtype: DType) -> int:
    """Return how many words a value takes."""
    return -(-dtype.bits // WORD_BITS)
