"""Compares schedules: times with a significance test, curves, knobs."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb
from string import ascii_uppercase

from ..core.errors import InvalidParameter, NotFound
from ..core.trial import Timed
from ..db.rows import JobRow, TrialRow
from ..db.store import RecordStore
from .analysis_views import ComparedSample, ComparedView, CurvePoint, KnobRow, ScheduleComparison
from .pagination import valid_key, valid_number
from .rank_test import NAME, RankTest, holm, mann_whitney

LEAST, MOST = 2, 8
"""So many schedules are compared."""
MOST_POINTS = 20_000
ALPHA = 0.05


@dataclass(frozen=True, slots=True)
class ComparedJob:
    """Asks for the best schedule of a task."""

    job_id: str
    task: int = 0


@dataclass(frozen=True, slots=True)
class ComparedRecord:
    """Asks for the schedule of a record."""

    record_id: int


@dataclass(frozen=True, slots=True)
class _Found:
    asked: ComparedJob | ComparedRecord
    job: JobRow
    trial: TrialRow
    timed: Timed

    @property
    def samples(self) -> tuple[float, ...]:
        return self.timed.final_samples or self.timed.samples


def compare(store: RecordStore, asked: Sequence[ComparedJob | ComparedRecord]) -> ScheduleComparison:
    """Compare every schedule with the first. Raises InvalidParameter (too few, too many, twice the same, no timed
    trial) and NotFound."""
    if not LEAST <= len(asked) <= MOST:
        raise InvalidParameter(f"{len(asked)} schedules to compare; allowed: {LEAST} to {MOST}", field="job")
    if len(set(asked)) < len(asked):
        raise InvalidParameter("one schedule is given twice; compare it with another", field="job")
    found = [_found(store, one) for one in asked]
    same = len({one.trial.record.identity.workload_key for one in found}) == 1
    tests = [mann_whitney(found[0].samples, one.samples) if same else None for one in found[1:]]
    adjusted = iter(holm([test.p_value for test in tests if test is not None]))
    p_values = [None, *(None if test is None else next(adjusted) for test in tests)]
    items = tuple(
        _item(label, one, found[0], test, p_value, len(tests))
        for label, one, test, p_value in zip(ascii_uppercase, found, [None, *tests], p_values, strict=False)
    )
    curves = [
        point
        for item, one in zip(items, found, strict=True)
        if isinstance(one.asked, ComparedJob)
        for point in _curve(store, item.label, one.asked)
    ]
    samples = [ComparedSample(i.label, s) for i, one in zip(items, found, strict=True) for s in one.samples]
    return ScheduleComparison(items, tuple(samples), tuple(curves), _knobs(found), NAME, same)


def _found(store: RecordStore, asked: ComparedJob | ComparedRecord) -> _Found:
    if isinstance(asked, ComparedJob):
        job = store.job(valid_key(asked.job_id, "job"))
        if asked.task >= len(job.tasks):
            raise NotFound(f"job {job.id} has {len(job.tasks)} tasks, none with index {asked.task}", field="job")
        best = job.tasks[asked.task].best
        if best is None:
            raise InvalidParameter(f"job {job.id} has no timed trial yet; wait for one", field="job")
        trial = store.trial(best.record.id)
    else:
        trial = store.trial(valid_number(asked.record_id, "record"))
        job = store.job(trial.record.job_id)
    timed = trial.record.trial.outcome
    if not isinstance(timed, Timed):
        raise InvalidParameter(f"record {trial.record.id} failed, and has no time to compare", field="record")
    return _Found(asked, job, trial, timed)


def _item(
    label: str, one: _Found, first: _Found, test: RankTest | None, p_value: float | None, comparisons: int
) -> ComparedView:
    record, task = one.trial.record, one.job.tasks[one.trial.record.task]
    seconds = one.timed.seconds
    return ComparedView(
        label=label,
        title=task_text(task.operator, task.parameters, task.workload_key),
        job_id=record.job_id,
        task=record.task,
        record_id=record.id,
        workload_key=record.identity.workload_key,
        device_name=one.job.device_name or "",
        toolchain_key=record.identity.toolchain_key,
        profile=record.identity.profile,
        strategy=one.job.strategy,
        trials=task.trials,
        schedule=record.trial.schedule,
        seconds=seconds,
        spread=one.timed.spread,
        flops=task.flops,
        ratio=None if test is None else seconds / first.timed.seconds,
        p_value=p_value,
        effect=None if test is None else test.effect,
        says=_says(one, first, p_value, test, comparisons),
    )


def task_text(operator: str | None, parameters: object, workload_key: str) -> str:
    """Return what a task is called: ``matmul m=512 n=512``."""
    given = parameters.items() if isinstance(parameters, dict) else ()
    return " ".join([operator or f"workload {workload_key[:12]}", *(f"{name}={value}" for name, value in given)])


def _says(one: _Found, first: _Found, p_value: float | None, test: RankTest | None, comparisons: int) -> str:
    if one is first:
        return "the others are compared with this one"
    if test is None or p_value is None:
        return "another workload: its time is not compared"
    ratio = one.timed.seconds / first.timed.seconds
    how = f"p = {p_value:.2g}" + (f", corrected for {comparisons} comparisons" if comparisons > 1 else "")
    samples = f"{len(one.samples)} and {len(first.samples)} samples"
    if comparisons * 2 / comb(len(one.samples) + len(first.samples), len(one.samples)) > ALPHA:
        return f"{ratio:.3g} times as long as A, but so few samples cannot show a difference ({samples})"
    if p_value >= ALPHA:
        return f"no difference from A is shown ({how}; effect {test.effect:+.2f}; {samples})"
    text = f"{ratio:.3g} times as long as A" if ratio >= 1 else f"{1 / ratio:.3g} times as fast as A"
    return f"{text} ({how}; effect {test.effect:+.2f}; {samples})"


def _curve(store: RecordStore, label: str, asked: ComparedJob) -> list[CurvePoint]:
    """Return the best so far at every improvement, and at the end."""
    points = store.points(asked.job_id, asked.task, after=-1, limit=MOST_POINTS)
    found = list[CurvePoint]()
    for point in points:
        if point.seconds is not None and (not found or point.seconds < found[-1].seconds):
            found.append(CurvePoint(label, point.sequence + 1, point.elapsed_seconds, point.seconds))
    if found and points[-1].sequence + 1 > found[-1].trials:
        found.append(CurvePoint(label, points[-1].sequence + 1, points[-1].elapsed_seconds, found[-1].seconds))
    return found


def _knobs(found: Sequence[_Found]) -> tuple[KnobRow, ...]:
    """Return all knobs, those that differ first. The sketch counts as one."""
    schedules = [one.trial.record.trial.schedule for one in found]
    tables = [{"sketch": f"{s.sketch} version {s.version}", **dict(s.knobs)} for s in schedules]
    names = dict.fromkeys(name for table in tables for name in table)
    rows = [KnobRow(name, len({t.get(name) for t in tables}) > 1, tuple(t.get(name) for t in tables)) for name in names]
    return tuple(sorted(rows, key=lambda row: not row.differs))
