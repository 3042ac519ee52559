"""Complete tables of large products: every legal setting of a sub-space of ``cuda_gemm`` for twelve products of
language models, each built, checked and timed on a CUDA device, exported in the T4 form for search without one.

A table that is complete is left as it is; one that is not goes on where it was left. ``--set folder=`` where the
tables are (``benchmarks/data``); ``--trials N`` measures at most N settings of each row now. Bar: every table complete,
with at least 300 settings.
"""

import os
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.benchmarks.recorded_tables import FOLDER, SUFFIX, described, readme
from tilewright.benchmarks.suite import Options, Result, commit
from tilewright.core.keys import canonical_json
from tilewright.core.policy import SpacePolicy
from tilewright.core.record import MeasuredOn
from tilewright.core.schedule import KnobValue, Schedule
from tilewright.core.target import Profile, Target
from tilewright.core.trial import Failed, Reason
from tilewright.runtime.devices import host_target
from tilewright.schedule.gpu.gemm.space import CUDA_GEMM
from tilewright.schedule.sketch import Sketch
from tilewright.schedule.space.space import Space
from tilewright.search.t4 import Json, read_document, t4_result, write_t4
from tilewright.te.key import workload_key
from tilewright.te.operators import OPERATORS
from tilewright.te.workload import Workload
from tilewright.workers.executor import Executor
from tilewright.workers.executors import open_executor
from tilewright.workers.settings import Deadlines, ExecutorSettings, settings_for

LEAST_SETTINGS = 300
SUBSPACE: Mapping[str, tuple[KnobValue, ...]] = {
    "consumer_warpgroups": (1, 2),
    "atoms_m": (1,),
    "mma_n": (64, 96, 128, 144, 160, 176, 192, 208, 224, 256),
    "k_atoms": (1,),
    "cluster_m": (1, 2),
    "cluster_n": (1, 2),
    "group_m": (8,),
    "ctas_per_sm": (1,),
    "epilogue_stages": (0, 2),
}
"""Knob -> the values that it is held to. All other knobs have all of theirs."""
_SAVED_EVERY = 64
_PREFETCHED = 16

_SHAPES: Mapping[str, tuple[int, int, int]] = {
    "llama-3-8b-qkv": (256, 6144, 4096),
    "llama-3-8b-out": (512, 4096, 4096),
    "llama-3-8b-up_gate": (1024, 28672, 4096),
    "llama-3-8b-down": (1024, 4096, 14336),
    "qwen2.5-7b-qkv": (2048, 4608, 3584),
    "qwen2.5-7b-out": (4096, 3584, 3584),
    "qwen2.5-7b-up_gate": (512, 37888, 3584),
    "qwen2.5-7b-down": (512, 3584, 18944),
    "llama-3-70b-qkv": (4096, 1280, 8192),
    "llama-3-70b-out": (1024, 8192, 1024),
    "llama-3-70b-up_gate": (256, 7168, 8192),
    "llama-3-70b-down": (2048, 8192, 3584),
}
"""Tokens, outputs, inputs: Y[tokens, outputs] = X[tokens, inputs] W[outputs, inputs], in bfloat16. They are the
projections of Llama 3 8B and Qwen2.5 7B, and an eighth of Llama 3 70B's, which eight devices share. Up to 64 tokens
another sketch takes them."""


@dataclass(frozen=True)
class Table:
    """What is recorded in one file."""

    name: str
    operator: str
    parameters: Mapping[str, Any]
    sketch: Sketch
    subspace: Mapping[str, tuple[KnobValue, ...]]

    @property
    def workload(self) -> Workload:
        return OPERATORS[self.operator].workload(self.parameters)

    def space(self, target: Target) -> Space:
        """The settings to be recorded. Raises ValueError where the sketch does not list all that are legal."""
        whole = self.sketch.space(self.workload, target, policy=SpacePolicy(prune=False))
        if whole.total > len(whole):
            raise ValueError(f"{self.name}: only {len(whole)} of {whole.total} settings are listed")
        kept = np.ones(len(whole), dtype=bool)
        for knob, values in self.subspace.items():
            kept &= np.isin(whole.column(knob), values)
        columns = {name: column[kept] for name, column in whole.quantities.items()}
        total = int(kept.sum())
        prior = None if whole.prior_seconds is None else whole.prior_seconds[kept]
        return Space(
            *(whole.sketch, whole.version, whole.knobs, whole.codes[kept], columns, total, prior), low=total, high=total
        )


