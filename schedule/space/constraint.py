"""Constraints: rules over the columns of some knobs that say which settings can be built and are correct."""

from collections.abc import Callable
from dataclasses import dataclass

from .columns import Bools, Columns


@dataclass(frozen=True, slots=True)
class Constraint:
    """One rule that every legal setting keeps.

    ``knobs`` names the knobs that the rule reads: the fewer they are, the earlier the enumeration can drop settings.
    ``holds`` takes columns in which at least those knobs are set and returns bool[n]. ``meaning`` is a whole sentence
    that an error message shows when a schedule breaks the rule.
    """

    meaning: str
    knobs: tuple[str, ...]
    holds: Callable[[Columns], Bools]
