"""Describes what the methods of a client ask and what they make of the answers, once for both kinds of client.

A method is a generator: it yields what it asks, is sent the answers, and returns its result. ``call`` makes of it a
method that waits in a ``Client``, and one to be awaited in an ``AsyncClient``.

    @call
    def job(self, job_id: str) -> RequestFlow[JobOut]:
        return parsed(JobOut, (yield FlowRequest("GET", f"/v1/jobs/{path_part(job_id)}")))

    Client(…).job("x")                -> JobOut
    await AsyncClient(…).job("x")     -> JobOut
"""

import random
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import update_wrapper
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar, overload
from urllib.parse import quote

import httpx2
from pydantic import BaseModel, ValidationError

from ..core.addresses import is_service_address
from ..core.errors import InvalidParameter
from .client_errors import ERROR_OF_STATUS, ServiceFault, Unreachable
from .problem import ProblemDetails

P = ParamSpec("P")
T = TypeVar("T")
Model = TypeVar("Model", bound=BaseModel)


@dataclass
class FlowRequest:
    """Is a request. ``options`` are those of httpx. With ``once`` it is not repeated. A failure among ``allowed`` is
    given to the method; others are raised. ``tries`` is how often it was sent, once there is an answer."""

    method: str
    path: str
    options: dict[str, Any] = field(default_factory=dict)
    once: bool = False
    allowed: tuple[int, ...] = ()
    tries: int = 0


def request(method: str, path: str, **options: Any) -> FlowRequest:
    """Return a request; query parameters that are None are left out."""
    if "params" in options:
        options["params"] = given_parts(options["params"])
    return FlowRequest(method, path, options)


def slow_request(method: str, path: str, **options: Any) -> FlowRequest:
    """Return a request whose answer may take minutes. It is sent once, and waits for its answer without a limit."""
    asked = request(method, path, **options, timeout=httpx2.Timeout(None, connect=5.0))
    asked.once = True
    return asked


RequestFlow = Generator[FlowRequest, httpx2.Response, T]


@dataclass(frozen=True, slots=True)
class Done(Generic[T]):
    """Is the result of a flow that is over."""

    value: T


def advance(flow: RequestFlow[T], answer: httpx2.Response | None) -> FlowRequest | Done[T]:
    """Give a flow the answer that it waits for; None begins it."""
    try:
        return next(flow) if answer is None else flow.send(answer)
    except StopIteration as over:
        return Done(over.value)


class BlockingConnection(Protocol):
    """Waits for the answers of a flow, as ``ServiceConnection`` does."""

    def run_flow(self, flow: RequestFlow[T]) -> T:
        """Carry a flow on until it is over; return its result."""
        ...

    def run_listing(self, listing: "Listing[T]") -> Iterator[T]:
        """Yield what is on all pages."""
        ...


class AwaitedConnection(Protocol):
    """Awaits the answers of a flow, as ``AsyncConnection`` does."""

    async def run_flow(self, flow: RequestFlow[T]) -> T:
        """Carry a flow on until it is over; return its result."""
        ...

    def run_listing(self, listing: "Listing[T]") -> AsyncIterator[T]:
        """Yield what is on all pages."""
        ...


class call(Generic[P, T]):
    """Makes a method of a description; see the module."""

    def __init__(self, describe: Callable[Concatenate[Any, P], RequestFlow[T]]) -> None:
        self.describe = describe
        self.__doc__ = describe.__doc__

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self, instance: BlockingConnection, owner: type) -> Callable[P, T]: ...
    @overload
    def __get__(self, instance: AwaitedConnection, owner: type) -> Callable[P, Coroutine[Any, Any, T]]: ...

    def __get__(self, instance: Any, owner: type) -> Any:
        if instance is None:
            return self

        def method(*arguments: P.args, **keywords: P.kwargs) -> Any:
            return instance.run_flow(self.describe(instance, *arguments, **keywords))

        return update_wrapper(method, self.describe)


@dataclass(frozen=True, slots=True)
class Listing(Generic[T]):
    """Describes a list that comes in pages of the form ``page``; ``items`` returns what one holds."""

    path: str
    page: type[BaseModel]
    items: Callable[[Any], Iterable[T]]
    query: Mapping[str, object] = field(default_factory=dict)

    def request(self, token: str) -> FlowRequest:
        """Return the request for the page with this token; empty: the first."""
        return request("GET", self.path, params={**self.query, "page_token": token or None})

    def read(self, answer: httpx2.Response) -> tuple[Iterable[T], str]:
        """Return the items of a page, and the token of the next; empty: there is none."""
        found = parsed(self.page, answer)
        return self.items(found), str(getattr(found, "next_page_token", ""))


