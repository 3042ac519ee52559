"""The verifier's rules for values with flags."""

from collections.abc import Callable
from typing import Any

from ...core.dtypes import DType, int64
from ..buffer import Buffer, MemoryScope
from ..expr import Expr
from ..gpu.flagged import WORD_BITS, FlaggedLoad, FlaggedPeek, FlaggedStore, flagged_words
from ..stmt import Operation
from .operands import check_contiguous, check_element, check_fragment
from .types import BoundNames, RuleBroken, type_of


def _store(stmt: FlaggedStore, names: BoundNames) -> None:
    dtype, lanes = type_of(stmt.value, names)
    if lanes != 1:
        raise RuleBroken("lanes", f"{lanes} values are stored with one flag in {stmt.target.name}")
    _check_words(stmt.target, stmt.target_indices, dtype, names)


def _load(stmt: FlaggedLoad, names: BoundNames) -> None:
    check_element(stmt.target, stmt.target_indices, names, MemoryScope.REGISTER)
    _check_words(stmt.source, stmt.source_indices, stmt.target.dtype, names)
    if stmt.peeked is not None:
        _check_peeked(stmt.peeked, stmt.peeked_indices, flagged_words(stmt.target.dtype), names)


def _peek(stmt: FlaggedPeek, names: BoundNames) -> None:
    _check_peeked(stmt.target, stmt.target_indices, stmt.words, names)
    check_element(stmt.source, stmt.source_indices, names, MemoryScope.GLOBAL)
    check_contiguous(stmt.source, stmt.words)
    if stmt.source.dtype != int64:
        raise RuleBroken("operation", f"words of {stmt.source.name} of {stmt.source.dtype}; {int64} is needed")


def _check_peeked(registers: Buffer, indices: tuple[Expr, ...], words: int, names: BoundNames) -> None:
    check_element(registers, indices, names, MemoryScope.REGISTER)
    check_fragment(registers, indices, words)
    if registers.dtype != int64:
        raise RuleBroken("operation", f"words in registers {registers.name} of {registers.dtype}; {int64} is needed")


def _check_words(words: Buffer, indices: tuple[Expr, ...], dtype: DType, names: BoundNames) -> None:
    if dtype.bits not in (WORD_BITS, 2 * WORD_BITS):
        raise RuleBroken("operation", f"a {dtype} with a flag; a value has 32 or 64 bits")
    check_element(words, indices, names, MemoryScope.GLOBAL)
    if words.dtype != int64:
        raise RuleBroken("operation", f"values with flags in {words.name} of {words.dtype}; {int64} is needed")
    check_contiguous(words, flagged_words(dtype))


FLAGGED_RULES: dict[type[Operation], Callable[[Any, BoundNames], None]] = {
    FlaggedStore: _store,
    FlaggedLoad: _load,
    FlaggedPeek: _peek,
}
"""What the operations on values with flags take."""
