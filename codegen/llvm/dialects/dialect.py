"""What counting instructions needs to know of an assembly language."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

Classify = Callable[[str, str], str]
"""(mnemonic, operands) -> class."""


@dataclass(frozen=True, slots=True)
class AsmDialect:
    """``comment``: what begins one. ``mask``: what operands under a mask contain."""

    classify: Classify
    comment: str
    mask: re.Pattern[str]


def first_match(rules: Sequence[tuple[str, str]]) -> Callable[[str], str]:
    """Mnemonic -> the class of the first of ``rules`` (class, pattern of whole mnemonics) that matches, else other."""
    compiled = tuple((name, re.compile(pattern)) for name, pattern in rules)

    def find(mnemonic: str) -> str:
        return next((name for name, pattern in compiled if pattern.fullmatch(mnemonic)), "other")

    return find
