"""Keeps counters and gauges for Prometheus in a registry of our own.

What this process does is counted since its start. Figures of the database are gauges: each service on it answers with
the same ones.
"""

from collections.abc import Iterable, Mapping, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from ..core.fleet import AttemptEnd, TaskState, UnitState
from ..core.trial import Failed, Trial
from ..db.rows import FleetFigures
from .fleet_views import UnitView
from .lookup import Answer, Miss
from .views import JobState

BUCKETS_SECONDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)

REQUEST_BUCKETS_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)


class Metrics:
    """Others in the process may add to ``registry``, as the HTTP layer does."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._jobs = Gauge("tilewright_jobs", "Jobs by state.", ["state"], registry=self.registry)
        self._trials = Counter(
            "tilewright_trials", "Trials recorded since the start.", ["outcome"], registry=self.registry
        )
        self._stages = Histogram(
            "tilewright_trial_seconds",
            "Seconds spent on a trial, by clock.",
            ["clock"],
            buckets=BUCKETS_SECONDS,
            registry=self.registry,
        )
        lookups = Counter(
            "tilewright_lookups", "Best-schedule look-ups since the start.", ["match"], registry=self.registry
        )
        self._exact, self._relaxed, self._misses = (lookups.labels(match) for match in ("exact", "relaxed", "miss"))
        self._thread = Gauge(
            "tilewright_job_thread_alive", "1 unless jobs should run here and do not.", registry=self.registry
        )
        self._tasks = self._gauge("tilewright_tasks", "Tasks by state.", "state")
        self._queue_age = self._gauge(
            "tilewright_queue_age_seconds", "For how long the oldest ready task has waited; 0 where none waits."
        )
        self._leases = self._gauge("tilewright_leases", "Leases that are held, by kind: task or unit.", "kind")
        self._attempts = self._gauge("tilewright_attempts", "Attempts at tasks, by how they ended.", "how")
        self._losses = self._gauge("tilewright_task_losses", "Attempts in a row that unfinished tasks have lost.")
        self._units = self._gauge("tilewright_units", "Units of the fleet by state.", "state")
        self._silence = self._gauge(
            "tilewright_task_silence_seconds",
            "For how long the running task that is silent longest has recorded no trial, though its worker may live.",
        )
        self._connections = self._gauge(
            "tilewright_database_connections", "Connections of this process's pool: in use or idle.", "state"
        )
        self._workers = self._gauge(
            "tilewright_task_workers", "Task workers that this process has started, and that died.", "what"
        )
        self._requests = Histogram(
            "tilewright_http_request_seconds",
            "Seconds until the answer to a request began, by route and status.",
            ["method", "route", "status"],
            buckets=REQUEST_BUCKETS_SECONDS,
            registry=self.registry,
        )
        self._answered: dict[tuple[str, str, int], Histogram] = {}
        self._busy = self._gauge(
            "tilewright_unit_busy_ratio", "Share of the last 10 minutes in which a unit had a task.", "unit", "host"
        )

    def _gauge(self, name: str, meaning: str, *labels: str) -> Gauge:
        return Gauge(name, meaning, labels, registry=self.registry)

    def trial(self, trial: Trial) -> None:
        """Count a recorded trial."""
        outcome = trial.outcome
        self._trials.labels("timed" if not isinstance(outcome, Failed) else outcome.reason.value).inc()
        for clock in ("search", "compile", "check", "time", "overhead"):
            self._stages.labels(clock).observe(getattr(trial.clocks, clock))

    def answered(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a request. ``route`` is the path with its parameters' names, so that there are few of them."""
        key = (method, route, status)
        kept = self._answered.get(key)
        if kept is None:
            kept = self._answered[key] = self._requests.labels(method, route, str(status))
        kept.observe(seconds)

    def looked_up(self, found: Iterable[Answer | Miss]) -> None:
        """Count look-ups."""
        misses = relaxed = exact = 0
        for answer in found:
            if isinstance(answer, Miss):
                misses += 1
            elif answer.relaxed:
                relaxed += 1
            else:
                exact += 1
        for counter, count in ((self._misses, misses), (self._relaxed, relaxed), (self._exact, exact)):
            if count:
                counter.inc(count)

    def text(
        self,
        jobs: Mapping[str, int],
        figures: FleetFigures,
        units: Sequence[UnitView],
        *,
        thread_alive: bool,
        connections: tuple[int, int],
        workers: tuple[int, int],
    ) -> str:
        """Return the Prometheus text form. ``jobs`` is how many jobs are in each state; ``connections`` are those in
        use and idle; of the task ``workers``, so many were started, and so many died."""
        self._silence.set(figures.silent_seconds)
        for state_of, count in zip(("used", "idle"), connections, strict=True):
            self._connections.labels(state_of).set(count)
        for what, count in zip(("started", "died"), workers, strict=True):
            self._workers.labels(what).set(count)
        for state in JobState:
            self._jobs.labels(state.value).set(jobs.get(state.value, 0))
        self._thread.set(1 if thread_alive else 0)
        self._queue_age.set(figures.oldest_ready_seconds or 0.0)
        self._losses.set(figures.losses)
        for task_state in TaskState:
            self._tasks.labels(task_state.value).set(figures.tasks.get(task_state.value, 0))
        for kind in ("task", "unit"):
            self._leases.labels(kind).set(figures.leases.get(kind, 0))
        for how in AttemptEnd:
            self._attempts.labels(how.value).set(figures.attempts.get(how.value, 0))
        states = [unit.state for unit in units]
        for unit_state in UnitState:
            self._units.labels(unit_state.value).set(states.count(unit_state))
        self._busy.clear()
        for unit in units:
            self._busy.labels(unit.uuid, unit.host).set(figures.busy.get(unit.uuid, 0.0))
        return generate_latest(self.registry).decode()
