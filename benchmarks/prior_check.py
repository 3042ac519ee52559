"""Whether pruning by the prior loses anything: on each row, the winner of the pruned space against that of the whole.

Both spaces are tuned on the device at hand, whose measured peaks the prior is made from: the pruned one with 100
trials, the whole one (``prune=off``) with 500. The two winners are then timed interleaved. Bar: no row under 0.97 of
(whole / pruned). ``--trials N`` sets the trials of the whole space; settings: those of ``gpu_table``.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from fnmatch import fnmatch
from statistics import median

from benchmarks.gpu_table import difference, geometric_mean, inputs_sets, ours, spread
from benchmarks.h200_products import ROWS
from benchmarks.suite import Options, Result
from benchmarks.torch_peers import interleaved
from benchmarks.tuned import Tuned, tune_rows
from tilewright.core.policy import DEFAULT_POLICY, SpacePolicy
from tilewright.runtime.devices import open_device
from tilewright.te.cost import minimum_bytes

CHOSEN = (
    "a-4096x4096x4096-float16",
    "a-2048x4096x14336-float16",
    "b-2048x2048x2048",
    "b-128x4096x14336",
    "d-tn-4096x4096x2048",
    "f-bias_residual-2048x4096x4096",
)
"""Rows of the table of products that are compared."""
_PRUNED_TRIALS, _WHOLE_TRIALS = 100, 500
_BAR = 0.97
_ROUNDS = 15


def run(options: Options) -> Result:
    rows = {name: ROWS[name] for name in CHOSEN if fnmatch(name, options.rows)}
    pruned = tune_rows(rows, replace(options, trials=_PRUNED_TRIALS), _PRUNED_TRIALS, "cuda", "cold", DEFAULT_POLICY)
    whole = tune_rows(rows, options, _WHOLE_TRIALS, "cuda", "cold", SpacePolicy(prune=False))
    table = [_compared(name, pruned, whole, options) for name in rows]
    ratios = [float(str(r["ratio"])) for r in table]
    device = open_device("cuda").info
    summary = {
        "rows": len(table),
        "geomean_ratio": geometric_mean(ratios),
        "min_ratio": min(ratios, default=None),
        "below_bar": [r["row"] for r in table if float(str(r["ratio"])) < _BAR],
        "tuning_s": pruned.seconds + whole.seconds,
    }
    about = {"name": device.name, **device.hardware, **pruned.peaks}
    return Result(tuple(table), summary, not summary["below_bar"], {}, about, pruned.toolchain)


def _compared(name: str, pruned: Tuned, whole: Tuned, options: Options) -> Mapping[str, object]:
    """Return one row: both winners on the same buffers, in turn, by graph replay."""
    workload = ROWS[name].workload
    sets = inputs_sets(workload, minimum_bytes(workload), options.seed)
    calls = {"pruned": ours(workload, pruned.schedules[name]), "whole": ours(workload, whole.schedules[name])}
    apart = difference(calls["pruned"](sets[0]), calls["whole"](sets[0]))
    times = interleaved(calls, sets, rounds=_ROUNDS, seconds=0.005, rest_seconds=0.02)
    mine, other = times["pruned"], times["whole"]
    if isinstance(mine, str) or isinstance(other, str):
        return {"row": name, "failed": json.dumps([str(mine), str(other)]), "ratio": 0.0}
    return {
        "row": name,
        "ratio": median(other) / median(mine),
        "pruned_us": 1e6 * median(mine),
        "whole_us": 1e6 * median(other),
        "spread": max(spread(mine), spread(other)),
        "difference": apart,
        "pruned": {**pruned.about[name], "schedule": pruned.schedules[name].to_json()},
        "whole": {**whole.about[name], "schedule": whole.schedules[name].to_json()},
    }
