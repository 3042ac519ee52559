"""The Python client for programs with an event loop: the methods of ``client.Client``, to be awaited.

async with AsyncClient("http://127.0.0.1:8421") as client:
    job = await client.submit(operator_task("matmul", {"m": 512, "n": 512, "k": 512}))
    async for event in client.events(job.id):
        print(event.kind, event.data)
    async for job in client.jobs():
        print(job.id)
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import httpx2

from .async_connection import AsyncConnection
from .client import DEFAULT_ADDRESS
from .client_errors import Unreachable
from .client_methods import ServiceMethods
from .lookup_cache import LookupCache
from .request_flow import pause_seconds, unreachable
from .responses import EventOut
from .sse import EventReader
from .streams import LineSplitter, checked_stream, event_request, lost, records_request


class AsyncClient(ServiceMethods, AsyncConnection):
    """Connects to a service. Tasks of one event loop may share a client. The parameters are those of ``Client``."""

    def __init__(
        self,
        address: str = DEFAULT_ADDRESS,
        *,
        token: str | None = None,
        timeout_seconds: float = 60.0,
        retries: int = 5,
        transport: httpx2.AsyncBaseTransport | None = None,
        cache_folder: Path | None = None,
    ) -> None:
        super().__init__(address, token=token, timeout_seconds=timeout_seconds, retries=retries, transport=transport)
        self.cache = LookupCache(cache_folder)

    async def events(self, job_id: str, *, after: int = 0) -> AsyncIterator[EventOut]:
        """Yield the job's events as they happen, as ``Client.events`` does."""
        failures = 0
        while True:
            try:
                async for name, text, identifier in self._stream(job_id, after):
                    failures = 0
                    if name == "end":
                        return
                    after = int(identifier or after)
                    yield EventOut.model_validate_json(text)
                if (await self.poll_events(job_id, after=after)).final:
                    return
            except (httpx2.TransportError, Unreachable) as error:
                failures += 1
                if failures > self._retries:
                    raise lost(job_id, error) from error
                await asyncio.sleep(pause_seconds(failures))

    async def _stream(self, job_id: str, after: int) -> AsyncIterator[tuple[str, str, str]]:
        async with self._http.stream(**event_request(job_id, after)) as answer:
            if answer.status_code != 200:
                await answer.aread()
                checked_stream(answer)
            reader = EventReader()
            async for line in answer.aiter_lines():
                event = reader.feed(line)
                if event is not None:
                    yield event

    async def export_records(self) -> AsyncIterator[str]:
        """Yield every record that the key sees as JSON lines, as ``Client.export_records`` does."""
        try:
            async with self._http.stream(**records_request()) as answer:
                if answer.status_code != 200:
                    await answer.aread()
                    checked_stream(answer)
                splitter = LineSplitter()
                async for chunk in answer.aiter_bytes():
                    for line in splitter.feed(chunk):
                        yield line
                for line in splitter.rest():
                    yield line
        except httpx2.TransportError as error:
            raise unreachable(self.address, error) from error
