"""What a prior, and what was measured of other shapes, are worth to a search: replays of recorded tables.

A row is a workload of ``benchmarks/data`` with the tables of all its sketches together. What was recorded of the other
workloads of its kind is history (``--set history=N``: so many random records of each, 400). Columns are speeds relative
to the best of all tables of the workload:

    first          the setting that the prior ranks first
    told           the one that a model of the history ranks first, which starts from the prior; nothing is measured
    measured_N     the best of N trials by the default strategy with that history, the mean of ``runs`` seeds (3)
    cold_N         the same without history

``--set folder=`` takes the workloads of another device, and ``history_folder=`` the history from another device's: all
workloads of a kind there, that of the row too. Columns that begin with ``others_`` are the same without the one of the
row. ``--set folder=benchmarks/data/h100 --set history_folder=benchmarks/data`` is what an H100 gains from an H200.

Priors are made from no peaks but those of the architecture's data sheet. A table that is not complete counts with what
is in it. Bars, over the workloads that have history: ``measured_8`` 0.98 on average and none under 0.95; ``told`` 0.93
on average. With a ``history_folder``: ``measured_4`` 0.98 on average and none under 0.95. (Some priors were fitted on
some of these tables, so that other devices and shapes may do worse.)
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cached_property
from pathlib import Path
from statistics import mean

import numpy as np

from tilewright.benchmarks.recorded_tables import FOLDER, SUFFIX, searched_tables
from tilewright.benchmarks.recorded_workloads import LANGUAGE_MODELS
from tilewright.benchmarks.suite import Options, Result
from tilewright.core.budget import Budget
from tilewright.core.errors import NotFound
from tilewright.core.renamed import RENAMED, current
from tilewright.core.schedule import Schedule
from tilewright.core.streams import stream
from tilewright.core.target import DeviceInfo, Target
from tilewright.core.trial import Timed, Trial
from tilewright.cost_model.dataset import Experience, experience_data
from tilewright.cost_model.models import new_model
from tilewright.schedule.sketches import SKETCHES
from tilewright.schedule.space.knob import Knob
from tilewright.schedule.space.space import Space
from tilewright.search.pool import CandidatePool
from tilewright.search.recorded import Recorded, read_table
from tilewright.search.strategies import STRATEGIES
from tilewright.search.strategy import SearchProblem
from tilewright.search.t4 import Json, read_document
from tilewright.search.tuner import tune
from tilewright.te.key import workload_key
from tilewright.te.workload import Workload

COUNTS = (1, 4, 8, 16)
STRATEGY, MODEL = "model", "xgboost"
_DIGITS = tuple(map(str, COUNTS))
_WITH_LEAST = ("told", "measured_4", "measured_8")
"""So end the names of columns of which the least value is told."""
RUNS, RECORDS = 3, 400


def run(options: Options) -> Result:
    """Return one row for each workload whose name matches."""
    runs, records = int(options.extra.get("runs", RUNS)), int(options.extra.get("history", RECORDS))
    folder, elsewhere = options.extra.get("folder", str(FOLDER)), options.extra.get("history_folder")
    workloads = recorded_workloads(searched_tables(Path(folder)))
    earlier = workloads if elsewhere is None else recorded_workloads(searched_tables(Path(elsewhere)))
    rows = []
    for workload in workloads:
        if fnmatch(workload.name, options.rows):
            relatives = [w for w in earlier if w.kind == workload.kind]
            others = [w for w in relatives if w.workload != workload.workload]
            known = {"": others} if elsewhere is None else {"": relatives, "others_": others}
            rows.append(_row(workload, known, records, range(options.seed, options.seed + runs)))
            print(rows[-1], flush=True)
    summary = {kind: _means(rows, kind) for kind in dict.fromkeys(str(r["kind"]) for r in rows)}
    told = [r for r in rows if r["history"]]
    overall = _means(told, "*")
    judged = "measured_8" if elsewhere is None else "measured_4"
    passed = bool(told) and overall[judged] >= 0.98 and overall[f"least_{judged}"] >= 0.95
    passed = passed and (elsewhere is not None or overall["told"] >= 0.93)
    settings = {"runs": runs, "history": records, "strategy": STRATEGY, "model": MODEL}
    settings |= {name: options.extra[name] for name in ("folder", "history_folder") if name in options.extra}
    return Result(tuple(rows), {"workloads": len(told), **overall, "kinds": summary}, passed, settings)


def _means(rows: Sequence[Mapping[str, object]], kind: str) -> dict[str, float]:
    """Of each column the mean, and the least of those that have a bar."""
    kept = [r for r in rows if fnmatch(str(r["kind"]), kind)]
    columns = [n for n in (kept[0] if kept else {}) if n == "first" or n.rpartition("_")[2] in ("told", *_DIGITS)]
    found = {n: mean(float(str(r[n])) for r in kept) for n in columns}
    return found | {f"least_{n}": min(float(str(r[n])) for r in kept) for n in columns if n.endswith(_WITH_LEAST)}


@dataclass(frozen=True)
class RecordedWorkload:
    """All tables of one workload, in today's names. ``legal``: how many settings they are to have in the end."""

    name: str
    kind: str
    workload: Workload
    device: DeviceInfo
    tables: Sequence[Recorded]
    legal: int

    @cached_property
    def best_seconds(self) -> float:
        return min(table.best_seconds for table in self.tables)

    @property
    def settings(self) -> int:
        return sum(len(table.space) for table in self.tables)

    def pool(self) -> CandidatePool:
        return CandidatePool([table.space for table in self.tables], self.workload, self.device)

    def measure(self, schedules: Iterable[Schedule]) -> Iterator[tuple[int, Trial]]:
        """See ``search.measurer.Measurer``. Raises NotFound for what was not recorded."""
        for position, schedule in enumerate(schedules):
            table = next((t for t in self.tables if t.space.row_of(schedule) is not None), None)
            if table is None:
                raise NotFound(f"{schedule} was not recorded")
            yield position, next(trial for _, trial in table.measure([schedule]))

    def experience(self, records: int, seed: int) -> Experience:
        """Return a random part of what was recorded."""
        every = [(t, row) for t in self.tables for row in range(len(t.space))]
        drawn = stream(seed, "history", self.name).permutation(len(every))[:records]
        results = tuple((every[n][0].space.schedule(every[n][1]), every[n][0].outcomes[every[n][1]]) for n in drawn)
        return Experience(self.workload, self.device, results)


