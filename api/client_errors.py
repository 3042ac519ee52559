"""What the client raises: one class for each kind of refusal, carrying the problem document."""

from ..core.errors import TilewrightError
from .problem import Problem


class Unreachable(TilewrightError):
    """No answer from the service, after all retries. Retryable."""

    code = "UNREACHABLE"


class ProblemError(TilewrightError):
    """The service refused; ``problem`` is its document. The base of the classes below."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.detail, field=problem.field)
        self.problem = problem
        self.code = problem.code


class InvalidRequest(ProblemError):
    """The request is at fault (400, 413, 415, 422); ``field`` says where. Final."""


class Missing(ProblemError):
    """What was asked for does not exist (404). Final."""


class Contradiction(ProblemError):
    """The request contradicts the present state (409). Final."""


class Unavailable(ProblemError):
    """The service cannot serve now (503), or has no room (507), after all retries. Retryable."""


class ServiceFault(ProblemError):
    """The service failed in a way it did not expect (other 5xx), or answered what it never should."""


ERROR_OF_STATUS: dict[int, type[ProblemError]] = {
    400: InvalidRequest,
    403: InvalidRequest,
    404: Missing,
    405: InvalidRequest,
    409: Contradiction,
    413: InvalidRequest,
    415: InvalidRequest,
    422: InvalidRequest,
    503: Unavailable,
    507: Unavailable,
}
