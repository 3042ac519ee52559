"""What a suite is given and what it returns."""

import json
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Result:
    """``rows``: one JSON object each, with at least ``row``; ``summary``: the figures that the suite is about.

    ``passed``: whether every bar that the suite states was met. ``device`` and ``toolchain`` as far as they matter.
    """

    rows: tuple[Mapping[str, object], ...]
    summary: Mapping[str, object]
    passed: bool
    settings: Mapping[str, object] = field(default_factory=dict)
    device: Mapping[str, object] = field(default_factory=dict)
    toolchain: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Options:
    """The command line. ``rows``: a glob over row names; ``trials``: per row; ``extra``: what ``--set`` gave.

    A suite of long rows hands ``keep`` the result of the rows so far, so that a run that is killed leaves them."""

    rows: str = "*"
    trials: int | None = None
    seed: int = 0
    extra: Mapping[str, str] = field(default_factory=dict)
    keep: Callable[[Result], None] = lambda so_far: None

    def chosen(self, rows: Mapping[str, T]) -> dict[str, T]:
        """Return the rows whose names match. Raises NoRows where there are none."""
        found = {name: row for name, row in rows.items() if fnmatch(name, self.rows)}
        if not found:
            raise NoRows(f"no row matches {self.rows!r}, a glob; there are {', '.join(rows)}")
        return found


class NoRows(ValueError):
    """A glob that no row of a suite matches."""


Suite = Callable[[Options], Result]
Row = dict[str, object]


def kept_result(rows: Iterable[Row], judge: Callable[[list[Row]], Result], options: Options) -> Result:
    """Return what ``judge`` makes of all rows. It judges those so far after each one, for ``options.keep``."""
    found: list[Row] = []
    for row in rows:
        found.append(row)
        options.keep(judge(found))
    return judge(found)


@dataclass(frozen=True, slots=True)
class Parts:
    """The rows of several results of one suite as one table. ``about``: what each of the parts says of its run."""

    rows: list[Row]
    summaries: list[Mapping[str, Any]]
    device: Mapping[str, object]
    toolchain: Mapping[str, str]
    about: list[Mapping[str, object]]


def joined(order: Sequence[str], paths: str, is_measured: Callable[[Row], bool]) -> Parts:
    """Return the measured rows of results in files, complete or not, in the order of ``order``. ``paths`` has commas
    between. Raises ValueError where they repeat a row or have one that is not in ``order``, or are of several suites,
    devices or toolchains."""
    parts = [json.loads(Path(path).read_text()) for path in paths.split(",")]
    rows = [row for part in parts for row in part["rows"] if is_measured(row)]
    names = [row["row"] for row in rows]
    if len(set(names)) < len(names):
        raise ValueError(f"rows that more than one part has: {sorted({n for n in names if names.count(n) > 1})}")
    if unknown := sorted(set(names) - set(order)):
        raise ValueError(f"rows that the table does not have: {unknown}")
    for what in ("suite", "toolchain"):
        if any(part[what] != parts[0][what] for part in parts):
            raise ValueError(f"parts that differ in their {what}: {[part[what] for part in parts]}")
    if len({part["device"]["name"] for part in parts}) > 1:
        raise ValueError(f"parts from several devices: {[part['device']['name'] for part in parts]}")
    kept = ("command", "commit", "started", "settings", "device")
    return Parts(
        sorted(rows, key=lambda row: order.index(row["row"])),
        [part["summary"] for part in parts],
        parts[0]["device"],
        parts[0]["toolchain"],
        [{name: part[name] for name in kept} for part in parts],
    )


def spread(times: Sequence[float]) -> float:
    """Return the distance between the quartiles, relative to the median."""
    low, middle, high = np.percentile(times, [25, 50, 75])
    return float((high - low) / middle)


def printed(rows: Iterable[Row]) -> Iterator[Row]:
    """Yield the rows, each printed as a line of JSON."""
    for row in rows:
        print(json.dumps(row), flush=True)
        yield row


def commit() -> str:
    """Return the commit of this checkout, with ``+`` when files other than results and recorded tables differ from
    it."""
    here = Path(__file__).parent
    found = subprocess.run(["git", "rev-parse", "HEAD"], cwd=here, capture_output=True, text=True).stdout.strip()
    made = [f":(exclude,top)benchmarks/{name}" for name in ("results", "data")]
    status = ["git", "status", "--porcelain", "--", ":/", *made]
    changed = subprocess.run(status, cwd=here, capture_output=True, text=True).stdout.strip()
    return (found or "unknown") + ("+" if changed else "")
