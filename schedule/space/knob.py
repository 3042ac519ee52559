"""Knobs, and the derived quantities that describe a setting of them."""

from dataclasses import dataclass

from ...core.schedule import KnobValue


@dataclass(frozen=True, slots=True)
class Knob:
    """A named, ordered set of values, all whole numbers or all strings. ``most_promising``: how many of its first
    values are worth a measurement; None means all. Pruning drops settings with the others."""

    name: str
    values: tuple[KnobValue, ...]
    meaning: str
    most_promising: int | None = None

    def to_json(self) -> dict[str, object]:
        return {"name": self.name, "values": list(self.values), "meaning": self.meaning}


@dataclass(frozen=True, slots=True)
class Quantity:
    """A derived column of a space: what a setting implies, such as the bytes of a tile. ``unit`` is its unit."""

    name: str
    unit: str
    meaning: str
