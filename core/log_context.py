"""What the present work is for: ids that every log line of it has, in whichever thread or process it is written.

POST /v1/jobs ─ request_id ─▶ jobs.request_id ─▶ TaskClaim ─▶ task worker: request_id, job, task
                                                               └▶ threads of its executor ─▶ children, Ray actors
"""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType

Ids = Mapping[str, str | int]
_PRESENT: ContextVar[Ids] = ContextVar("log_context", default=MappingProxyType({}))


def present_ids() -> Ids:
    """Return the ids of the present work by name."""
    return _PRESENT.get()


def begin_work(ids: Ids) -> None:
    """Say what this thread or task of asyncio works for from now on."""
    _PRESENT.set(ids)


@contextmanager
def working_for(ids: Ids) -> Iterator[None]:
    """Let the block work for this, and for nothing else."""
    token = _PRESENT.set(ids)
    try:
        yield
    finally:
        _PRESENT.reset(token)


class PlainFormatter(logging.Formatter):
    """Writes the ids behind each line, for processes without structured logs."""

    def format(self, record: logging.LogRecord) -> str:
        ids = "".join(f" {name}={value}" for name, value in present_ids().items())
        return super().format(record) + ids


def log_plainly(level: int) -> None:
    """Write the lines of this package on standard error, with the ids. A second call sets the level alone."""
    logger = logging.getLogger(__package__.partition(".")[0])
    logger.setLevel(level)
    if not logger.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(PlainFormatter("%(asctime)s %(levelname)s %(message)s"))
        logger.addHandler(handler)
