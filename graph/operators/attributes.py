"""Domains of attributes beyond those of ``te.operators.parameter``, and what many operators have."""

import math
from dataclasses import dataclass

from ...core.dtypes import DTYPES
from ...te.limits import MAX_EXTENT, MAX_RANK
from ...te.operators.parameter import Choice, Integer, ListOf, Parameter, Values

MOST = (1 << 62) - 1


@dataclass(frozen=True, slots=True)
class Real:
    """Numbers, "inf" and "-inf", and "nan" where ``nan`` says so."""

    nan: bool = False

    @property
    def _names(self) -> tuple[str, ...]:
        return ("inf", "-inf", "nan") if self.nan else ("inf", "-inf")

    def schema(self) -> dict[str, object]:
        return {"anyOf": [{"type": "number"}, {"enum": list(self._names)}]}

    def allowed(self) -> str:
        return ", ".join(["numbers", *(f'"{name}"' for name in self._names)])

    def holds(self, value: object) -> bool:
        if isinstance(value, str):
            return value in self._names
        return isinstance(value, int | float) and (isinstance(value, bool | int) or math.isfinite(value))


def real(values: Values, name: str) -> float:
    """Return the value of an attribute whose domain is ``Real``."""
    value = values.values[name]
    assert isinstance(value, str | int | float)
    return value if isinstance(value, int) else float(value)


def real_json(value: float) -> float | str:
    """``value`` as an attribute whose domain is ``Real``."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


DTYPE = Parameter("dtype", "the dtype of the result", Choice(tuple(DTYPES)))
DIMENSION = Integer(0, MAX_RANK - 1)
EXTENT = Integer(0, MAX_EXTENT)
SHAPE = Parameter("shape", "the shape of the result", ListOf(EXTENT, 0, MAX_RANK))
DIMENSIONS = ListOf(DIMENSION, 0, MAX_RANK, unique=True)
WHOLE = Integer(-MOST, MOST)
