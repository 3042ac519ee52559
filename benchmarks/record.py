"""Complete tables: every legal setting of sub-spaces of several sketches for workloads of five kinds, each built,
checked and timed on CUDA devices, exported in the T4 form for search without one (see ``recorded_workloads``).

A table that is complete is left as it is; one that is not goes on where it was left. All devices of the machine share
the work. Besides these tables there are sweeps, of the same settings at many numbers of rows (``recorded_sweeps``).

``--rows`` are tables: ``--rows 'sweep-*'`` records the sweeps. ``--set folder=`` where they are (``benchmarks/data``);
``--set seconds=N`` ends the recording then; ``--set part=K/N`` takes every N-th table from the K-th one on, so that N
programs that see a device each share the work; ``--trials N`` measures at most N settings of each table now. Bar: every
table complete, and with at least 300 settings where it is a sub-space of a product of the language models.
"""

import os
import shutil
import subprocess
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from datetime import UTC, datetime
from fnmatch import fnmatch
from functools import partial
from pathlib import Path

import numpy as np

from tilewright.benchmarks.recorded_sweeps import SWEEPS
from tilewright.benchmarks.recorded_tables import FOLDER, described, readme
from tilewright.benchmarks.recorded_workloads import LANGUAGE_MODELS, TABLES, Table
from tilewright.benchmarks.suite import Options, Result, commit
from tilewright.core.fleet import Unit
from tilewright.core.keys import canonical_json
from tilewright.core.record import MeasuredOn
from tilewright.core.schedule import KnobValue, Schedule
from tilewright.core.streams import stream
from tilewright.core.target import Profile
from tilewright.core.trial import Failed, Reason, Trial
from tilewright.schedule.space.space import Space
from tilewright.search.t4 import Json, read_document, t4_result, write_t4
from tilewright.te.key import workload_key
from tilewright.workers.executor import Executor
from tilewright.workers.executors import open_executor
from tilewright.workers.joint_executor import JointExecutor
from tilewright.workers.probe import local_units
from tilewright.workers.settings import Deadlines, ExecutorSettings, settings_for

LEAST_SETTINGS = 300
_SAVED_SECONDS = 8.0
"""What is measured is written so often."""
_PREFETCHED = 16
"""So many settings are built ahead of the next workload. They are the promising ones, which are measured first, so that
there is a fast one to give slow ones up by."""
_SHARED = 200
"""Where fewer settings are missing, further devices are not worth opening."""
_KEPT_EVIDENCE = (
    "registers",
    "spill_bytes",
    "stack_bytes",
    "shared_bytes",
    "equal_binary",
    "stopped_early",
    "sm_clock_mhz",
)


def run(options: Options) -> Result:
    """Record every row whose name matches."""
    folder = Path(options.extra.get("folder", FOLDER))
    named = [table for name, table in {**TABLES, **SWEEPS}.items() if fnmatch(name, options.rows)]
    rows = record(part_of(named, options.extra.get("part", "1/1")), folder, "cuda", options)
    if rows:
        (folder / "README.md").write_text(readme(folder))
    settings = [int(str(row["settings"])) for row in rows]
    products = {table.name for table in named if table.subspace and table.kind == LANGUAGE_MODELS}
    parts = [count for count, row in zip(settings, rows, strict=True) if row["row"] in products]
    summary = {
        "tables": len(rows),
        "complete": sum(bool(row["complete"]) for row in rows),
        "settings": sum(settings),
        "least_settings": min(settings, default=0),
        "measured_now": sum(int(str(row["measured_now"])) for row in rows),
        "seconds": sum(float(str(row["seconds"])) for row in rows),
        "bytes": sum(int(str(row["bytes"])) for row in rows),
    }
    passed = all(row["complete"] for row in rows) and min(parts, default=LEAST_SETTINGS) >= LEAST_SETTINGS
    return Result(tuple(rows), summary, passed, {"folder": options.extra.get("folder", "benchmarks/data")})