def _linear(name: str, tokens: int, outputs: int, inputs: int) -> Table:
    parameters = {"rows": tokens, "inputs": inputs, "outputs": outputs, "bias": False, "dtype": "bfloat16"}
    return Table(f"{name}-{tokens}x{outputs}x{inputs}", "linear", parameters, CUDA_GEMM, SUBSPACE)


TABLES = {table.name: table for table in (_linear(name, *shape) for name, shape in _SHAPES.items())}


def run(options: Options) -> Result:
    """Record every row whose name matches."""
    folder = Path(options.extra.get("folder", FOLDER))
    tables = {name: table for name, table in TABLES.items() if fnmatch(name, options.rows)}
    rows = record(list(tables.values()), folder, "cuda", options)
    if rows:
        (folder / "README.md").write_text(readme(folder))
    settings = [int(str(row["settings"])) for row in rows]
    summary = {
        "tables": len(rows),
        "complete": sum(bool(row["complete"]) for row in rows),
        "settings": sum(settings),
        "least_settings": min(settings, default=0),
        "measured_now": sum(int(str(row["measured_now"])) for row in rows),
        "seconds": sum(float(str(row["seconds"])) for row in rows),
        "bytes": sum(int(str(row["bytes"])) for row in rows),
    }
    passed = all(row["complete"] for row in rows) and summary["least_settings"] >= LEAST_SETTINGS
    return Result(tuple(rows), summary, passed, {"folder": str(folder)})


def record(tables: Sequence[Table], folder: Path, kind: str, options: Options) -> list[dict[str, object]]:
    """Bring each table's file up to date, on the device of ``kind`` where anything is missing; says what is in them.

    Raises ValueError for a file that was begun under other conditions."""
    pairs = [(table, folder / (table.name + SUFFIX)) for table in tables]
    rows: list[dict[str, object]] = []
    with ExitStack() as stack:
        executor: Executor | None = None
        for number, (table, path) in enumerate(pairs):
            began, before = time.perf_counter(), _had(path)
            if not _is_complete(path):
                if executor is None:
                    executor = stack.enter_context(_opened(kind, options.seed))
                session = _Session(table, path, executor, options)
                session.measure(next((t for t, p in pairs[number + 1 :] if not _is_complete(p)), None))
            about = {"measured_now": _had(path) - before, "seconds": time.perf_counter() - began}
            rows.append({"row": table.name, **described(path), **about})
            print(f"{number + 1} of {len(tables)}: {rows[-1]}", flush=True)
    return rows


