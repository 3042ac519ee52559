"""What tables of kernels on one NVIDIA GPU share: rows are tuned as one job of a service, then ours and every peer run
interleaved in one process on the same rotating buffers, all by graph replay, outputs compared.

Settings of such a suite, besides those of ``tuned``: ``against=FILE`` also times the schedules of an earlier result in
the same run and gives (before / now) of each row; ``tune_only=1`` stops after tuning; ``peers=eager`` leaves compiled
peers out,
``peers=none`` all; ``parts=FILE,FILE`` measures nothing and judges the rows of results that each have some of them.
"""

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from statistics import median
from threading import Thread
from typing import Any

import numpy as np
import torch

from benchmarks.suite import Options, Result, joined, spread
from benchmarks.torch_peers import Call, Tensors, interleaved, peer_options, peers
from benchmarks.tuned import Tuned, TunedOperator, schedules, tune_rows
from tilewright.codegen.lowering import lowering_stages
from tilewright.codegen.matrix_use import matrix_use
from tilewright.core.schedule import Schedule
from tilewright.core.target import Profile
from tilewright.runtime.devices import open_device
from tilewright.runtime.module import load_module
from tilewright.te.cost import flops, minimum_bytes
from tilewright.te.data import random_inputs
from tilewright.te.workload import Workload
from tilewright.workers.runner_child import cold_bytes

ROUNDS = 11
REPLAY_SECONDS = 0.005
REST_SECONDS = 0.02
"""Before each short replay of a table that has sustained ones too, so that the two are apart."""
SUSTAINED_ROUNDS = 4
SUSTAINED_SECONDS = 0.25
_COLD_BYTES = 130_000_000
"""Twice the last-level cache of an H200."""
_COMPILED = ("torch.compile", "FlexAttention")
"""So begin the names of peers that are compiled."""
_SAME = 0.02
"""Two kernels this close, beyond the spread of their times, are equally fast."""


@dataclass(frozen=True)
class Row(TunedOperator):
    """``peer``: the same in PyTorch. ``prepare``: our inputs as PyTorch likes them best, outside of what is timed.
    ``bar``: least (best peer / ours). ``reads``: hardly anything is written. ``libraries``: the peers by name, where
    they are not the modes of torch.compile; outputs are compared with ``peer`` all the same."""

    peer: Callable[..., object]
    prepare: Callable[[Tensors], Tensors] = lambda tensors: tensors
    bar: float = 0.97
    reads: bool = False
    libraries: Mapping[str, Callable[..., object]] = field(default_factory=dict)

    @property
    def calls(self) -> dict[str, Call]:
        """All peers, of prepared inputs."""
        if not self.libraries:
            return peers(self.peer)
        return {name: lambda inputs, f=f: f(*inputs) for name, f in self.libraries.items()}  # type: ignore[misc]


@dataclass(frozen=True)
class Table:
    """What was measured, or what has been so far, before a suite judges it."""

    rows: list[dict[str, object]]
    tuned: Tuned
    device: Mapping[str, object]
    settings: Mapping[str, object]

    def result(self, summary: Mapping[str, object], passed: bool) -> Result:
        """Return the suite's result; where nothing was compared, its rows are the schedules that were found."""
        found = [{"row": n, "schedule": s.to_json(), **self.tuned.about[n]} for n, s in self.tuned.schedules.items()]
        versions = {"torch": torch.__version__, "cuda": str(torch.version.cuda), **self.tuned.toolchain}
        return Result(tuple(self.rows or found), summary, passed, self.settings, self.device, versions)


def measured(
    rows: Mapping[str, Row],
    options: Options,
    judge: Callable[[Table], Result],
    *,
    trials: int,
    sustained: bool = False,
) -> Result:
    """Tune and time the rows whose names match, and ``judge`` them, also after each of them. ``sustained``: besides
    short replays, with long ones too."""
    torch.backends.cudnn.benchmark = True  # so that peers have the fastest algorithms
    if "parts" in options.extra:
        return judge(_joined(list(rows), options.extra["parts"]))
    rows = options.chosen(rows)
    compares = options.extra.get("tune_only") != "1"
    if compares:  # PyTorch's compiler takes seconds to import, while nothing is timed yet
        Thread(target=import_module, args=("torch._inductor.compile_fx",), daemon=True).start()
    tuned = tune_rows(rows, options, trials, "cuda", "cold")
    device = open_device("cuda")
    peaks = tuned.peaks or device.measure_peaks()
    others = schedules(options.extra["against"]) if "against" in options.extra else {}
    about = {"name": device.info.name, **device.info.hardware, **peaks}
    settings: dict[str, object] = {"rounds": ROUNDS, "replay_seconds": REPLAY_SECONDS, "cold_bytes": _COLD_BYTES}
    settings |= {"peer_options": peer_options(), **options.extra}
    if sustained:
        settings |= {
            "rest_seconds": REST_SECONDS,
            "sustained_rounds": SUSTAINED_ROUNDS,
            "sustained_seconds": SUSTAINED_SECONDS,
        }
    found = Table([], tuned, about, settings)
    options.keep(judge(found))  # the schedules, should no row be timed
    table = found.rows
    if compares:
        for name, row in rows.items():
            began = time.perf_counter()
            try:
                table.append(_measured(name, row, tuned, others.get(name), peaks, options, sustained))
            except Exception as error:  # the other rows are worth having
                told = str(error).splitlines()[0] if str(error) else ""
                table.append({"row": name, "failed": f"{type(error).__name__}: {told}", **tuned.about.get(name, {})})
            torch.cuda.empty_cache()
            what = " ".join(
                f"{k}={table[-1][k]}" for k in ("ratio", "ours_us", "best_peer", "failed") if k in table[-1]
            )
            options.keep(judge(found))
            print(f"{name}: {what} in {time.perf_counter() - began:.1f} s", flush=True)
    return judge(found)


