"""What counting instructions needs to know of an assembly language."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

Classify = Callable[[str, str], str]
"""Takes a mnemonic and its operands, and returns a class."""


@dataclass(frozen=True, slots=True)
class AsmDialect:
    """An assembly language. ``comment`` begins a comment; ``mask`` matches operands under a mask."""

    classify: Classify
    comment: str
    mask: re.Pattern[str]


def first_match(rules: Sequence[tuple[str, str]]) -> Callable[[str], str]:
    """Return a function from a mnemonic to a class: that of the first of ``rules`` (class, pattern of whole
    mnemonics) that matches, else "other". The patterns are compiled when it is first called: every process loads all
    dialects, and few count instructions."""

    @cache
    def compiled() -> tuple[tuple[str, re.Pattern[str]], ...]:
        return tuple((name, re.compile(pattern)) for name, pattern in rules)

    def find(mnemonic: str) -> str:
        return next((name for name, pattern in compiled() if pattern.fullmatch(mnemonic)), "other")

    return find
