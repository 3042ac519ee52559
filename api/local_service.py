"""Finds the service that runs on an embedded database, or runs one for a command.

One process at a time opens an embedded database. A service says beside it where it answers
(``service.announced``), so that other processes speak to it instead of failing. A service is loaded only to be run.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from ..core.collector import collector_resting, program_loading
from ..core.errors import DatabaseInUse, TilewrightError
from ..service.announced import announced_service
from ..service.settings import Settings
from ..service.views import RunningService
from .client import Client
from .client_errors import TokenRefused

WAIT_SECONDS = 10.0
"""How long to wait for a process that has the database open and does not answer: a command that reads ends soon, and a
service that starts answers soon."""
_RETRY_SECONDS = 0.1
_ASK_SECONDS = 5.0


def find_service(settings: Settings) -> RunningService | None:
    """Return the service that runs on the embedded database of ``settings``, or None where none answers. Raises
    InvalidParameter for a bad database URL, and TokenRefused where the service wants another token."""
    found = announced_service(settings)
    if found is None:
        return None
    try:
        with Client(found.url, token=settings.shown_token, timeout_seconds=_ASK_SECONDS, retries=0) as client:
            instance = client.version().instance
    except TokenRefused:
        raise
    except TilewrightError:
        return None  # it has ended, or another program has its port now
    return found if instance == found.instance else None


def serve_when_free(settings: Settings, started: Callable[[str], None] = lambda url: None) -> None:
    """``server.serve``, after waiting for a command that has the database open for a moment. Raises what ``serve``
    raises, and DatabaseInUse at once where another service runs on the database."""
    with program_loading():
        from .server import serve

    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        try:
            return serve(settings, started)
        except DatabaseInUse:
            if time.monotonic() > deadline or find_service(settings) is not None:
                raise
            time.sleep(_RETRY_SECONDS)


@contextmanager
def local_service(settings: Settings, *, runs_jobs: bool) -> Iterator[RunningService]:
    """Give the service that runs on the database of ``settings``; where there is none, run one in this process while
    the block runs.

    Without ``runs_jobs`` the block only reads: any service will do, and one of this process takes no jobs. With it, the
    block submits or follows jobs: a service that ends with another command is not used.

    Raises DatabaseInUse when such a command has the database open, or a process that does not answer, and what
    ``server.running`` raises.
    """
    own = settings.model_copy(
        update={
            "host": "127.0.0.1",
            "port": 0,
            "allowed_hosts": ("127.0.0.1", "localhost", "[::1]"),
            "log_level": "warning",
            "run_jobs": settings.run_jobs and runs_jobs,
        }
    )
    deadline = time.monotonic() + WAIT_SECONDS
    with ExitStack() as stack:
        while True:
            found = find_service(settings)
            if found is not None and (found.lasting or not runs_jobs):
                break
            with collector_resting():
                from .server import running

            try:
                found = stack.enter_context(running(own, announce=runs_jobs))
                break
            except DatabaseInUse:
                if found is not None or time.monotonic() > deadline:
                    raise
                time.sleep(_RETRY_SECONDS)
        yield found
