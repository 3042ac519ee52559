"""The table behind a chart. Its cells hold the API's own numbers, and the chart is drawn from them in the browser.

A template shows one with ``macros.chart(...)``. Without scripts the table is all there is; with them
``static/figures.js`` reads the raw values from the cells, draws them, and offers the table as CSV.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from markupsafe import Markup
from pydantic import BaseModel

from .formatting import DASH, count_figure, digits, duration_figure, figure, moment, seconds_figure

Cell = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class ChartColumn:
    """One column of a chart's table.

    ``field`` is where a row of the API has the value: a key, or keys with ``/`` between them. ``form`` says how people
    read it: ``text``, ``words`` (text whose underscores are spaces), ``id``, ``moment``; or what is drawn: ``count``,
    ``number``, ``seconds`` (of a kernel), ``duration`` (of a clock on the wall), ``percent`` (of a fraction). ``unit``
    follows a ``number``. ``href`` is where a cell leads, with fields of the row in braces. ``none`` stands where there
    is no value.
    """

    field: str
    title: str
    form: str = "number"
    unit: str = ""
    href: str = ""
    none: str = ""

    @property
    def is_text(self) -> bool:
        return self.form in ("text", "words", "id", "moment")

    def shown(self, value: Cell) -> Markup | str:
        """Return a value as people read it."""
        if value is None:
            return self.none or DASH
        if self.form == "moment":
            return moment(str(value))
        if self.is_text or isinstance(value, str):
            return str(value).replace("_", " ") if self.form == "words" else str(value)
        return _FORMS[self.form](value, self.unit)


_FORMS: dict[str, Callable[[float, str], Markup]] = {
    "count": lambda value, unit: count_figure(int(value), unit),
    "number": lambda value, unit: figure(f"{value:,}" if isinstance(value, int) else digits(value), unit),
    "seconds": lambda value, _: seconds_figure(value),
    "duration": lambda value, _: duration_figure(value),
    "percent": lambda value, _: figure(digits(100 * value, 3), "%"),
}


@dataclass(frozen=True, slots=True)
class ChartTable:
    """Rows that a chart is drawn from. ``api`` is the address of the API that answers with the same rows, and ``at`` is
    the JSON pointer of their list in that answer."""

    api: str
    at: str
    columns: tuple[ChartColumn, ...]
    rows: tuple[Mapping[str, object], ...]

    @classmethod
    def of(cls, api: str, at: str, columns: Iterable[ChartColumn], rows: Iterable[BaseModel]) -> "ChartTable":
        """Return the table of rows that are models of the API."""
        return cls(api, at, tuple(columns), tuple(row.model_dump(mode="json") for row in rows))

    def cells(self, row: Mapping[str, object]) -> list[tuple[ChartColumn, Cell, str]]:
        """Return the columns with the value of a row, and where its cell leads."""
        return [(column, _at(row, column.field), column.href.format_map(row)) for column in self.columns]


def _at(row: object, path: str) -> Cell:
    for name in path.split("/"):
        row = row.get(name) if isinstance(row, Mapping) else None
    assert row is None or isinstance(row, str | int | float | bool)
    return row
