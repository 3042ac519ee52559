"""Traces of OpenTelemetry, from the submission of a job to each of its trials.

All spans of a job are in one trace, whichever processes they come from: its id follows from the job's, so that nothing
has to be stored or handed on. Without an SDK, which users install and set up as they like, spans cost next to nothing
and go nowhere. Task workers get the variables ``OTEL_…`` of the service.
"""

import hashlib
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from opentelemetry import context, trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, NonRecordingSpan, ProxyTracerProvider, SpanContext, TraceFlags

from ..core.fleet import TaskClaim
from ..core.log_context import Ids, present_ids, working_for
from ..core.trial import Failed, Trial

NANOSECONDS = 1_000_000_000


def job_context(job_id: str) -> Context:
    """Return the context in which spans of a job begin."""
    digest = hashlib.sha256(job_id.encode()).digest()
    trace_id, span_id = int.from_bytes(digest[:16], "big"), int.from_bytes(digest[16:24], "big")
    root = SpanContext(trace_id, span_id, is_remote=True, trace_flags=TraceFlags(TraceFlags.SAMPLED))
    return trace.set_span_in_context(NonRecordingSpan(root), Context())


def span_of_job(name: str, job_id: str, seconds: float, attributes: Mapping[str, str | float]) -> None:
    """Tell of something that a job did, which has taken so many seconds until now. The span names the request that
    submitted the job, and links to the one that is open here in another trace, such as that of the request."""
    ended = time.time_ns()
    here = trace.get_current_span().get_span_context()
    request_id = present_ids().get("request_id", "")
    tracer = trace.get_tracer("tilewright")
    span = tracer.start_span(
        name,
        job_context(job_id),
        attributes={"tilewright.job": job_id, "tilewright.request": request_id, **attributes},
        links=[Link(here)] if here.is_valid and not here.is_remote else [],
        start_time=ended - int(seconds * NANOSECONDS),
    )
    span.end(ended)


def span_of_trial(job_id: str, task: int, sequence: int, trial: Trial) -> None:
    """Tell of a trial that was just recorded, with the seconds of each of its clocks."""
    outcome, clocks = trial.outcome, trial.clocks
    how = outcome.reason.value if isinstance(outcome, Failed) else "timed"
    seconds = {name: getattr(clocks, name) for name in ("search", "compile", "check", "time", "overhead")}
    about: dict[str, str | float] = {"tilewright.task": task, "tilewright.trial": sequence}
    about |= {"tilewright.outcome": how, "tilewright.sketch": trial.schedule.sketch}
    about |= {f"tilewright.{name}_seconds": value for name, value in seconds.items()}
    span_of_job("trial", job_id, sum(seconds.values()), about)


@contextmanager
def working_for_task(claim: TaskClaim, unit: str) -> Iterator[None]:
    """Let log lines of the block have the ids of a task, and of its job's trace where an SDK is there."""
    request: Ids = {"request_id": claim.request_id} if claim.request_id else {}
    with working_for({**request, "job": claim.job_id, "task": claim.task, "unit": unit}):
        if isinstance(trace.get_tracer_provider(), ProxyTracerProvider):
            yield
            return
        token = context.attach(job_context(claim.job_id))
        try:
            yield
        finally:
            context.detach(token)
