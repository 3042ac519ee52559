"""The use cases of the dashboard: figures of the whole service and of one task."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from statistics import quantiles

from ..core.fleet import TaskState
from ..core.record import RecordFilter
from ..cost_model.importance import METHOD, knob_importance, top_count
from ..db.dashboard_rows import SettingRow
from ..db.store import RecordStore
from .dashboard_views import (
    DeviceHealthView,
    Knob,
    KnobsView,
    KnobView,
    ModelQualityView,
    OverviewView,
    ProgressView,
    SettingView,
    SliceCell,
    SliceView,
    WinView,
    WorkersView,
)
from .fleet import Fleet
from .model_quality import MOST_POINTS, correlation_of, points_of, rounds_of
from .pagination import page_of_records, valid_key, valid_number
from .views import JobState, JobView, Page, TrialView

MOST_PROGRESS = 5_000
"""A chart with more points is thinned out."""
MOST_SETTINGS = 4_000
"""The importance of knobs is that among so many trials, evenly drawn."""
SHOWN_FASTEST, SHOWN_OTHERS = 100, 100
"""How many lines parallel axes show: more of them cannot be told apart."""
MOST_VALUES = 24
"""So many values of a knob the slice of two knobs shows: those of the fastest trials."""
MOST_HEALTH = 200
WINS = 8


class Dashboard:
    """Every method raises StoreError when the database cannot serve, and those of a task NotFound."""

    def __init__(self, store: RecordStore, fleet: Fleet, jobs: Callable[..., Page[JobView]]) -> None:
        self._store = store
        self._fleet = fleet
        self._jobs = jobs

    def overview(self) -> OverviewView:
        """Return what the service does now, what it found last, and what the last day cost."""
        rows, (tasks, oldest_ready_seconds) = self._store.dashboard, self._fleet.task_counts()
        since = (datetime.now(UTC) - timedelta(days=1)).isoformat(timespec="microseconds").replace("+00:00", "Z")
        running, by_state = rows.running(), self._store.count_by_state()
        rates = [row.lately / row.lately_seconds for row in running if row.lately_seconds > 0]
        return OverviewView(
            since=since,
            jobs={state: by_state.get(state, 0) for state in JobState},
            tasks={state: tasks.get(state, 0) for state in TaskState},
            oldest_ready_seconds=oldest_ready_seconds,
            trials_per_second=sum(rates),
            running=running,
            units=self._fleet.units(),
            wins=tuple(_wins(self._jobs(page_size=WINS, state=JobState.SUCCEEDED).items))[:WINS],
            spent=rows.spent(since),
            failures=rows.causes(since),
        )

    def progress(self, job_id: str, *, task: int = 0, after: int = -1, limit: int = 20_000) -> ProgressView:
        """Return the trials of a task beyond sequence ``after``, thinned out to about MOST_PROGRESS points."""
        count = self._trials(job_id, task)
        step = max(1, -(-(count - 1 - after) // MOST_PROGRESS))
        rows, last_event = self._store.dashboard.progress(
            job_id, task, after=valid_number(after, "after", low=-1), step=step, limit=limit
        )
        samples = self._store.dashboard.samples([row.record_id for row in rows if row.is_best])
        bands = [_quartiles(samples.get(row.record_id, ())) for row in rows]
        return ProgressView(
            job_id,
            task,
            step,
            count,
            last_event,
            record_id=tuple(row.record_id for row in rows),
            sequence=tuple(row.sequence for row in rows),
            elapsed_seconds=tuple(row.elapsed_seconds for row in rows),
            device_seconds=tuple(row.device_seconds for row in rows),
            seconds=tuple(row.seconds for row in rows),
            failure=tuple(row.failure for row in rows),
            best_low=tuple(low for low, _ in bands),
            best_high=tuple(high for _, high in bands),
        )

    def search(self, wanted: RecordFilter, *, page_size: int = 50, token: str = "") -> Page[TrialView]:
        """Return records that a filter lets through, newest first. Raises InvalidParameter for a bad page size or
        token."""
        return page_of_records(self._store, wanted, page_size, token)

    def workers(self, job_id: str, *, task: int = 0) -> WorkersView:
        """Return where the time of a task's trials went, by unit."""
        rows = self._store.dashboard.workers(valid_key(job_id, "job_id"), valid_number(task, "task"))
        return WorkersView(job_id, task, rows)

    def health(self, job_id: str, *, task: int = 0) -> DeviceHealthView:
        """Return what was seen of the device beside at most about MOST_HEALTH trials of a task."""
        step = max(1, self._trials(job_id, task) // MOST_HEALTH)
        rows = self._store.dashboard.health(job_id, task, step=step)
        names = dict.fromkeys(name for row in rows for name in row.readings)
        return DeviceHealthView(job_id, task, step, tuple(sorted(names)), rows)

    def model(self, job_id: str, *, task: int = 0) -> ModelQualityView:
        """Return how well the cost model of a task foretold its trials."""
        rows = self._store.dashboard.predicted(valid_key(job_id, "job_id"), valid_number(task, "task"))
        best_at: list[float | None] = [None]
        if rows:
            for point in self._store.points(job_id, task, after=-1, limit=1 << 20):
                known = [seconds for seconds in (best_at[-1], point.seconds) if seconds is not None]
                best_at.append(min(known, default=None))
        points = points_of(rows, best_at)
        step = max(1, len(points) // MOST_POINTS)
        return ModelQualityView(
            job_id, task, len(points), correlation_of(points), rounds_of(rows, best_at), tuple(points[::step])
        )

    def knobs(self, job_id: str, *, task: int = 0, x: str | None = None, y: str | None = None) -> KnobsView:
        """Return which knobs of a task matter, the fastest settings, and the slice of two knobs: ``x`` and ``y`` where
        they vary, otherwise the most important ones."""
        count = self._trials(job_id, task)
        step = max(1, -(-count // MOST_SETTINGS))
        rows = self._store.dashboard.settings(job_id, task, fastest=SHOWN_FASTEST, step=step)
        return _KnobColumns(rows, step).view(job_id, task, count, x, y)

    def _trials(self, job_id: str, task: int) -> int:
        return self._store.task_trials(valid_key(job_id, "job_id"), valid_number(task, "task"))


def _quartiles(samples: Sequence[float]) -> tuple[float | None, float | None]:
    if len(samples) < 2:
        return None, None
    low, _, high = quantiles(samples, n=4, method="inclusive")
    return low, high


def _wins(jobs: Sequence[JobView]) -> list[WinView]:
    return [
        WinView(
            job.id,
            task.index,
            task.operator,
            task.parameters,
            task.workload_key,
            job.device_name,
            job.finished_at,
            task.best.record_id,
            task.best.seconds,
            task.baseline_seconds,
            task.baseline_name,
            task.roofline_seconds,
            task.trials,
        )
        for job in jobs
        for task in job.tasks
        if task.best is not None
    ]


class _KnobColumns:
    """The knobs of trials as columns. Those whose sequence is a multiple of ``step`` are drawn evenly; the others are
    there because they are among the fastest."""

    def __init__(self, rows: Sequence[SettingRow], step: int) -> None:
        self.rows = rows
        settings = [{"sketch": row.sketch, **row.knobs} for row in rows]
        names = dict.fromkeys(name for setting in settings for name in setting)
        columns = {name: [setting.get(name) for setting in settings] for name in names}
        self.columns: dict[str, list[Knob]] = {name: column for name, column in columns.items() if len(set(column)) > 1}
        self.seconds = [row.seconds or 0.0 for row in rows]
        self.order = sorted(self._timed(1), key=lambda i: (self.seconds[i], rows[i].record_id))
        self.drawn = self._timed(step)
        self.sampled = sum(row.sequence % step == 0 for row in rows)

    def _timed(self, step: int) -> list[int]:
        return [i for i, row in enumerate(self.rows) if row.seconds is not None and row.sequence % step == 0]

    def knobs(self) -> list[KnobView]:
        """Return the knobs that vary, the most important one first."""
        columns = [[column[i] for i in self.drawn] for column in self.columns.values()]
        shares: Sequence[float | None] | None = knob_importance(columns, [self.seconds[i] for i in self.drawn])
        found = [
            KnobView(name, len(set(column)), share, column[self.order[0]] if self.order else None)
            for (name, column), share in zip(self.columns.items(), shares or [None] * len(columns), strict=True)
        ]
        return sorted(found, key=lambda knob: -(knob.importance or 0.0))

    def view(self, job_id: str, task: int, trials: int, x: str | None, y: str | None) -> KnobsView:
        """Return all that is to be said of them, with the slice of ``x`` and ``y`` where these vary."""
        knobs = self.knobs()
        names = [knob.name for knob in knobs]
        chosen = [name for name in dict.fromkeys((x, y)) if name in names]
        chosen = (chosen + [name for name in names if name not in chosen])[:2]
        others = self.order[SHOWN_FASTEST:]
        shown = self.order[:SHOWN_FASTEST] + others[:: max(1, -(-len(others) // SHOWN_OTHERS))]
        return KnobsView(
            job_id,
            task,
            trials,
            sampled=self.sampled,
            timed=len(self.drawn),
            top=top_count(len(self.drawn)),
            method=METHOD,
            knobs=tuple(knobs),
            slice=self._slice(*chosen) if len(chosen) == 2 else None,
            settings=tuple(self._setting(i, names) for i in shown),
        )

    def _setting(self, i: int, names: Sequence[str]) -> SettingView:
        knobs = {name: self.columns[name][i] for name in names}
        return SettingView(self.rows[i].record_id, self.rows[i].sequence, self.seconds[i], knobs)

    def _slice(self, x: str, y: str) -> SliceView:
        cells: dict[tuple[Knob, Knob], tuple[float, int]] = {}
        kept = [set(list(dict.fromkeys(self.columns[name][i] for i in self.order))[:MOST_VALUES]) for name in (x, y)]
        for i in self.order:  # the fastest first
            at = (self.columns[x][i], self.columns[y][i])
            if at[0] not in kept[0] or at[1] not in kept[1]:
                continue
            fastest, count = cells.get(at, (self.seconds[i], 0))
            cells[at] = (fastest, count + 1)
        ordered = sorted(cells, key=lambda at: [(isinstance(v, str), v is None, v if v is not None else 0) for v in at])
        return SliceView(x, y, tuple(SliceCell(*at, *cells[at]) for at in ordered))
