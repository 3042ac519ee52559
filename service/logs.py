"""Sets structured logs on standard error up: those of the service, and what lower floors log.

Each line has the ids of the work that it is about (``core.log_context``), and those of its trace where there is one.
"""

import logging
import sys

import structlog
from opentelemetry import trace
from structlog.stdlib import ExtraAdder, ProcessorFormatter
from structlog.typing import EventDict, Processor

from ..core.log_context import present_ids
from .settings import Settings


def configure(settings: Settings) -> None:
    """Set logs up for this process. It writes lines for people, or JSON for machines."""
    renderer: Processor
    if settings.log_format == "json":
        renderer = structlog.processors.JSONRenderer()
    else:
        renderer = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    level = logging.getLevelNamesMapping()[settings.log_level.upper()]
    every_line: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        _add_ids,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    structlog.configure(
        processors=[*every_line, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        # tests replace sys.stderr later; a line is one write, since task workers write to the same file
        logger_factory=lambda *_: structlog.WriteLogger(sys.stderr),
    )
    handler = _StandardError()
    handler.setFormatter(
        ProcessorFormatter(
            foreign_pre_chain=[ExtraAdder(), *every_line],
            processors=[ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    logger = logging.getLogger(__package__.partition(".")[0])
    logger.handlers = [handler]
    logger.setLevel(level)


class _StandardError(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        structlog.WriteLogger(sys.stderr).msg(self.format(record))


def _add_ids(logger: object, method: str, event: EventDict) -> EventDict:
    """Add the ids of the present work, and those of the present span."""
    del logger, method
    for name, value in present_ids().items():
        event.setdefault(name, value)
    span = trace.get_current_span().get_span_context()
    if span.is_valid:
        event.setdefault("trace_id", trace.format_trace_id(span.trace_id))
        event.setdefault("span_id", trace.format_span_id(span.span_id))
    return event
