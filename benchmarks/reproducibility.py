"""Whether tuning finds kernels as fast when it is done again: each row of a table is tuned twice from scratch, with two
seeds and in two databases, and both winners are then timed interleaved in one process.

``--set table=products`` (the default), ``memory`` or ``cpu`` takes the rows, the trials and the timing of
``h200_products``, ``h200_memory`` or ``cpu``. ``--seed S`` is the first seed, and S + 1 the second. ``apart`` is how
much longer the slower winner of a row takes. Where both are the same schedule, it is 0 and nothing is timed.

Bar: ``apart`` of every row is within the band, 3 % on a GPU and 5 % on a processor. The band is a constant and is in
the result file before anything is measured. A trial is a mean of few launches, and re-measurement takes kernels that it
cannot tell apart for equal. So two winners may differ by the noise of a measurement on each side, 1 % on an H200. The
rest of the band is for settings near the best one that a search of 64 or 100 trials has not tried. Processors are
noisier, since threads share caches and clocks with all else. A row of ``cpu`` of which one winner's own times spread
wider than the band (between quartiles) is therefore reported and not judged. On a GPU each row is judged.

``parts=FILE,FILE`` measures nothing and judges the rows of results that each have some of them. Other settings: those
of ``tuned``.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from statistics import median

from benchmarks.suite import Options, Result, Row, joined, printed, spread
from benchmarks.tuned import Tuned, TunedOperator, separately, tune_rows
from tilewright.core.errors import InvalidParameter
from tilewright.core.schedule import Schedule
from tilewright.runtime.devices import open_device

BANDS: Mapping[str, float] = {"cuda": 0.03, "llvm": 0.05}
"""Kind of target -> how much longer the slower of two winners may take."""
ROUNDS = 15
Times = Mapping[str, list[float] | str]
"""Name of a winner -> its seconds, a figure a round, or why it failed."""


@dataclass(frozen=True)
class Table:
    """``raced`` times schedules of a row with inputs of a seed, and says how far their outputs are apart."""

    rows: Mapping[str, TunedOperator]
    trials: int
    raced: Callable[[str, Mapping[str, Schedule], int], tuple[Times, float]]
    target: str = "cuda"
    cache: str = "cold"

    @property
    def band(self) -> float:
        return BANDS[self.target]


def _products() -> Table:
    from benchmarks.h200_bars import MOST_TRIALS
    from benchmarks.h200_products import ROWS

    return _on_gpu(ROWS, MOST_TRIALS)


def _memory() -> Table:
    from benchmarks.h200_memory import ODD_ROWS, ROWS, TRIALS

    return _on_gpu({**ROWS, **ODD_ROWS}, TRIALS)


def _on_gpu(rows: Mapping[str, TunedOperator], trials: int) -> Table:
    from benchmarks.gpu_table import raced

    return Table(rows, trials, lambda name, found, seed: raced(rows[name].workload, found, seed, ROUNDS))


def _cpu() -> Table:
    from benchmarks.cpu import ROWS, TRIALS, raced
    from benchmarks.cpu_peers import recycle_memory

    recycle_memory()
    return Table(ROWS, TRIALS, lambda name, found, seed: raced(ROWS[name], found, seed, ROUNDS), "llvm", "warm")


TABLES: Mapping[str, Callable[[], Table]] = {"products": _products, "memory": _memory, "cpu": _cpu}
"""Name -> its table, which is made when it is asked for: each loads the libraries of its peers."""


def run(options: Options) -> Result:
    """Tune every row whose name matches twice, and time its winners."""
    name = options.extra.get("table", "products")
    if name not in TABLES:
        raise InvalidParameter(f"there is no table {name!r}, only {', '.join(TABLES)}", field="table")
    table = TABLES[name]()
    if "parts" in options.extra:
        parts = joined(list(table.rows), options.extra["parts"], lambda row: "apart" in row)
        return _judged(parts.rows, table, {"parts": parts.about}, parts.device, parts.toolchain)
    seeds = (options.seed, options.seed + 1)
    settings = {"table": name, "band": table.band, "seeds": seeds, "trials": options.trials or table.trials}
    options.keep(_judged([], table, settings, {}, {}))
    chosen = {row: what for row, what in table.rows.items() if fnmatch(row, options.rows)}
    tuned = [
        tune_rows(chosen, separately(replace(options, seed=seed), str(seed)), table.trials, table.target, table.cache)
        for seed in seeds
    ]
    device = open_device(table.target).info
    about = {"name": device.name, **device.hardware, **tuned[0].peaks}
    rows: list[Row] = []
    result = _judged(rows, table, settings, about, tuned[0].toolchain)
    for row in chosen:
        rows += printed([_compared(row, table, tuned, options.seed)])
        result = _judged(rows, table, settings, about, tuned[0].toolchain)
        options.keep(result)
    return result


def _compared(name: str, table: Table, tuned: list[Tuned], seed: int) -> Row:
    """Return one row: how far the winners of both seeds are apart; None where one is missing or fails."""
    found = {str(place): one.schedules[name] for place, one in enumerate(tuned) if name in one.schedules}
    row: Row = {"row": name, "same": len(found) == 2 and found["0"] == found["1"], "apart": None}
    if row["same"]:
        row |= {"apart": 0.0, "judged": True}
    elif len(found) < 2:
        row |= {"judged": True, "failed": "no schedule could be timed"}
    else:
        times, difference = table.raced(name, found, seed)
        failures = [taken for taken in times.values() if isinstance(taken, str)]
        taken = {place: one for place, one in times.items() if not isinstance(one, str)}
        widest = max(map(spread, taken.values()), default=0.0)
        row |= {"judged": table.target == "cuda" or widest <= table.band, "spread": widest, "difference": difference}
        if failures:
            row["failed"] = failures
        else:
            medians = [median(taken[place]) for place in sorted(taken)]
            row |= {"apart": max(medians) / min(medians) - 1, "us": [1e6 * seconds for seconds in medians]}
    abouts = [_about(name, one) for one in tuned]
    return row | {"tuned": abouts, "tuning_s": sum(float(str(one.get("tuning_s") or 0.0)) for one in abouts)}


def _about(name: str, one: Tuned) -> Mapping[str, object]:
    schedule = {"schedule": one.schedules[name].to_json()} if name in one.schedules else {}
    return {**one.about.get(name, {}), **schedule}


def _judged(
    rows: list[Row],
    table: Table,
    settings: Mapping[str, object],
    device: Mapping[str, object],
    toolchain: Mapping[str, object],
) -> Result:
    apart = {str(row["row"]): float(str(row["apart"])) for row in rows if row["apart"] is not None and row["judged"]}
    failed = [row["row"] for row in rows if "failed" in row]
    beyond = [row for row, by in apart.items() if by > table.band]
    summary = {
        "rows": len(rows),
        "band": table.band,
        "same_schedule": [row["same"] for row in rows].count(True),
        "median_apart": median(apart.values()) if apart else None,
        "most_apart": max(apart.values(), default=None),
        "beyond_band": beyond,
        "failed": failed,
        "not_judged": {str(row["row"]): row["apart"] for row in rows if not row["judged"]},
        "tuning_s": sum(float(str(row["tuning_s"])) for row in rows),
    }
    return Result(tuple(rows), summary, bool(apart) and not beyond and not failed, settings, device, toolchain)