class _Session:
    """One table's file, and what is being added to it."""

    def __init__(self, table: Table, path: Path, executor: Executor, options: Options) -> None:
        self._table, self._path, self._executor = table, path, executor
        self._most = options.trials
        on = executor.measured_on
        self._space = table.space(on.device.target)
        self._metadata = _metadata(table, self._space, on, _settings(on.device.target.kind), options.seed)
        self._runs: list[Json] = []
        self._found: dict[str, Json] = {}
        if path.exists():
            self._take_over(read_document(path))
        now = datetime.now(UTC).isoformat(timespec="seconds")
        self._runs.append({"started": now, "commit": options.extra.get("commit") or commit(), "driver": _driver()})

    def measure(self, following: Table | None) -> None:
        """Measure what is missing; ``following``: the table whose data may be prepared meanwhile."""
        space, executor = self._space, self._executor
        schedules = [space.schedule(row) for row in range(len(space))]
        todo = [row for row, s in enumerate(schedules) if _key(dict(s.knobs)) not in self._found][: self._most]
        if following is not None:
            first = following.space(executor.measured_on.device.target)
            executor.prefetch(following.workload, [first.schedule(n) for n in range(min(_PREFETCHED, len(first)))])
        try:
            for position, trial in executor.measure(self._table.workload, [schedules[row] for row in todo]):
                row, outcome = todo[position], trial.outcome
                if isinstance(outcome, Failed) and outcome.reason is Reason.WORKER_LOST:
                    continue  # says nothing of the candidate: it stays missing
                quantities = {name: float(column[row]) for name, column in space.quantities.items()}
                now = datetime.now(UTC).isoformat(timespec="milliseconds")
                self._found[_key(dict(trial.schedule.knobs))] = t4_result(trial, quantities, now)
                if len(self._found) % _SAVED_EVERY == 0:
                    self._save(schedules)
        finally:
            self._save(schedules)

    def _save(self, schedules: Sequence[Schedule]) -> None:
        keys = [_key(dict(s.knobs)) for s in schedules]
        results = [self._found[key] for key in keys if key in self._found]
        state = {"complete": len(results) == len(schedules), "runs": self._runs}
        write_t4(self._path, {**self._metadata, **state}, results)

    def _take_over(self, document: Json) -> None:
        had = {name: value for name, value in document["metadata"].items() if name not in ("complete", "runs")}
        differing = [n for n in {**had, **self._metadata} if _plain(had.get(n)) != _plain(self._metadata.get(n))]
        if differing:
            raise ValueError(f"{self._path} was begun with another {', '.join(differing)}; move it away to record anew")
        self._runs = list(document["metadata"]["runs"])
        self._found = {_key(result["configuration"]): result for result in document["results"]}


def _metadata(table: Table, space: Space, on: MeasuredOn, settings: ExecutorSettings, seed: int) -> dict[str, object]:
    """All that a table's results depend on, and what their names mean."""
    present = {k.name: [v for n, v in enumerate(k.values) if n in space.codes[:, i]] for i, k in enumerate(space.knobs)}
    return {
        "timeunit": "milliseconds",
        "name": table.name,
        "sketch": space.sketch,
        "version": space.version,
        "operator": table.operator,
        "parameters": dict(table.parameters),
        "workload": workload_key(table.workload),
        "subspace": {knob: list(values) for knob, values in table.subspace.items()},
        "settings": len(space),
        "tune_params": present,
        "meanings": {k.name: k.meaning for k in space.knobs},
        "quantities": [asdict(q) for q in table.sketch.quantities],
        "device": {"name": on.device.name, "target": on.device.target.to_json(), "hardware": dict(on.device.hardware)},
        "toolchain": dict(on.toolchain.components),
        "profile": str(on.profile),
        "timing": asdict(settings.timing),
        "seed": seed,
    }


def _settings(kind: str) -> ExecutorSettings:
    """As when tuning, but each setting is timed for a fraction of the time, those that are far too slow included: what
    takes longest is building."""
    usual = settings_for(kind, Deadlines())
    timing = replace(usual.timing, sample_seconds=1e-3, most_seconds=0.015, hopeless_ratio=1e9)
    builders = max(1, len(os.sched_getaffinity(0)) - 2)  # for the runner, and for all else
    return replace(usual, timing=timing, builders=builders, ahead=2 * builders + 4)


def _opened(kind: str, seed: int) -> Executor:
    target = host_target(kind)
    return open_executor("local", target, profile=Profile("cold"), seed=seed, settings=_settings(kind))


def _is_complete(path: Path) -> bool:
    return path.exists() and bool(read_document(path)["metadata"]["complete"])


def _had(path: Path) -> int:
    return len(read_document(path)["results"]) if path.exists() else 0


def _key(configuration: Mapping[str, KnobValue]) -> str:
    return canonical_json(dict(configuration))


def _plain(value: object) -> str:
    return canonical_json({"value": value})


def _driver() -> str | None:
    """The version of the NVIDIA driver, where there is one."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return None
    command = [tool, "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"]
    said = subprocess.run(command, capture_output=True, text=True, check=False).stdout.split()
    return said[0] if said else None
