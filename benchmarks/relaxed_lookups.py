"""Whether the expected loss of relaxed look-ups is honest, on recorded tables; no device.

A pair is: asked for a shape or a device whose table is A, served the fastest schedule of table B that A has, too. The
true loss is its time in A over the least time in A, less 1. The stated loss is what ``service.expected_loss`` makes of
the database without A. Products on one GPU differ in shape (``benchmarks/data``), kernels of the hub in device
(``benchmarks/hub``).

Two databases are looked at: one that knows whole tables, and one that knows what searches have found: ``--trials``
settings of each table (default 200), drawn at random, and there the fastest ones of the other tables, as warm searches
do. In that one "the least time" of a held-out pair is the least that was found, while the true loss knows the table.
One row for each pair that was not seen before.

Bars: the 90 % intervals hold 85 to 95 % of the true losses, of 200 pairs at least; and the median of the stated losses
is within 0.02 of the median of the true ones.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path
from statistics import median

from benchmarks.suite import Options, Result
from tilewright.core.errors import InvalidParameter
from tilewright.core.schedule import Schedule
from tilewright.core.streams import stream
from tilewright.core.trial import Timed
from tilewright.search.recorded import read_table
from tilewright.service.expected_loss import Pair, estimate

HERE = Path(__file__).parent
TRIALS = 200
FEWEST_PAIRS, COVERED, MOST_APART = 200, (0.85, 0.95), 0.02
Times = Mapping[Schedule, float]
"""Seconds by schedule."""


def run(options: Options) -> Result:
    tables = _tables()
    rows: list[dict[str, object]] = []
    seen: set[tuple[str, str, Schedule]] = set()
    searched = {
        operator: _searched(times, options.trials or TRIALS, options.seed) for operator, times in tables.items()
    }
    for name, database in (("whole", tables), ("searched", searched)):
        for row in _stated(name, database, tables):
            key = (str(row["asked"]), str(row["served"]), row.pop("schedule"))
            if key not in seen and fnmatch(str(row["row"]), options.rows):
                seen.add(key)  # type: ignore[arg-type]
                rows.append(row)
    if not rows:
        raise InvalidParameter(f"no pair is called {options.rows!r}", field="rows")
    groups = {"all": rows}
    for name in ("parts", "operator", "database"):
        for value in sorted({str(row[name]) for row in rows}):
            groups[f"{name}: {value}"] = [row for row in rows if row[name] == value]
    scores = {name: _score(group) for name, group in groups.items()}
    every = scores["all"]
    low, high = COVERED
    bars = {
        "at least 200 pairs": every["pairs"] >= FEWEST_PAIRS,
        "90 % intervals hold 85 to 95 %": low <= every["covered"] <= high,
        "median of stated losses within 2 points": abs(every["stated"] - every["true"]) <= MOST_APART,
    }
    return Result(tuple(rows), {"bars": bars, **scores}, all(bars.values()), {"trials": options.trials or TRIALS})


def _tables() -> dict[str, dict[str, Times]]:
    """Operator -> table -> its times."""
    found: dict[str, dict[str, Times]] = defaultdict(dict)
    for path in (*sorted((HERE / "data").glob("*.t4.json.gz")), *sorted((HERE / "hub").glob("*.csv.gz"))):
        name = path.name.removesuffix(".gz").removesuffix(".csv").removesuffix(".t4.json")
        operator = name.partition("__")[0] if "__" in name else "linear"
        table = read_table(path)
        found[operator][name] = {
            table.space.schedule(n): outcome.seconds
            for n, outcome in enumerate(table.outcomes)
            if isinstance(outcome, Timed)
        }
    return found


def _searched(tables: Mapping[str, Times], trials: int, seed: int) -> dict[str, Times]:
    """Return what searches know of the tables of an operator: so many random settings, then the fastest of the
    others."""
    drawn = {}
    for name, times in tables.items():
        schedules = list(times)
        count = min(trials, len(schedules))
        places = stream(seed, "relaxed-lookups", name).choice(len(schedules), count, replace=False)
        drawn[name] = {schedules[n]: times[schedules[n]] for n in places}
    best = {name: sorted(times, key=times.__getitem__) for name, times in drawn.items()}
    found: dict[str, Times] = {}
    for name, times in tables.items():
        warm = [next((s for s in best[other] if s in times), None) for other in tables if other != name]
        found[name] = drawn[name] | {schedule: times[schedule] for schedule in warm if schedule is not None}
    return found


def _stated(
    name: str, database: Mapping[str, Mapping[str, Times]], truth: Mapping[str, Mapping[str, Times]]
) -> Iterator[dict[str, object]]:
    """For each pair of tables in the database what is stated of the loss, and what it is."""
    losses: dict[str, list[Pair]] = {"shape": [], "device": []}
    for operator, tables in database.items():
        for asked, served, schedule in _pairs(tables, tables):
            loss = tables[asked][schedule] / min(tables[asked].values()) - 1
            losses[_part(operator)].append(Pair(operator, asked, served, loss))
    for operator, tables in database.items():
        part = _part(operator)
        for asked, served, schedule in _pairs(tables, truth[operator]):
            stated = estimate(losses[part], frozenset({part}), operator=operator, asked=asked)
            assert stated.median is not None and stated.low is not None and stated.high is not None
            times = truth[operator][asked]
            true = times[schedule] / min(times.values()) - 1
            yield {
                "row": f"{name} {served} for {asked}",
                "database": name,
                "operator": operator,
                "parts": part,
                "asked": asked,
                "served": served,
                "schedule": schedule,
                "true": true,
                "stated": stated.median,
                "low": stated.low,
                "high": stated.high,
                "pairs": stated.pairs,
                "inside": stated.low <= true <= stated.high,
            }


def _pairs(known: Mapping[str, Times], legal: Mapping[str, Times]) -> Iterator[tuple[str, str, Schedule]]:
    """(asked, served, schedule): the fastest known schedule of ``served`` that is legal for ``asked``."""
    for served, times in known.items():
        ordered = sorted(times, key=times.__getitem__)
        for asked in known:
            schedule = next((s for s in ordered if s in legal[asked]), None)
            if asked != served and schedule is not None:
                yield asked, served, schedule


def _part(operator: str) -> str:
    return "shape" if operator == "linear" else "device"


def _score(rows: Sequence[Mapping[str, object]]) -> dict[str, float]:
    true, stated = ([float(str(row[name])) for row in rows] for name in ("true", "stated"))
    return {
        "pairs": len(rows),
        "covered": sum(bool(row["inside"]) for row in rows) / len(rows),
        "true": median(true),
        "stated": median(stated),
        "signed_error": median(s - t for s, t in zip(stated, true, strict=True)),
        "absolute_error": median(abs(s - t) for s, t in zip(stated, true, strict=True)),
        "width": median(float(str(row["high"])) - float(str(row["low"])) for row in rows),
    }
