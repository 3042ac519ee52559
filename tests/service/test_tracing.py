"""Spans of a job are in one trace, whichever processes they come from."""

import pytest
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import _Links
from opentelemetry.util.types import Attributes

from tilewright.core.schedule import Schedule
from tilewright.core.trial import Clocks, Failed, Reason, Timed, Trial, TrialStage
from tilewright.service import tracing


class Spans(trace.NoOpTracer):
    """Keeps what was begun, as an SDK would."""

    def __init__(self) -> None:
        self.begun: list[tuple[str, int, dict[str, object]]] = []

    def start_span(
        self,
        name: str,
        context: Context | None = None,
        kind: trace.SpanKind = trace.SpanKind.INTERNAL,
        attributes: Attributes = None,
        links: _Links = None,
        start_time: int | None = None,
        record_exception: bool = True,
        set_status_on_exception: bool = True,
    ) -> trace.Span:
        parent = trace.get_current_span(context).get_span_context()
        assert parent.is_valid and parent.is_remote and start_time
        self.begun.append((name, parent.trace_id, dict(attributes or {})))
        return trace.INVALID_SPAN


def test_all_spans_of_a_job_have_its_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    spans = Spans()
    monkeypatch.setattr(trace, "get_tracer", lambda name: spans)
    schedule = Schedule.of("loops", 1, {})
    timed = Trial(schedule, Timed((1e-6,)), Clocks(0.5, 1.0))
    lost = Trial(schedule, Failed(TrialStage.CHECK, Reason.WRONG_RESULT))
    for job in ("a", "b"):
        tracing.span_of_job("submit", job, 0.1, {})
        tracing.span_of_trial(job, 1, 0, timed)
        tracing.span_of_trial(job, 1, 1, lost)
    traces = [number for _, number, _ in spans.begun]
    assert len({*traces[:3]}) == len({*traces[3:]}) == 1 and traces[0] != traces[3]
    assert [about.get("tilewright.outcome") for _, _, about in spans.begun[:3]] == [None, "timed", "wrong_result"]
    assert spans.begun[1][2]["tilewright.compile_seconds"] == 1.0
