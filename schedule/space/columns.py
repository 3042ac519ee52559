"""Many settings at once: the columns that formulas over a space work on."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import wraps
from typing import Any, ParamSpec, TypeAlias, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from ...core.errors import IllegalSchedule
from ...core.schedule import KnobValue, Schedule
from .knob import Knob

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Derived: TypeAlias = Mapping[str, Ints | Floats]
"""The derived columns of settings by name, [n] each."""
Size: TypeAlias = Any
"""A field of a record of derived sizes: int64[n] in the record of many settings, int in that of one setting."""

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, eq=False)
class Columns:
    """``codes``: int[n, knobs]. ``defaults``: what a knob that is left out stands for."""

    knobs: tuple[Knob, ...]
    codes: NDArray[np.int16]
    defaults: Mapping[str, KnobValue]
    _derived: list[tuple[tuple[object, ...], object]] = field(default_factory=list, init=False, repr=False)

    def __len__(self) -> int:
        return len(self.codes)

    def ints(self, name: str) -> Ints:
        """Return the values of a numeric knob, int64[n]."""
        for position, knob in enumerate(self.knobs):
            if knob.name == name:
                return np.array(knob.values, dtype=np.int64)[self.codes[:, position]]
        return np.full(len(self), self.defaults[name], dtype=np.int64)

    def named(self, *names: str) -> dict[str, Ints]:
        """Return the values of some numeric knobs by name, int64[n] each."""
        return {name: self.ints(name) for name in names}

    def flags(self, name: str, value: KnobValue) -> Bools:
        """Return where a knob has the value, bool[n]."""
        for position, knob in enumerate(self.knobs):
            if knob.name == name:
                return np.array([v == value for v in knob.values])[self.codes[:, position]]
        return np.full(len(self), self.defaults[name] == value)

    @property
    def plainest(self) -> Bools:
        """Where every knob has its first value, bool[n]."""
        found: Bools = (self.codes == 0).all(axis=1)
        return found

    def kept(self, rows: Bools) -> "Columns":
        return Columns(self.knobs, self.codes[rows], self.defaults)


def derived_once(derive: Callable[P, R]) -> Callable[P, R]:
    """Let ``derive(..., columns)`` be worked out once for the same objects: every constraint, the prior and the derived
    columns want the sizes of the same settings. ``columns`` keep what was derived from them last."""

    @wraps(derive)
    def remembered(*args: P.args, **kwargs: P.kwargs) -> R:
        columns = cast(Columns, args[-1])
        key = (derive, *args[:-1])
        for known, found in columns._derived:
            if len(known) == len(key) and all(a is b for a, b in zip(known, key, strict=True)):
                return cast(R, found)
        found = derive(*args, **kwargs)
        columns._derived[:] = [(key, found)]
        return found

    return remembered


def completed(knobs: Sequence[Knob], setting: Mapping[str, KnobValue]) -> dict[str, KnobValue]:
    """Return the setting with all knobs, in their order. A knob that it does not name has its first value, so that
    schedules outlive the addition of a knob."""
    return {**{knob.name: knob.values[0] for knob in knobs}, **setting}


def codes_of(knobs: Sequence[Knob], schedules: Sequence[Schedule]) -> NDArray[np.int16]:
    """Return the code of each knob in each schedule, int16[n, knobs].

    A knob that a schedule does not name has its first value (``completed``). Raises IllegalSchedule for an unknown
    knob, and for a value that a knob has not.
    """
    codes = np.zeros((len(schedules), len(knobs)), dtype=np.int16)
    names = [k.name for k in knobs]
    for row, schedule in enumerate(schedules):
        given = completed(knobs, dict(schedule.knobs))
        if unknown := set(given) - set(names):
            raise IllegalSchedule(
                f"unknown knobs: {', '.join(sorted(unknown))}; this workload has {', '.join(sorted(names))}",
                field="/schedule/knobs",
            )
        for position, knob in enumerate(knobs):
            value = given[knob.name]
            found = [i for i, v in enumerate(knob.values) if v == value and type(v) is type(value)]
            if not found:
                allowed = ", ".join(map(str, knob.values))
                raise IllegalSchedule(
                    f"knob {knob.name} is {value!r}; allowed here: {allowed}", field=f"/schedule/knobs/{knob.name}"
                )
            codes[row, position] = found[0]
    return codes


def columns_of_setting(
    knobs: tuple[Knob, ...], setting: Mapping[str, KnobValue], defaults: Mapping[str, KnobValue] | None = None
) -> Columns:
    """Return the columns of one setting, with one row. Raises IllegalSchedule like ``codes_of``."""
    return Columns(knobs, codes_of(knobs, [Schedule.of("", 0, setting)]), defaults or {})


def row_of_record(record: R, row: int) -> R:
    """``record``, a dataclass whose fields are columns, with the entry of ``row`` as a plain int in place of each."""
    assert is_dataclass(record) and not isinstance(record, type)
    found = {f.name: getattr(record, f.name) for f in fields(record)}
    return replace(record, **{name: int(v[row]) for name, v in found.items() if isinstance(v, np.ndarray)})
