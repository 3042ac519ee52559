"""The tuning loop: ask, measure, tell, until a budget is spent. Strategies are told drift-corrected outcomes."""

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace

from ..core.budget import Budget, StopReason
from ..core.schedule import Schedule
from ..core.trial import Prediction, Timed, Trial
from .drift import Drift
from .pool import CandidatePool
from .strategy import Observation, Predicts, Strategy

Measure = Callable[[Iterable[Schedule]], Iterator[tuple[int, Trial]]]
"""``Measurer.measure`` with the workload given."""

BATCH = 8
"""Candidates asked for at once: enough to build side by side, few enough to learn between batches. The measurer may
have some of the last batch still on their way when it wants the next one; the strategy is told all that is known."""


@dataclass(frozen=True, slots=True)
class Finished:
    """One trial of the task. ``sequence`` counts from 0, resumed trials included."""

    sequence: int
    candidate: int
    trial: Trial
    is_best: bool
    prediction: Prediction | None = None
    """What the strategy's cost model said of it, if the strategy has one."""


def tune(
    pool: CandidatePool,
    strategy: Strategy,
    measure: Measure,
    budget: Budget,
    *,
    resumed: Sequence[Trial] = (),
    elapsed_seconds: float = 0.0,
    cancelled: Callable[[], bool] = lambda: False,
    clock: Callable[[], float] = time.monotonic,
    batch: int = BATCH,
    first: Sequence[int] = (),
) -> Generator[Finished, None, StopReason]:
    """Yield every new trial as it ends; return why tuning stopped.

    ``resumed``: the task's trials so far, in order; they count towards the budget and are told to the strategy.
    ``elapsed_seconds``: what those took. ``cancelled`` is asked between trials. The consumer should record a trial
    before asking for the next one: what is yielded is then never lost. Candidates of ``first`` that were not measured
    yet come before those of the strategy. The candidate that was drawn first is waited for, however few the seconds of
    the budget: it is the one expected to be the fastest, and others are often compiled before it. Raises what
    ``measure`` raises.
    """
    started = clock() - elapsed_seconds
    sequence, stalled, best = 0, 0, float("inf")
    drift, known = Drift(), set[int]()
    for trial in resumed:
        candidate, seen = pool.candidate_of(trial.schedule), drift.drift_corrected(trial)
        if candidate is not None:
            strategy.tell([Observation(candidate, seen)])
            known.add(candidate)
        better = isinstance(trial.outcome, Timed) and trial.outcome.seconds < best
        best = trial.outcome.seconds if better and isinstance(trial.outcome, Timed) else best
        stalled = 0 if better else stalled + 1
        sequence += 1
    reason = _spent(budget, sequence, stalled, clock() - started, cancelled)
    if reason is not None:
        return reason
    given = [candidate for candidate in dict.fromkeys(first) if candidate not in known]
    asking = _Asking(pool, strategy, budget.trials - sequence, batch, clock, given)
    with closing(closable(measure(asking.schedules()))) as trials:
        for position, trial in trials:
            candidate = asking.candidates[position]
            trial = replace(trial, clocks=replace(trial.clocks, search=asking.seconds[position]))
            better = isinstance(trial.outcome, Timed) and trial.outcome.seconds < best
            best = trial.outcome.seconds if better and isinstance(trial.outcome, Timed) else best
            stalled = 0 if better else stalled + 1
            yield Finished(sequence, candidate, trial, better, asking.predictions[position])
            sequence += 1
            strategy.tell([Observation(candidate, drift.drift_corrected(trial))])
            asking.pending.discard(candidate)
            reason = _spent(budget, sequence, stalled, clock() - started, cancelled)
            asking.ended = reason is not None
            if reason is StopReason.SECONDS and not resumed and asking.candidates[0] in asking.pending:
                continue
            if reason is not None:
                return reason
    return StopReason.EXHAUSTED


@dataclass
class _Asking:
    """What is asked of a strategy as the measurer draws: ``candidates`` in the order they were drawn, the ``seconds``
    of search each cost, the ``predictions`` for them, and those of them that are ``pending``. Those of ``first`` are
    drawn before the strategy is asked. Nothing is drawn once it has ``ended``."""

    pool: CandidatePool
    strategy: Strategy
    most: int
    batch: int
    clock: Callable[[], float]
    first: list[int]
    candidates: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    predictions: list[Prediction | None] = field(default_factory=list)
    pending: set[int] = field(default_factory=set)
    ended: bool = False

    def schedules(self) -> Iterator[Schedule]:
        predictor = self.strategy if isinstance(self.strategy, Predicts) else None
        while len(self.candidates) < self.most and not self.ended:
            began = self.clock()
            room = self.most - len(self.candidates)
            chosen, self.first = self.first[:room], []
            chosen = chosen or self.strategy.ask(min(self.batch, room), self.pending)
            if not chosen:
                return
            seconds = (self.clock() - began) / len(chosen)
            for candidate in chosen:
                self.candidates.append(candidate)
                self.seconds.append(seconds)
                self.predictions.append(predictor.prediction(candidate) if predictor else None)
                self.pending.add(candidate)
                yield self.pool.schedule(candidate)


def _spent(
    budget: Budget, trials: int, stalled: int, seconds: float, cancelled: Callable[[], bool]
) -> StopReason | None:
    if cancelled():
        return StopReason.CANCELLED
    if trials >= budget.trials:
        return StopReason.TRIALS
    if budget.seconds is not None and seconds >= budget.seconds:
        return StopReason.SECONDS
    if budget.stall is not None and stalled >= budget.stall:
        return StopReason.STALL
    return None


def closable(trials: Iterator[tuple[int, Trial]]) -> Generator[tuple[int, Trial], None, None]:
    """Yield a generator over any iterator, so that it can be closed."""
    yield from trials
