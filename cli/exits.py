"""The exit codes that a script can rely on."""

from enum import IntEnum

from ..api.client_errors import (
    Contradiction,
    InvalidRequest,
    Missing,
    QueueFull,
    TokenRefused,
    Unavailable,
    Unreachable,
)
from ..core.errors import (
    Conflict,
    IllegalSchedule,
    InvalidParameter,
    InvalidWorkload,
    NotFound,
    StoreError,
    TilewrightError,
    UnsupportedTarget,
)


class Exit(IntEnum):
    """0 means success. The parser of options ends with 2 as well."""

    FAILED = 1
    """The job ended without a schedule, or something that nobody foresaw went wrong."""
    BAD_INPUT = 2
    NOT_FOUND = 3
    UNAVAILABLE = 4
    """There is no service, no database, no room on the disk or in the queue or no permission, or the port is in
    use."""
    INTERRUPTED = 130


def exit_code(error: TilewrightError) -> Exit:
    """Return the code that a command ends with after ``error``."""
    match error:
        case NotFound() | Missing():
            return Exit.NOT_FOUND
        case StoreError() | Unreachable() | Unavailable() | QueueFull() | TokenRefused():
            return Exit.UNAVAILABLE
        case InvalidParameter(field="host" | "port"):
            return Exit.UNAVAILABLE
        case InvalidWorkload() | InvalidParameter() | IllegalSchedule() | UnsupportedTarget() | InvalidRequest():
            return Exit.BAD_INPUT
        case Conflict() | Contradiction():
            return Exit.BAD_INPUT
    return Exit.FAILED