def _joined(order: list[str], paths: str) -> Table:
    """Return the rows of several results as one table. See ``suite.joined``."""
    parts = joined(order, paths, lambda row: "ours_us" in row or "failed" in row)
    seconds = sum(s["tuning_s"] for s in parts.summaries)
    share = sum(s["timing_share"] * s["tuning_s"] for s in parts.summaries) / seconds
    tuned = Tuned({}, {}, seconds, share, {}, parts.toolchain)
    return Table(parts.rows, tuned, parts.device, {"parts": parts.about})


AGAINST_BAR = 0.995
"""The least geometric mean of (before / now), where there is an earlier result."""


def against_summary(table: list[dict[str, object]]) -> dict[str, object]:
    """Geometric mean and minimum of (before / now) over the rows that an earlier result has; empty without one."""
    ratios = {str(r["row"]): float(str(r["before_ratio"])) for r in table if "before_ratio" in r}
    if not ratios:
        return {}
    apart = [str(r["row"]) for r in table if r.get("same") is False]
    return {"before_geomean": geometric_mean(list(ratios.values())), "before_min": min(ratios.values()), "apart": apart}


def reaches_against_bar(summary: Mapping[str, object]) -> bool:
    """Return whether the schedules of an earlier result, if there is one, are no faster on the whole."""
    return "before_geomean" not in summary or float(str(summary["before_geomean"])) >= AGAINST_BAR


def geometric_mean(values: list[float]) -> float | None:
    """None of nothing; failures, 0, count as nearly nothing."""
    return float(np.exp(np.mean(np.log([max(v, 1e-9) for v in values])))) if values else None


def _measured(
    name: str,
    row: Row,
    tuned: Tuned,
    other: Schedule | None,
    peaks: Mapping[str, float],
    options: Options,
    sustained: bool,
) -> dict[str, object]:
    """Return one row of the table."""
    if name not in tuned.schedules:
        return {"row": name, "failed": "no schedule could be timed", **tuned.about.get(name, {})}
    spent = _Spent()
    workload = row.workload
    total = minimum_bytes(workload)
    sets = inputs_sets(workload, total, options.seed)
    spent.on("inputs")
    prepared = {id(s): row.prepare(s) for s in sets}
    calls: dict[str, Call] = {"ours": ours(workload, tuned.schedules[name])}
    if other is not None:
        calls["before"] = ours(workload, other)
    theirs: dict[str, Call] = {}
    for peer, call in row.calls.items():
        if options.extra.get("peers") != "eager" or not peer.startswith(_COMPILED):
            theirs[peer] = lambda s, c=call: c(prepared[id(s)])  # type: ignore[misc]
    wrong = difference(calls["ours"](sets[0]), row.peer(*prepared[id(sets[0])]))
    if options.extra.get("peers") != "none":
        calls |= theirs
    spent.on("ours and eager")
    for peer, call in calls.items():
        with suppress(Exception), torch.no_grad():  # what fails here fails again, and is told then
            call(sets[0])
        spent.on(peer)
    rest = REST_SECONDS if sustained else 0.0
    times = interleaved(calls, sets, rounds=ROUNDS, seconds=REPLAY_SECONDS, rest_seconds=rest)
    spent.on("short")
    figures = _figures(row, total, times, peaks, wrong)
    figures["tflops"] = flops(workload) / float(str(figures["ours_us"])) / 1e6 if "ours_us" in figures else None
    if sustained and "ours_us" in figures:
        long = interleaved(calls, sets, rounds=SUSTAINED_ROUNDS, seconds=SUSTAINED_SECONDS)
        figures |= {f"sustained_{n}": v for n, v in _compared(long).items()}
    spent.on("sustained")
    about = {**tuned.about[name], "schedule": tuned.schedules[name].to_json(), "spent_s": spent.seconds}
    return {"row": name, **figures, **about, **_matrix_instructions(workload, tuned.schedules[name])}