def recorded_workloads(paths: Iterable[Path]) -> list[RecordedWorkload]:
    """Return the workloads that tables are of. One that was recorded on two devices is two of them."""
    groups: dict[tuple[str, str], list[tuple[str, Json, Recorded]]] = defaultdict(list)
    for path in paths:
        head, table = read_document(path)["metadata"], read_table(path)
        if table.workload is not None:
            name = path.name.removesuffix(SUFFIX).removesuffix(f"-{head['sketch']}")
            groups[workload_key(table.workload), head["device"]["name"]].append((name, head, _renewed(head, table)))
    found = []
    for members in groups.values():
        name, head, table = members[0]
        assert table.workload is not None
        about = head["device"]
        target = {**about["target"], "features": tuple(about["target"]["features"])}
        device = DeviceInfo(about["name"], Target(**target), about["hardware"])
        legal = sum(int(h["settings"]) for _, h, _ in members)
        kind = str(head.get("kind", LANGUAGE_MODELS)).replace(LANGUAGE_MODELS, "product")
        found.append(RecordedWorkload(name, kind, table.workload, device, [t for *_, t in members], legal))
    return found


def _renewed(head: Json, table: Recorded) -> Recorded:
    """Return the table as today's sketch would have it: with the names of today, its derived columns and its prior."""
    assert table.workload is not None
    rows = [dict(table.space.schedule(n).knobs) for n in range(len(table.space))]
    # Some tables are older than the versions that today's names are known of. Their knobs meant the same.
    version = max((v for sketch, v in RENAMED if sketch == head["sketch"]), default=head["version"])
    named = (current(head["sketch"], version, knobs) for knobs in rows)
    schedules = [Schedule.of(sketch, at, dict(knobs)) for sketch, at, knobs in named]
    sketch, target = SKETCHES[schedules[0].sketch], Target(**{**head["device"]["target"], "features": ()})
    values = {name: sorted({s[name] for s in schedules}, key=str) for name, _ in schedules[0].knobs}
    knobs = tuple(Knob(name, tuple(found), name) for name, found in values.items())
    codes = np.array([[values[k].index(v) for k, v in s.knobs] for s in schedules], np.int16)
    derived = sketch.derive(table.workload, target, schedules)
    prior = sketch.prior_seconds(table.workload, target, schedules)
    space = Space(sketch.name, sketch.version, knobs, codes, derived, len(codes), prior, len(codes), len(codes))
    return Recorded(space, table.outcomes, table.cost_seconds, table.workload)


def _row(
    workload: RecordedWorkload, known: Mapping[str, Sequence[RecordedWorkload]], records: int, seeds: Sequence[int]
) -> dict[str, object]:
    """Return one row. ``known``: what each history is made of, by how the names of its columns begin."""
    pool = workload.pool()
    row: dict[str, object] = {
        "row": workload.name,
        "kind": workload.kind,
        "settings": workload.settings,
        "legal": workload.legal,
        "history": len(known[""]),
        "best_us": 1e6 * workload.best_seconds,
        "first": _speed(workload, pool),
    }
    for begin, others in known.items():
        history = [other.experience(records, seeds[0]) for other in others]
        row[f"{begin}told"] = row["first"]
        if history:
            model = new_model(MODEL)
            model.fit(*experience_data(history), seed=seeds[0])
            row[f"{begin}told"] = _speed(workload, CandidatePool(pool.spaces, pool.workload, pool.device, model=model))
        row |= _curves(f"{begin}measured", workload, seeds, history)
    return row | _curves("cold", workload, seeds, [])


def _curves(
    name: str, workload: RecordedWorkload, seeds: Sequence[int], history: Sequence[Experience]
) -> dict[str, float]:
    curves = [curve_of(workload, seed, COUNTS, history) for seed in seeds]
    return {f"{name}_{n}": mean(curve[n] for curve in curves) for n in COUNTS}


def _speed(workload: RecordedWorkload, pool: CandidatePool) -> float:
    """Return that of the candidate with the least estimated time, relative to the best."""
    assert pool.prior_seconds is not None
    (_, trial), *_ = workload.measure([pool.schedule(int(np.argmin(pool.prior_seconds)))])
    return workload.best_seconds / trial.outcome.seconds if isinstance(trial.outcome, Timed) else 0.0


def curve_of(
    workload: RecordedWorkload, seed: int, counts: Sequence[int], history: Sequence[Experience] = ()
) -> Mapping[int, float]:
    """Return the speed of the best so far after each of ``counts`` trials, relative to the best of the tables."""
    pool = workload.pool()
    strategy = STRATEGIES[STRATEGY](SearchProblem(pool, seed, history, MODEL))
    best, found = np.inf, dict[int, float]()
    for count, step in enumerate(tune(pool, strategy, workload.measure, Budget(max(counts)), batch=4), 1):
        if isinstance(step.trial.outcome, Timed):
            best = min(best, step.trial.outcome.seconds)
        found[count] = workload.best_seconds / best
    return {n: found[n] for n in counts}
