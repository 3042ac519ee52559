"""A schedule: small readable data, never code."""

from collections.abc import Mapping
from dataclasses import dataclass

from .errors import InvalidParameter
from .keys import canonical_json, content_key
from .renamed import current

KnobValue = int | str


@dataclass(frozen=True, slots=True)
class Schedule:
    """One setting of one sketch's knobs. ``version`` is the sketch's, so that old records stay readable."""

    sketch: str
    version: int
    knobs: tuple[tuple[str, KnobValue], ...]

    @classmethod
    def of(cls, sketch: str, version: int, knobs: Mapping[str, KnobValue]) -> "Schedule":
        return cls(sketch, version, tuple(knobs.items()))

    def __getitem__(self, knob: str) -> KnobValue:
        for name, value in self.knobs:
            if name == knob:
                return value
        raise InvalidParameter(
            f"schedule of {self.sketch} has no knob {knob!r}; it has {', '.join(n for n, _ in self.knobs)}",
            field=knob,
        )

    def integer(self, knob: str) -> int:
        value = self[knob]
        if not isinstance(value, int):
            raise InvalidParameter(f"knob {knob} is {value!r}, not a whole number", field=knob)
        return value

    def to_json(self) -> dict[str, object]:
        return {"sketch": self.sketch, "version": self.version, "knobs": dict(self.knobs)}

    @classmethod
    def from_json(cls, data: object) -> "Schedule":
        """Return a schedule under today's names (``core.renamed``), whatever names it was written with.

        Raises InvalidParameter for anything but ``{sketch, version, knobs}`` with plain values.
        """
        if not isinstance(data, Mapping) or set(data) != {"sketch", "version", "knobs"}:
            raise InvalidParameter("a schedule is an object with sketch, version and knobs", field="/schedule")
        sketch, version, knobs = data["sketch"], data["version"], data["knobs"]
        if not isinstance(sketch, str) or type(version) is not int or not isinstance(knobs, Mapping):
            raise InvalidParameter("sketch is a name, version a whole number, knobs an object", field="/schedule")
        for name, value in knobs.items():
            if not isinstance(name, str) or type(value) not in (int, str):
                raise InvalidParameter(
                    f"knob {name!r} is {value!r}; allowed: whole numbers and strings", field=f"/schedule/knobs/{name}"
                )
        return cls(*current(sketch, version, knobs))

    @property
    def key(self) -> str:
        """Independent of the order in which the knobs stand."""
        return content_key(self.to_json())

    def __str__(self) -> str:
        return f"{self.sketch}@{self.version} " + canonical_json(dict(self.knobs))