def _matrix_instructions(workload: Workload, schedule: Schedule) -> dict[str, object]:
    """Return how many the kernel of a row has, if any would be expected, and what it misses."""
    target = open_device("cuda").info.target
    stages = lowering_stages(workload, target, schedule)
    use = matrix_use(workload, target, schedule, stages)
    return {} if use is None else {"matrix_instructions": dict(use.counts), "matrix_warnings": list(use.warnings)}


class _Spent:
    """Where the time of a row goes, in seconds."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._began = time.perf_counter()

    def on(self, what: str) -> None:
        """All since the last call went on ``what``."""
        now = time.perf_counter()
        self.seconds[what] = round(self.seconds.get(what, 0.0) + now - self._began, 2)
        self._began = now


def _compared(times: Mapping[str, list[float] | str]) -> dict[str, object]:
    """Ours, the peers', and the ratio of the best of them to ours."""
    mine = times["ours"]
    if isinstance(mine, str):
        return {"failed": mine}
    others = {n: t for n, t in times.items() if n not in ("ours", "before")}
    timed = {n: median(t) for n, t in others.items() if not isinstance(t, str)}
    best = min(timed, key=lambda n: timed[n], default=None)
    return {
        "ours_us": 1e6 * median(mine),
        "peers_us": {n: 1e6 * median(t) if not isinstance(t, str) else t for n, t in others.items()},
        "best_peer": best,
        "ratio": None if best is None else timed[best] / median(mine),
    }


def _figures(
    row: Row, total: int, times: Mapping[str, list[float] | str], peaks: Mapping[str, float], wrong: float
) -> dict[str, object]:
    mine = times["ours"]
    if isinstance(mine, str):
        return {"failed": mine}
    peak = peaks["read_bytes_per_second"] if row.reads else peaks["copy_bytes_per_second"]
    figures = {
        **_compared(times),
        "bar": row.bar,
        "limit_us": 1e6 * total / peak,
        "limit_by": "bytes",
        "bytes": total,
        "fraction_of_limit": total / peak / median(mine),
        "spread": spread(mine),
        "difference": wrong,
    }
    earlier = times.get("before", "")
    if not isinstance(earlier, str):
        before = median(earlier)
        band = _SAME + max(spread(mine), spread(earlier))
        figures |= {"before_us": 1e6 * before, "before_ratio": before / median(mine), "band": band}
        figures["same"] = abs(before / median(mine) - 1) <= band
    return figures


def inputs_sets(workload: Workload, total: int, seed: int, cold: int = _COLD_BYTES) -> list[Tensors]:
    """So many sets of the inputs that one round of launches goes through ``cold`` bytes."""
    arrays = random_inputs(workload, seed)
    first = tuple(_tensor(arrays[b.name]) for b in workload.inputs)
    count = max(2, -(-cold // total))
    return [first, *(tuple(t.clone() for t in first) for _ in range(count - 1))]


def _tensor(array: Any) -> torch.Tensor:
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).cuda().view(torch.bfloat16)
    if array.dtype.name.startswith("float8"):
        return torch.from_numpy(array.view(np.uint8)).cuda().view(getattr(torch, array.dtype.name))
    return torch.from_numpy(np.ascontiguousarray(array)).cuda()


def ours(workload: Workload, schedule: Schedule) -> Call:
    module = load_module(workload, schedule, open_device("cuda").info.target)
    return lambda inputs: module(*inputs)


def raced(
    workload: Workload, schedules: Mapping[str, Schedule], seed: int, rounds: int
) -> tuple[dict[str, list[float] | str], float]:
    """Return the seconds of schedules of one workload, each of which runs in turn in every round, from rested states;
    and by how much their outputs differ at most from those of the first.

    Launches go through as many bytes of buffers as when the schedules were tuned, so that caches are as cold.
    """
    cold = cold_bytes(open_device("cuda").info, Profile("cold"))
    sets = inputs_sets(workload, minimum_bytes(workload), seed, cold)
    calls = {name: ours(workload, schedule) for name, schedule in schedules.items()}
    outputs = [call(sets[0]) for call in calls.values()]
    apart = max((difference(other, outputs[0]) for other in outputs[1:]), default=0.0)
    times = interleaved(calls, sets, rounds=rounds, seconds=REPLAY_SECONDS, rest_seconds=REST_SECONDS)
    return times, apart


def difference(ours: Any, theirs: Any) -> float:
    """Return the largest difference of any output element, relative to the largest element of that output."""
    pairs = zip(
        ours if isinstance(ours, tuple) else (ours,), theirs if isinstance(theirs, tuple) else (theirs,), strict=True
    )
    worst = 0.0
    for a, b in pairs:
        x, y = a.double().reshape(-1), b.contiguous().double().reshape(-1)
        worst = max(worst, float((x - y).abs().max() / y.abs().max().clamp(min=1e-30)))
    return worst
