"""Sends the requests of an ``AsyncClient``, and awaits their answers."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from types import TracebackType
from typing import Self, TypeVar

import httpx2

from .client_errors import Unreachable
from .request_flow import Attempts, Done, FlowRequest, Listing, RequestFlow, advance, connection_options, unreachable

T = TypeVar("T")


class AsyncConnection:
    """Holds the connections to a service, for the tasks of one event loop. What a flow does between two requests may
    take long (files, what this machine is), so that it runs in a thread."""

    def __init__(
        self,
        address: str,
        *,
        token: str | None,
        timeout_seconds: float,
        retries: int,
        transport: httpx2.AsyncBaseTransport | None,
    ) -> None:
        self.address = address.rstrip("/")
        self._token = token
        self._retries = retries
        self._http = httpx2.AsyncClient(transport=transport, **connection_options(self.address, token, timeout_seconds))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def run_flow(self, flow: RequestFlow[T]) -> T:
        """Carry a flow on until it is over; return its result."""
        step = await asyncio.to_thread(advance, flow, None)
        while not isinstance(step, Done):
            step = await asyncio.to_thread(advance, flow, await self._answer(step))
        return step.value

    async def run_listing(self, listing: Listing[T]) -> AsyncIterator[T]:
        """Yield what is on all pages."""
        token: str | None = ""
        while token is not None:
            items, following = listing.read(await self._answer(listing.request(token)))
            for item in items:
                yield item
            token = following or None

    async def _answer(self, asked: FlowRequest) -> httpx2.Response:
        attempts = Attempts(asked, self._retries)
        while True:
            outcome = await self._once(asked)
            pause = attempts.pause(outcome)
            if pause is None:
                return attempts.result(outcome)
            await asyncio.sleep(pause)

    async def _once(self, asked: FlowRequest) -> httpx2.Response | Unreachable:
        options = dict(asked.options)
        if isinstance(options.get("content"), Iterator):
            options["content"] = _asynchronous(options["content"])
        try:
            return await self._http.request(asked.method, asked.path, **options)
        except httpx2.TransportError as error:
            return unreachable(self.address, error)


async def _asynchronous(parts: Iterator[bytes]) -> AsyncIterator[bytes]:
    while (part := await asyncio.to_thread(next, parts, None)) is not None:
        yield part