def part_of(tables: Sequence[Table], part: str) -> Sequence[Table]:
    """Return every N-th table from the K-th one on, for ``K/N``. Raises ValueError for anything else."""
    first, slash, count = part.partition("/")
    if not (slash and first.isdigit() and count.isdigit() and 1 <= int(first) <= int(count)):
        raise ValueError(f"part is {part!r}; allowed: K/N, with K from 1 to N")
    return tables[int(first) - 1 :: int(count)]


def record(
    tables: Sequence[Table], folder: Path, kind: str, options: Options, units: Sequence[Unit] | None = None
) -> list[dict[str, object]]:
    """Bring each table's file up to date, on ``units`` where anything is missing (by default, all devices of ``kind``
    of this machine); says what is in them.

    Raises ValueError for a file that was begun under other conditions."""
    seconds = float(options.extra.get("seconds", "inf"))
    until = time.monotonic() + seconds
    paths = {table.name: table.path(folder) for table in tables}
    rows: list[dict[str, object]] = []
    with ExitStack() as stack:
        executor: _Devices | None = None
        for number, table in enumerate(tables):
            path = paths[table.name]
            began, before = time.perf_counter(), _had(path)
            if not _is_complete(path) and time.monotonic() < until:
                if executor is None or executor.precise != table.precise:
                    stack.close()
                    executor = stack.enter_context(_Devices(kind, options.seed, units, table.precise))
                later = (t for t in tables[number + 1 :] if not _is_complete(paths[t.name]))
                following = next((t for t in later if t.parameters != table.parameters), None)
                _Session(table, path, executor, options, until).measure(following)
            if path.exists():
                about = {"measured_now": _had(path) - before, "seconds": time.perf_counter() - began}
                rows.append({"row": table.name, **described(path), **about})
                print(f"{number + 1} of {len(tables)}: {rows[-1]}", flush=True)
    return rows


class _Devices:
    """All devices that record, as one executor. ``precise``: see ``Table``."""

    def __init__(self, kind: str, seed: int, units: Sequence[Unit] | None, precise: bool) -> None:
        self._units = [u for u in local_units() if u.device.target.kind == kind] if units is None else list(units)
        if not self._units:
            raise ValueError(f"this machine has no device of kind {kind}")
        self._seed = seed
        self.precise = precise
        self.settings = _settings(kind, len(self._units), precise)
        self._first = self._open(self._units[0])
        self._joint = JointExecutor(self._first, self._units[0].uuid, ahead=self.settings.ahead)

    def __enter__(self) -> "_Devices":
        return self

    def __exit__(self, *_: object) -> None:
        self._joint.close()

    @property
    def measured_on(self) -> MeasuredOn:
        return self._first.measured_on

    def prefetch(self, table: Table) -> None:
        """Prepare for a table that will be measured soon."""
        space = table.space(self.measured_on.device.target)
        rows = _order(space, table.name, self._seed)[:_PREFETCHED]
        self._first.prefetch(table.workload, [space.schedule(row) for row in rows])

    def measure(self, table: Table, schedules: Sequence[Schedule]) -> Generator[tuple[int, Trial], None, None]:
        """See ``search.measurer.Measurer``."""
        waiting = self._units[1:] if len(schedules) >= _SHARED else []

        def join() -> None:
            while waiting:
                unit = waiting.pop()
                self._joint.add(unit.uuid, partial(self._open, unit), lambda error: None)

        self._joint.adjust = join
        yield from self._joint.measure(table.workload, schedules)

    def _open(self, unit: Unit) -> Executor:
        target, profile = unit.device.target, Profile("cold")
        return open_executor("local", target, profile=profile, seed=self._seed, settings=self.settings, unit=unit)


