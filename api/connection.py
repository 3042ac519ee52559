"""Sends the requests of the Python client, and reads their answers."""

import time
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import quote

import httpx2
from pydantic import BaseModel, ValidationError

from .client_errors import ERROR_OF_STATUS, ServiceFault, Unreachable
from .problem import ProblemDetails

Model = TypeVar("Model", bound=BaseModel)


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
        self._retries = retries
        self._http = httpx2.Client(
            base_url=self.address,
            timeout=httpx2.Timeout(timeout_seconds, connect=min(5.0, timeout_seconds)),
            transport=transport,
            trust_env=False,
            headers={} if token is None else {"Authorization": f"Bearer {token}"},
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def _send(self, method: str, path: str, **options: Any) -> httpx2.Response:
        return checked(self._try(method, path, **options)[0])

    def _try(self, method: str, path: str, **options: Any) -> tuple[httpx2.Response, int]:
        if "params" in options:
            options["params"] = given_parts(options["params"])
        for attempt in range(1, self._retries + 2):
            last = attempt > self._retries
            try:
                answer = self._once(method, path, **options)
            except Unreachable:
                if last:
                    raise
                time.sleep(pause_seconds(attempt))
                continue
            if answer.status_code != 503 or last:
                return answer, attempt
            time.sleep(_retry_after(answer, attempt))
        raise AssertionError("the last attempt returns or raises")

    def _once(self, method: str, path: str, **options: Any) -> httpx2.Response:
        try:
            return self._http.request(method, path, **options)
        except httpx2.TransportError as error:
            raise Unreachable(f"no answer from {self.address}: {error or type(error).__name__}") from error

    def _pages(self, path: str, model: type[Model], query: Mapping[str, object]) -> Iterator[Model]:
        token = ""
        while True:
            page = parsed(model, self._send("GET", path, params={**query, "page_token": token or None}))
            yield page
            token = str(getattr(page, "next_page_token", ""))
            if not token:
                return


def given_parts(values: Mapping[str, object]) -> dict[str, Any]:
    """Return the values that are not None."""
    return {name: value for name, value in values.items() if value is not None}


def path_part(name: str) -> str:
    """Return a name as one part of a path."""
    return quote(name, safe="")


def pause_seconds(attempt: int) -> float:
    """Return how long to wait after so many attempts in vain."""
    return float(min(0.1 * 2**attempt, 5.0))


def _retry_after(answer: httpx2.Response, attempt: int) -> float:
    given = answer.headers.get("retry-after", "")
    return min(float(given), 30.0) if given.isdigit() else pause_seconds(attempt)


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