class listed(Generic[P, T]):
    """Makes a method that yields the items of all pages: an iterator in a ``Client``, and an asynchronous one in an
    ``AsyncClient``."""

    def __init__(self, describe: Callable[Concatenate[Any, P], Listing[T]]) -> None:
        self.describe = describe
        self.__doc__ = describe.__doc__

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self, instance: BlockingConnection, owner: type) -> Callable[P, Iterator[T]]: ...
    @overload
    def __get__(self, instance: AwaitedConnection, owner: type) -> Callable[P, AsyncIterator[T]]: ...

    def __get__(self, instance: Any, owner: type) -> Any:
        if instance is None:
            return self

        def method(*arguments: P.args, **keywords: P.kwargs) -> Any:
            return instance.run_listing(self.describe(instance, *arguments, **keywords))

        return update_wrapper(method, self.describe)


class Attempts:
    """Says after each attempt at a request whether there is another one. Connection errors, 503 and limits of rates
    are passing; a full queue is not."""

    def __init__(self, asked: FlowRequest, retries: int) -> None:
        self._asked = asked
        self._left = 0 if asked.once else retries

    def pause(self, outcome: httpx2.Response | Unreachable) -> float | None:
        """Return for how many seconds to wait before the next attempt; None: this was the last."""
        self._asked.tries += 1
        if self._left == 0 or not _is_passing(outcome):
            return None
        self._left -= 1
        given = "" if isinstance(outcome, Unreachable) else outcome.headers.get("retry-after", "")
        return min(float(given), 30.0) if given.isdigit() else pause_seconds(self._asked.tries)

    def result(self, outcome: httpx2.Response | Unreachable) -> httpx2.Response:
        """Return the last answer. Raises Unreachable, or the error of its status."""
        if isinstance(outcome, Unreachable):
            raise outcome
        return outcome if outcome.status_code in self._asked.allowed else checked(outcome)


def _is_passing(outcome: httpx2.Response | Unreachable) -> bool:
    if isinstance(outcome, Unreachable) or outcome.status_code == 503:
        return True
    return outcome.status_code == 429 and b'"QUOTA_EXCEEDED"' not in outcome.content


def pause_seconds(attempt: int) -> float:
    """Return how long to wait after so many attempts in vain: up to twice as long each time, and not all clients
    equally long, so that they do not come back together."""
    return float(min(0.1 * 2**attempt, 5.0)) * random.uniform(0.5, 1.0)


def given_parts(values: Mapping[str, object]) -> dict[str, Any]:
    """Return the values that are not None."""
    return {name: value for name, value in values.items() if value is not None}


def path_part(name: str) -> str:
    """Return a name as one part of a path."""
    return quote(name, safe="")


def checked(answer: httpx2.Response) -> httpx2.Response:
    """Return an answer that is no failure. Raises the error of its status, or ServiceFault."""
    if answer.status_code < 400:
        return answer
    try:
        problem = ProblemDetails.model_validate_json(answer.content)
    except ValidationError:
        detail = f"an answer of {answer.status_code} that is no problem document: {answer.text[:200]!r}"
        problem = ProblemDetails(
            title="Not a problem document", status=answer.status_code, detail=detail, code="BAD_ANSWER"
        )
    raise ERROR_OF_STATUS.get(answer.status_code, ServiceFault)(problem)


def parsed(model: type[Model], answer: httpx2.Response) -> Model:
    """Read an answer. Raises ServiceFault for anything but a ``model``."""
    try:
        return model.model_validate_json(answer.content)
    except ValidationError as error:
        detail = f"an answer that is no {model.__name__}: {error.error_count()} differences, first {error.errors()[0]}"
        problem = ProblemDetails(title="Bad answer", status=answer.status_code, detail=detail, code="BAD_ANSWER")
        raise ServiceFault(problem) from error


def unreachable(address: str, error: httpx2.TransportError) -> Unreachable:
    """Return the error of a client for one of its connection."""
    return Unreachable(f"no answer from {address}: {error or type(error).__name__}")


def connection_options(address: str, token: str | None, timeout_seconds: float) -> dict[str, Any]:
    """Return what both kinds of client give httpx. Raises InvalidParameter for what is no address of a service."""
    if not is_service_address(address):
        raise InvalidParameter(f"{address[:80]!r} is no address of a service; allowed: http://HOST:PORT", field="url")
    return {
        "base_url": address,
        "timeout": httpx2.Timeout(timeout_seconds, connect=min(5.0, timeout_seconds)),
        "trust_env": False,
        "headers": {} if token is None else {"Authorization": f"Bearer {token}"},
    }