class _Session:
    """One table's file, and what is being added to it."""

    def __init__(self, table: Table, path: Path, devices: _Devices, options: Options, until: float) -> None:
        self._table, self._path, self._devices = table, path, devices
        self._most, self._until, self._seed = options.trials, until, options.seed
        on = devices.measured_on
        self._space = table.space(on.device.target)
        self._metadata = _metadata(table, self._space, on, devices.settings, options.seed)
        self._runs: list[Json] = []
        self._found: dict[str, Json] = {}
        if path.exists():
            self._take_over(read_document(path))
        now = datetime.now(UTC).isoformat(timespec="seconds")
        self._runs.append({"started": now, "commit": options.extra.get("commit") or commit(), "driver": _driver()})

    def measure(self, following: Table | None) -> None:
        """Measure what is missing; ``following``: the table whose data may be prepared meanwhile."""
        space = self._space
        schedules = [space.schedule(row) for row in range(len(space))]
        order = _order(space, self._table.name, self._seed)
        todo = [row for row in order if _key(dict(schedules[row].knobs)) not in self._found][: self._most]
        if following is not None:
            self._devices.prefetch(following)
        saved = time.monotonic()
        trials = self._devices.measure(self._table, [schedules[row] for row in todo])
        try:
            for position, trial in trials:
                row, outcome = todo[position], trial.outcome
                if isinstance(outcome, Failed) and outcome.reason is Reason.WORKER_LOST:
                    continue  # says nothing of the candidate: it stays missing
                quantities = {name: float(column[row]) for name, column in space.quantities.items()}
                now = datetime.now(UTC).isoformat(timespec="seconds")
                self._found[_key(dict(trial.schedule.knobs))] = t4_result(_shortened(trial), quantities, now)
                if time.monotonic() - saved > _SAVED_SECONDS:
                    self._save(schedules)
                    saved = time.monotonic()
                if time.monotonic() > self._until:
                    break
        finally:
            trials.close()
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
    """Return all that a table's results depend on, and what their names mean."""
    present = {k.name: [v for n, v in enumerate(k.values) if n in space.codes[:, i]] for i, k in enumerate(space.knobs)}
    return {
        "timeunit": "milliseconds",
        "name": table.name,
        "kind": table.kind,
        "sketch": space.sketch,
        "version": space.version,
        "operator": table.operator,
        "parameters": dict(table.parameters),
        "workload": workload_key(table.workload),
        "subspace": {knob: list(values) for knob, values in table.subspace.items()},
        "selection": table.selection(on.device.target),
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


def _settings(kind: str, units: int, precise: bool) -> ExecutorSettings:
    """As when tuning, but for a fraction of the time, and by a single sample where a setting is plainly slower
    than the fastest so far: what takes longest is all around it. The fastest of noisy times looks faster than it is, so
    that those that are compared with it are timed for longer."""
    usual = settings_for(kind, Deadlines())
    timing = replace(
        usual.timing,
        sample_seconds=1e-3 if precise else 4e-4,
        least_samples=9 if precise else 5,
        most_seconds=1.5e-2 if precise else 4e-3,
        hopeless_ratio=1.3,
        slower_ratio=1.3,
    )
    builders = max(1, (len(os.sched_getaffinity(0)) - 1) // units)  # one for the runner and for all else
    return replace(usual, timing=timing, builders=builders, ahead=2 * builders + 4)


def _order(space: Space, name: str, seed: int) -> list[int]:
    """Return the rows of a space: promising ones, then all others shuffled, so that a table that is cut short is a
    sample."""
    shuffled = [int(row) for row in stream(seed, name).permutation(len(space))]
    if space.prior_seconds is None:
        return shuffled
    first = [int(row) for row in np.argsort(space.prior_seconds, kind="stable")[:_PREFETCHED]]
    return [*first, *(row for row in shuffled if row not in set(first))]


def _shortened(trial: Trial) -> Trial:
    """Without what the sensors say of every single trial."""
    kept = {name: value for name, value in trial.evidence.environment.items() if name in _KEPT_EVIDENCE}
    return replace(trial, evidence=replace(trial.evidence, environment=kept))


def _is_complete(path: Path) -> bool:
    return path.exists() and bool(read_document(path)["metadata"]["complete"])


def _had(path: Path) -> int:
    return len(read_document(path)["results"]) if path.exists() else 0


def _key(configuration: Mapping[str, KnobValue]) -> str:
    return canonical_json(dict(configuration))


def _plain(value: object) -> str:
    return canonical_json({"value": value})


def _driver() -> str | None:
    """Return the version of the NVIDIA driver, where there is one."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return None
    command = [tool, "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"]
    said = subprocess.run(command, capture_output=True, text=True, check=False).stdout.split()
    return said[0] if said else None
