"""What users of shape families give and are shown."""

from collections.abc import Mapping
from dataclasses import dataclass

from ..core.schedule import Schedule
from ..search.families.family import Family
from ..search.families.shapes import Dimension, check_dimensions


@dataclass(frozen=True, slots=True)
class FamilySpec:
    """Says what a family is to be. ``parameters`` of the operator stay the same, and ``ranges`` (name, low, high, step)
    are of those that vary. It has at most ``most`` schedules, and ``target_regret`` is a mean regret that is good
    enough."""

    name: str
    operator: str
    parameters: Mapping[str, object]
    ranges: tuple[tuple[str, int, int, int], ...]
    most: int = 8
    target_regret: float = 0.02

    @property
    def dimensions(self) -> tuple[Dimension, ...]:
        """The ranges, checked. Raises InvalidParameter."""
        found = tuple(Dimension(*one) for one in self.ranges)
        check_dimensions(found)
        return found


@dataclass(frozen=True, slots=True)
class FamilyView:
    """Shows a family, and the conditions of the records that it was made from."""

    name: str
    operator: str
    parameters: Mapping[str, object]
    device_key: str
    toolchain_key: str
    profile: str
    target_regret: float
    created_at: str
    family: Family


@dataclass(frozen=True, slots=True)
class FamilyChoice:
    """Shows the schedule of a family for one shape."""

    parameters: Mapping[str, object]
    place: int
    schedule: Schedule
