"""Compares every number that a page shows with what the API says of the same row.

A page says where its numbers come from (``api/templates/macros.html``): an element ``data`` has the raw value and a
JSON pointer into the answer of the nearest ``data-api``; a table behind a chart has raw values in cells, with the
address of its rows. Numbers that say nothing of the kind are reported, but for those that grow while one looks.
"""

import re
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import httpx2
import pytest
from playwright.sync_api import Page

COLLECT = r"""() => {
  const api = (element) => element.closest("[data-api]")?.dataset.api ?? null;
  const numbers = [...document.querySelectorAll("main data[data-field]")].map((element) => ({
    ...element.dataset, value: element.value, text: element.innerText, nearest: api(element),
  }));
  const tables = [...document.querySelectorAll("main table.numbers[data-api]")].map((table) => ({
    api: table.dataset.api, at: table.dataset.at,
    fields: [...table.tHead.rows[0].cells].map((cell) => cell.dataset.field),
    rows: [...table.tBodies[0].rows].map((row) => [...row.cells].map((cell) => cell.dataset.value)),
  }));
  const loose = [...document.querySelectorAll("main .num")]
    .filter((element) => !element.closest("data[data-field], td[data-value], [data-live], summary, #source"))
    .map((element) => element.parentElement.innerText);
  return { numbers, tables, loose };
}"""
UNITS = {
    "s": 1.0, "ms": 1e-3, "µs": 1e-6, "ns": 1e-9, "%": 0.01, "GFLOP/s": 1e9, "GB/s": 1e9, "KiB": 1024.0, "MiB": 2.0**20,
    "GiB": 2.0**30, "GHz": 1e9,
}  # fmt: skip
SIMPLE = re.compile(r"(-?[\d,.]+(?:e[+-]?\d+)?)(?: (\S+))?")


@dataclass
class Compared:
    """Counts what was compared."""

    numbers: int = 0
    cells: int = 0


def compare(page: Page, http: httpx2.Client) -> Compared:
    """Check every number of the page that is open."""
    found = page.evaluate(COLLECT)
    answers: dict[str, Any] = {}

    def answer(address: str) -> Any:
        if address not in answers:
            response = http.get(address)
            assert response.status_code == 200, (address, response.text)
            answers[address] = response.json()
        return answers[address]

    assert found["loose"] == [], f"{page.url} has numbers that do not say where they come from"
    for number in found["numbers"]:
        there = answer(number.get("fieldApi") or number["nearest"])
        value = at(there, number["field"])
        if "since" in number:
            value = (moment(value) - moment(at(there, number["since"]))).total_seconds()
        if "over" in number:
            value /= at(answer(number.get("overApi") or number["nearest"]), number["over"])
        where = (page.url, number)
        if isinstance(value, str):
            assert number["value"] == value, where
            continue
        assert float(number["value"]) == pytest.approx(value, rel=1e-9, abs=1e-12), where
        shown = SIMPLE.fullmatch(number["text"].replace("\xa0", " ").strip())
        if shown is not None and shown[2] != "min" and shown[2] != "h":
            read = float(shown[1].replace(",", "")) * UNITS.get(shown[2] or "", 1.0)
            assert read == pytest.approx(value, rel=0.02, abs=0.06), where
    cells = 0
    for table in found["tables"]:
        rows = at(answer(table["api"]), table["at"])
        assert len(rows) == len(table["rows"]), (page.url, table["api"])
        for row, shown_row in zip(rows, table["rows"], strict=True):
            for field, shown_value in zip(table["fields"], shown_row, strict=True):
                value = at(row, "/" + field)
                cells += 1
                if isinstance(value, str) or value is None:
                    assert shown_value == (value or shown_value), (table["api"], field)
                    assert value is not None or not re.fullmatch(r"[-\d.e]+", shown_value)
                else:
                    # two sums of the same rows may differ in their last bits
                    assert float(shown_value) == pytest.approx(value, rel=1e-9), (table["api"], field)
    return Compared(len(found["numbers"]), cells)


def moment(text: str) -> datetime:
    return datetime.fromisoformat(text)


def at(value: Any, pointer: str) -> Any:
    """Follow a JSON pointer. ``[name=value]`` finds the entry of a list; a list at the end is counted, or folded by
    what follows ``?``: ``min`` and ``max`` of its numbers, ``sum`` of an object's numbers, ``count`` of its entries,
    ``sum=NAME`` and ``distinct=NAME`` of a field of its entries; ``ready`` counts units that take tasks."""
    path, _, fold = pointer.partition("?")
    for part in path.strip("/").split("/"):
        name, _, rest = part.partition("[")
        value = value[int(name)] if isinstance(value, list) else value.get(name)
        if rest:
            key, _, wanted = rest.rstrip("]").partition("=")
            value = next(entry for entry in value if entry[key] == wanted)
    if fold == "ready":
        return sum(unit["state"] == "ready" and unit["seen"] for unit in value)
    fold, _, name = fold.partition("=")
    if name:
        found = [entry[name] for entry in value]
        return sum(found) if fold == "sum" else len(set(found))
    if fold == "sum":
        return sum(value.values())
    if fold == "count":
        return len(value)
    if fold:
        return min(value) if fold == "min" else max(value)
    return len(value) if isinstance(value, list) and path.count("/") and not _is_rows(value) else value


def _is_rows(value: list[Any]) -> bool:
    return bool(value) and isinstance(value[0], dict) and "uuid" not in value[0]
