"""What a suite is given and what it returns."""

import json
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path


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


Suite = Callable[[Options], Result]
Row = dict[str, object]


def kept_result(rows: Iterable[Row], judge: Callable[[list[Row]], Result], options: Options) -> Result:
    """Return what ``judge`` makes of all rows. It judges those so far after each one, for ``options.keep``."""
    found: list[Row] = []
    for row in rows:
        found.append(row)
        options.keep(judge(found))
    return judge(found)


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
