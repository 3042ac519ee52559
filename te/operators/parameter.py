"""Parameters of operators: what each may be, as a JSON schema and as a check that names it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from ...core.errors import InvalidParameter
from ..limits import MAX_EXTENT, MAX_RANK


class Domain(Protocol):
    """The values a parameter may take."""

    def schema(self) -> dict[str, object]:
        """As JSON schema."""
        ...

    def allowed(self) -> str:
        """In words, for an error."""
        ...

    def holds(self, value: object) -> bool:
        """Return whether ``value`` (as read from JSON) is one of them."""
        ...


@dataclass(frozen=True, slots=True)
class Integer:
    """Whole numbers from ``low`` to ``high``."""

    low: int = 1
    high: int = MAX_EXTENT

    def schema(self) -> dict[str, object]:
        return {"type": "integer", "minimum": self.low, "maximum": self.high}

    def allowed(self) -> str:
        return f"whole numbers {self.low} to {self.high}"

    def holds(self, value: object) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and self.low <= value <= self.high


@dataclass(frozen=True, slots=True)
class Number:
    """Numbers from ``low`` to ``high``."""

    low: float
    high: float

    def schema(self) -> dict[str, object]:
        return {"type": "number", "minimum": self.low, "maximum": self.high}

    def allowed(self) -> str:
        return f"numbers {self.low} to {self.high}"

    def holds(self, value: object) -> bool:
        if not isinstance(value, int | float) or isinstance(value, bool):
            return False
        return (isinstance(value, int) or math.isfinite(value)) and self.low <= value <= self.high


@dataclass(frozen=True, slots=True)
class Choice:
    """One of some words."""

    words: tuple[str, ...]

    def schema(self) -> dict[str, object]:
        return {"type": "string", "enum": list(self.words)}

    def allowed(self) -> str:
        return ", ".join(self.words)

    def holds(self, value: object) -> bool:
        return isinstance(value, str) and value in self.words


@dataclass(frozen=True, slots=True)
class Flag:
    """Yes or no."""

    def schema(self) -> dict[str, object]:
        return {"type": "boolean"}

    def allowed(self) -> str:
        return "true, false"

    def holds(self, value: object) -> bool:
        return isinstance(value, bool)


@dataclass(frozen=True, slots=True)
class ListOf:
    """``shortest`` to ``longest`` values of one domain."""

    item: Domain
    shortest: int = 1
    longest: int = MAX_RANK
    unique: bool = False

    def schema(self) -> dict[str, object]:
        schema: dict[str, object] = {
            "type": "array",
            "items": self.item.schema(),
            "minItems": self.shortest,
            "maxItems": self.longest,
        }
        return {**schema, "uniqueItems": True} if self.unique else schema

    def allowed(self) -> str:
        different = " different" if self.unique else ""
        return f"a list of {self.shortest} to {self.longest}{different} items, each of: {self.item.allowed()}"

    def holds(self, value: object) -> bool:
        if not isinstance(value, list | tuple) or not self.shortest <= len(value) <= self.longest:
            return False
        return all(self.item.holds(v) for v in value) and not (self.unique and len(set(value)) < len(value))


@dataclass(frozen=True, slots=True)
class Parameter:
    """A named value an operator is built from; required when ``default`` is None."""

    name: str
    meaning: str
    domain: Domain
    default: object = None

    @property
    def required(self) -> bool:
        return self.default is None

    def schema(self) -> dict[str, object]:
        schema = {**self.domain.schema(), "description": self.meaning}
        if not self.required:
            schema["default"] = list(self.default) if isinstance(self.default, tuple) else self.default
        return schema

    def read(self, given: Mapping[str, object]) -> object:
        """Return the value in ``given``, or the default; raises InvalidParameter naming this parameter."""
        if self.name not in given:
            if self.required:
                raise InvalidParameter(f"{self.name} is missing; allowed: {self.domain.allowed()}", field=self.name)
            return self.default
        value = given[self.name]
        if not self.domain.holds(value):
            raise InvalidParameter(f"{self.name} is {shown(value)}; allowed: {self.domain.allowed()}", field=self.name)
        return tuple(value) if isinstance(value, list | tuple) else value


def shown(value: object) -> str:
    """``value`` as it stands in an error, however large it is."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10**20:
        return "a huge number"
    text = ascii(value)
    return text if len(text) <= 60 else text[:57] + "..."


@dataclass(frozen=True, slots=True)
class Values:
    """The parameters of one operator, all present and each in its domain, read by type."""

    values: Mapping[str, object]

    def integer(self, name: str) -> int:
        value = self.values[name]
        assert isinstance(value, int)
        return value

    def number(self, name: str) -> float:
        value = self.values[name]
        assert isinstance(value, int | float)
        return float(value)

    def text(self, name: str) -> str:
        return str(self.values[name])

    def flag(self, name: str) -> bool:
        return bool(self.values[name])

    def integers(self, name: str) -> tuple[int, ...]:
        value = self.values[name]
        assert isinstance(value, tuple)
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        value = self.values[name]
        assert isinstance(value, tuple)
        return value


def dtype_parameter(*names: str, default: str = "float32") -> Parameter:
    """Return the parameter ``dtype`` that every operator has."""
    return Parameter("dtype", "element type of the inputs", Choice(names), default)


FLOATS = ("float64", "float32", "float16", "bfloat16")
NUMBERS = (*FLOATS, "int8", "uint8", "int32", "int64")
EVERY = (*NUMBERS, "bool")
