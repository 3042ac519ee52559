"""What both kinds of client need for answers that come in parts."""

from typing import Any

import httpx2

from .client_errors import Unreachable
from .request_flow import checked, path_part
from .responses import TaskOut

READ_SECONDS = 60.0
"""The service sends something at least every 15 seconds; silence for longer is a lost connection."""
_TIMEOUT = httpx2.Timeout(READ_SECONDS, connect=5.0)


def event_request(job_id: str, after: int) -> dict[str, Any]:
    """Return the request for the stream of a job's events beyond one, as httpx takes it."""
    headers = {"Accept": "text/event-stream", **({"Last-Event-ID": str(after)} if after else {})}
    return {"method": "GET", "url": f"/v1/jobs/{path_part(job_id)}/events", "headers": headers, "timeout": _TIMEOUT}


def records_request() -> dict[str, Any]:
    """Return the request for all records, as httpx takes it."""
    return {"method": "GET", "url": "/v1/records", "timeout": _TIMEOUT}


def checked_stream(answer: httpx2.Response) -> None:
    """Raise the error of an answer that is none of 200 and was read; Unreachable for one that may be asked again. An
    answer of 204 has no events."""
    if answer.status_code in (429, 503):
        raise Unreachable(f"the service is not available now ({answer.status_code})")
    checked(answer)


def lost(job_id: str, error: Exception) -> Unreachable:
    """Return the error of a stream of events that could not be opened again."""
    return Unreachable(f"lost the events of job {job_id}: {error or type(error).__name__}")


def figure_title(task: TaskOut) -> str:
    """Return what stands above the figure of a task."""
    sizes = " ".join(f"{name}={value}" for name, value in (task.parameters or {}).items())
    return f"{task.operator or f'workload {task.workload_key[:12]}'} {sizes}"


class LineSplitter:
    """Splits at line feeds alone: JSON text may hold other characters that end a line in Unicode."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, chunk: bytes) -> list[str]:
        """Return the lines that a chunk completes."""
        *whole, self._rest = (self._rest + chunk).split(b"\n")
        return [line.decode() for line in whole]

    def rest(self) -> list[str]:
        """Return what stands after the last line feed."""
        return [self._rest.decode()] if self._rest else []
