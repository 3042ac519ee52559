"""Keeps counters and gauges for Prometheus in a registry of our own."""

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from ..core.trial import Failed, Trial
from .views import JobState

BUCKETS_SECONDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)


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
        self._lookups = Counter(
            "tilewright_lookups", "Best-schedule look-ups since the start.", ["match"], registry=self.registry
        )
        self._thread = Gauge(
            "tilewright_job_thread_alive", "1 unless jobs should run here and do not.", registry=self.registry
        )

    def trial(self, trial: Trial) -> None:
        """Count a recorded trial."""
        outcome = trial.outcome
        self._trials.labels("timed" if not isinstance(outcome, Failed) else outcome.reason.value).inc()
        for clock in ("search", "compile", "check", "time", "overhead"):
            self._stages.labels(clock).observe(getattr(trial.clocks, clock))

    def lookup(self, match: str) -> None:
        """Count a look-up. ``match`` is ``exact``, ``relaxed`` or ``miss``."""
        self._lookups.labels(match).inc()

    def text(self, jobs: Mapping[str, int], *, thread_alive: bool) -> str:
        """Return the Prometheus text form. ``jobs`` is how many jobs are in each state."""
        for state in JobState:
            self._jobs.labels(state.value).set(jobs.get(state.value, 0))
        self._thread.set(1 if thread_alive else 0)
        return generate_latest(self.registry).decode()
