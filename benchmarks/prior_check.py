"""What the prior is worth on a device: the winner of the pruned space against those of searches that have less help.

Each row is tuned several times, as the only task of a job with a database of its own, so that nothing is known before:

    pruned      the default: 100 trials of what pruning leaves
    prune_off   100 trials of the whole space, ranked by the prior (``prune=off``)
    prior_off   300 trials of the whole space, without the prior (``prior=off``)
    whole       only if asked for: N trials of the whole space, which say whether pruning loses anything

The prior is made from the peaks that are measured on the device. All winners of a row are then timed interleaved in one
process. A column is the speed of a winner, relative to that of ``pruned``. Bars: the geometric mean over the rows is at
least 0.99 for ``prune_off`` and 0.93 for ``prior_off``; the summary names the rows that are under. No row of ``whole``
is faster than 1 / 0.97.

Rows are the six of ``CHOSEN``; a glob (``--rows``) takes any of ``h200_products``. ``--trials N`` sets the trials of
``pruned``, and ``--set prune_off=N``, ``prior_off=N`` and ``whole=N`` those of the others; 0 leaves them out.
``parts=FILE,FILE`` measures nothing and judges the rows of results that each have some of them. Other settings: those
of ``tuned``.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from statistics import median

from benchmarks.gpu_table import geometric_mean, raced
from benchmarks.h200_products import ROWS
from benchmarks.suite import Options, Result, Row, joined, printed, spread
from benchmarks.tuned import Tuned, separately, tune_rows
from tilewright.core.policy import DEFAULT_POLICY, SpacePolicy
from tilewright.runtime.devices import open_device

CHOSEN = (
    "a-4096x4096x4096-float16",
    "a-2048x4096x14336-float16",
    "b-2048x2048x2048",
    "b-128x4096x14336",
    "d-tn-4096x4096x2048",
    "f-bias_residual-2048x4096x4096",
)
"""Rows of the table of products that are compared."""


@dataclass(frozen=True)
class Way:
    """How a row is tuned. ``bar``: the least geometric mean of the speeds of its winners."""

    policy: SpacePolicy
    trials: int
    bar: float | None = None


PRUNED = Way(DEFAULT_POLICY, 100)
WAYS: Mapping[str, Way] = {
    "prune_off": Way(SpacePolicy(prune=False), 100, 0.99),
    "prior_off": Way(SpacePolicy(prior=False), 300, 0.93),
    "whole": Way(SpacePolicy(prune=False), 0),
}
MOST_WHOLE = 1 / 0.97
"""No winner of ``whole`` is to be faster than this, relative to that of ``pruned``."""
_ROUNDS = 15


def run(options: Options) -> Result:
    """Tune and time every row whose name matches."""
    if "parts" in options.extra:
        parts = joined(list(ROWS), options.extra["parts"], lambda row: "tuning_s" in row)
        return _judged(parts.rows, {"parts": parts.about}, parts.device, parts.toolchain)
    names = [n for n in (CHOSEN if options.rows == "*" else ROWS) if fnmatch(n, options.rows)]
    given = {name: replace(way, trials=int(options.extra.get(name, way.trials))) for name, way in WAYS.items()}
    ways = {"pruned": replace(PRUNED, trials=options.trials or PRUNED.trials)}
    ways |= {name: way for name, way in given.items() if way.trials}
    settings = {"trials": {name: way.trials for name, way in ways.items()}, "bars": {n: w.bar for n, w in ways.items()}}
    rows: list[Row] = []
    result = _judged(rows, settings, {}, {})
    for name in names:
        tuned = {way: _tuned(name, way, how, options) for way, how in ways.items()}
        rows += printed([_compared(name, tuned, options.seed)])
        device = open_device("cuda").info
        about = {"name": device.name, **device.hardware, **tuned["pruned"].peaks}
        result = _judged(rows, settings, about, tuned["pruned"].toolchain)
        options.keep(result)
    return result


def _judged(
    rows: list[Row], settings: Mapping[str, object], device: Mapping[str, object], toolchain: Mapping[str, str]
) -> Result:
    """A winner that is missing counts as speed 0."""
    summary: dict[str, object] = {"rows": len(rows), "tuning_s": sum(float(str(row["tuning_s"])) for row in rows)}
    passed = bool(rows)
    for name, way in WAYS.items():
        speeds = {str(row["row"]): float(str(row[name])) for row in rows if name in row}
        if not speeds:
            continue
        mean = geometric_mean(list(speeds.values()))
        assert mean is not None
        least, most = min(speeds.values()), max(speeds.values())
        summary |= {f"{name}_geomean": mean, f"{name}_least": least, f"{name}_most": most}
        if way.bar is None:
            passed &= most <= MOST_WHOLE
        else:
            summary[f"{name}_below_bar"] = [row for row, speed in speeds.items() if speed < way.bar]
            passed &= mean >= way.bar
    return Result(tuple(rows), summary, passed, settings, device, toolchain)


def _tuned(name: str, way: str, how: Way, options: Options) -> Tuned:
    afresh = replace(separately(options, f"{name}-{way}"), trials=how.trials)
    return tune_rows({name: ROWS[name]}, afresh, how.trials, "cuda", "cold", how.policy)


def _compared(name: str, tuned: Mapping[str, Tuned], seed: int) -> Row:
    """Return one row: all winners on the same buffers, in turn, by graph replay."""
    found = {way: one.schedules[name] for way, one in tuned.items() if name in one.schedules}
    times, apart = raced(ROWS[name].workload, found, seed, _ROUNDS)
    seconds = {way: median(taken) for way, taken in times.items() if not isinstance(taken, str)}
    row: Row = {"row": name, "tuning_s": sum(one.seconds for one in tuned.values()), "difference": apart}
    for way in tuned:
        if way != "pruned":
            row[way] = seconds["pruned"] / seconds[way] if {"pruned", way} <= seconds.keys() else 0.0
    row |= {f"{way}_us": 1e6 * taken for way, taken in seconds.items()}
    row["spread"] = max((spread(taken) for taken in times.values() if not isinstance(taken, str)), default=None)
    row["failed"] = {way: taken for way, taken in times.items() if isinstance(taken, str)}
    row["tuned"] = {
        way: {**one.about[name], **({"schedule": found[way].to_json()} if way in found else {})}
        for way, one in tuned.items()
    }
    return row
