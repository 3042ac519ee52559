"""Sets structured logs on standard error up."""

import logging
import sys

import structlog

from .settings import Settings


def configure(settings: Settings) -> None:
    """Set structlog up for this process. It writes lines for people, or JSON for machines."""
    renderer: structlog.typing.Processor
    if settings.log_format == "json":
        renderer = structlog.processors.JSONRenderer()
    else:
        renderer = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[settings.log_level.upper()]),
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),  # tests replace sys.stderr later
    )
