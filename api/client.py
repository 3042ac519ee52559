"""The Python client: every route of the service is a typed method.

    with Client("http://127.0.0.1:8421") as client:
        job = client.submit(operator_task("matmul", {"m": 512, "n": 512, "k": 512}), budget=Budget(trials=64))
        for event in client.events(job.id):
            print(event.kind, event.data)
        print(client.best(job.tasks[0].workload_key).seconds)

``async_client.AsyncClient`` has the same methods, to be awaited. Both need the extra ``client`` only. Methods raise the
errors of ``client_errors``, which are TilewrightErrors. ``client_methods`` describes them.
"""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import httpx2

from ..core.errors import InvalidParameter
from .client_errors import Unreachable
from .client_methods import ServiceMethods, operator_task
from .connection import ServiceConnection
from .figure import progress_figure
from .job_figures import health_figure, knobs_figure, model_figure, workers_figure
from .lookup_cache import LookupCache
from .request_flow import pause_seconds, unreachable
from .responses import EventOut, JobOut
from .sse import EventReader
from .streams import LineSplitter, checked_stream, event_request, figure_title, lost, records_request

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["DEFAULT_ADDRESS", "Client", "operator_task"]
DEFAULT_ADDRESS = "http://127.0.0.1:8421"


class Client(ServiceMethods, ServiceConnection):
    """Connects to a service. Threads may share a client. Close it, or use it in a ``with``.

    ``token`` is the key that a service wants to see (``credentials.stored_token`` finds it). ``retries`` is how often a
    call is repeated after a connection error, a 503 or too many requests; the pause before it grows each time, and is
    not the same for all clients. All calls may be repeated: reads are safe, and ``submit`` always carries an
    Idempotency-Key. Answers of look-ups are kept, and with a ``cache_folder`` for other processes too: one that has not
    changed is not sent again.
    """

    def __init__(
        self,
        address: str = DEFAULT_ADDRESS,
        *,
        token: str | None = None,
        timeout_seconds: float = 60.0,
        retries: int = 5,
        transport: httpx2.BaseTransport | None = None,
        cache_folder: Path | None = None,
    ) -> None:
        super().__init__(address, token=token, timeout_seconds=timeout_seconds, retries=retries, transport=transport)
        self.cache = LookupCache(cache_folder)

    def plot(
        self, job_id: str, kind: str = "progress", *, task: int = 0, across: str = "trials", log: bool = True
    ) -> "Figure":
        """Return a task's chart of one kind as a matplotlib figure; see ``JobOut.plot``."""
        job = self.job(job_id)
        if not 0 <= task < len(job.tasks):
            raise InvalidParameter(f"job {job_id} has {len(job.tasks)} tasks, none with index {task}", field="task")
        shown = job.tasks[task]
        title = figure_title(shown)
        figures: dict[str, Callable[[], Figure]] = {
            "progress": lambda: progress_figure(shown, self.progress(job_id, task=task), title, across=across, log=log),
            "knobs": lambda: knobs_figure(self.knobs(job_id, task=task), title),
            "model": lambda: model_figure(self.model_quality(job_id, task=task), title),
            "workers": lambda: workers_figure(self.task_workers(job_id, task=task), title),
            "health": lambda: health_figure(self.device_health(job_id, task=task), title),
        }
        if kind not in figures:
            raise InvalidParameter(f"{kind[:40]!r} is no figure; allowed: {', '.join(figures)}", field="kind")
        return figures[kind]()

    def _with_plot(self, job: JobOut) -> JobOut:
        job._plot = self.plot
        return job

    def events(self, job_id: str, *, after: int = 0) -> Iterator[EventOut]:
        """Yield the job's events as they happen, until it has ended. This reconnects by itself and misses none.

        Raises Unreachable after ``retries`` failed attempts in a row.
        """
        failures = 0
        while True:
            try:
                for name, text, identifier in self._stream(job_id, after):
                    failures = 0
                    if name == "end":
                        return
                    after = int(identifier or after)
                    yield EventOut.model_validate_json(text)
                if self.poll_events(job_id, after=after).final:
                    return
            except (httpx2.TransportError, Unreachable) as error:
                failures += 1
                if failures > self._retries:
                    raise lost(job_id, error) from error
                time.sleep(pause_seconds(failures))

    def _stream(self, job_id: str, after: int) -> Iterator[tuple[str, str, str]]:
        with self._http.stream(**event_request(job_id, after)) as answer:
            if answer.status_code != 200:
                answer.read()
                checked_stream(answer)
            reader = EventReader()
            for line in answer.iter_lines():
                event = reader.feed(line)
                if event is not None:
                    yield event

    def export_records(self) -> Iterator[str]:
        """Yield every record that the key sees as JSON lines, with the workloads, devices, toolchains and jobs that it
        refers to. Raises Unreachable when the connection is lost on the way."""
        try:
            with self._http.stream(**records_request()) as answer:
                if answer.status_code != 200:
                    answer.read()
                    checked_stream(answer)
                splitter = LineSplitter()
                for chunk in answer.iter_bytes():
                    yield from splitter.feed(chunk)
                yield from splitter.rest()
        except httpx2.TransportError as error:
            raise unreachable(self.address, error) from error
