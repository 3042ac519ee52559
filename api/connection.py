"""Sends the requests of a ``Client``, and waits for their answers."""

import time
from collections.abc import Iterator
from types import TracebackType
from typing import Self, TypeVar

import httpx2

from .client_errors import Unreachable
from .request_flow import Attempts, Done, FlowRequest, Listing, RequestFlow, advance, connection_options, unreachable

T = TypeVar("T")


class ServiceConnection:
    """Holds the connections to a service. Threads may share it."""

    def __init__(
        self,
        address: str,
        *,
        token: str | None,
        timeout_seconds: float,
        retries: int,
        transport: httpx2.BaseTransport | None,
    ) -> None:
        self.address = address.rstrip("/")
        self._token = token
        self._retries = retries
        self._http = httpx2.Client(transport=transport, **connection_options(self.address, token, timeout_seconds))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def run_flow(self, flow: RequestFlow[T]) -> T:
        """Carry a flow on until it is over; return its result."""
        step = advance(flow, None)
        while not isinstance(step, Done):
            step = advance(flow, self._answer(step))
        return step.value

    def run_listing(self, listing: Listing[T]) -> Iterator[T]:
        """Yield what is on all pages."""
        token: str | None = ""
        while token is not None:
            items, following = listing.read(self._answer(listing.request(token)))
            yield from items
            token = following or None

    def _answer(self, asked: FlowRequest) -> httpx2.Response:
        attempts = Attempts(asked, self._retries)
        while True:
            outcome = self._once(asked)
            pause = attempts.pause(outcome)
            if pause is None:
                return attempts.result(outcome)
            time.sleep(pause)

    def _once(self, asked: FlowRequest) -> httpx2.Response | Unreachable:
        try:
            return self._http.request(asked.method, asked.path, **asked.options)
        except httpx2.TransportError as error:
            return unreachable(self.address, error)
