"""The errors of the client: one class for each kind of refusal, which carries the problem document."""

from ..core.errors import TilewrightError
from .problem import ProblemDetails


class Unreachable(TilewrightError):
    """The service did not answer, after all retries. The caller may try again."""

    code = "UNREACHABLE"


class ProblemError(TilewrightError):
    """The service refused. ``problem`` is its document. This is the base of the classes below."""

    def __init__(self, problem: ProblemDetails) -> None:
        super().__init__(problem.detail, field=problem.field)
        self.problem = problem
        self.code = problem.code


class InvalidRequest(ProblemError):
    """The request is at fault (400, 405, 408, 413, 415, 422), or the key may not do this (403). ``field`` says where.
    It must not be repeated."""


class TokenRefused(ProblemError):
    """The service wants a key, and the client did not show a good one (401). It must not be repeated as it is."""


class QueueFull(ProblemError):
    """The tenant has as much in the queue as it may have, or the key sent too many requests (429). The request may be
    repeated later."""


class Missing(ProblemError):
    """What was asked for does not exist (404). The request must not be repeated."""


class Contradiction(ProblemError):
    """The request contradicts the present state (409). It must not be repeated."""


class Unavailable(ProblemError):
    """The service cannot serve now (503), or has no room (507), after all retries. The caller may try again."""


class ServiceFault(ProblemError):
    """The service failed in a way that it did not expect (other 5xx), or its answer has no known form."""


ERROR_OF_STATUS: dict[int, type[ProblemError]] = {
    400: InvalidRequest,
    401: TokenRefused,
    403: InvalidRequest,
    404: Missing,
    405: InvalidRequest,
    408: InvalidRequest,
    409: Contradiction,
    413: InvalidRequest,
    415: InvalidRequest,
    422: InvalidRequest,
    429: QueueFull,
    503: Unavailable,
    507: Unavailable,
}
