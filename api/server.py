"""Serves the application: binds the port, opens the service, and runs until it is told to stop."""

import gc
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import uvicorn

from ..core.errors import InvalidParameter
from ..service.service import Service
from ..service.settings import Settings
from ..service.views import RunningService
from .access import check_access
from .app import create_app

_STOP_SECONDS = 5
COLLECTED = (10_000, 10, 10)
"""After how many new objects Python looks for cycles (``gc.set_threshold``). After 700, as by default, look-ups of ever
new keys, whose answers are kept, cost up to a third more than those of the same ones."""
_SWITCH_SECONDS = 5e-4
"""A thread that computes gives the interpreter to another one that waits for it after so long. The event loop gives it
up several times for each request; with the usual 5 ms and ten busy threads each time would cost it 50 ms."""


def bind(host: str, port: int) -> socket.socket:
    """Return a listening socket. Raises InvalidParameter (field ``host`` or ``port``) that says why there is none."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(128)
    except socket.gaierror as error:
        listener.close()
        raise InvalidParameter(f"cannot listen on {host!r}: {error.strerror}", field="host") from error
    except OSError as error:
        listener.close()
        reason = error.strerror or str(error)
        raise InvalidParameter(f"cannot listen on {host} port {port}: {reason.lower()}", field="port") from error
    return listener


def address_of(listener: socket.socket) -> str:
    """Return the URL under which programs on this machine reach a listening socket."""
    host, port = listener.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # the others listen on every address
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def serve(settings: Settings, started: Callable[[str], None] = lambda url: None) -> None:
    """Serve until SIGINT or SIGTERM. ``started`` is called with the address once nothing can be in the way any more:
    connections are accepted, and answered in a moment.

    Raises InvalidParameter when the port is taken, or when others can reach the service and nobody could administer it;
    DatabaseInUse and StoreError when the database cannot be opened. Nothing is left running then."""
    with bind(settings.host, settings.port) as listener, Service.open(settings) as service:
        check_access(settings, service.users)
        server = _server(service, settings)
        service.announce(address_of(listener), lasting=True)
        sys.setswitchinterval(_SWITCH_SECONDS)
        gc.collect()
        gc.freeze()  # what is loaded stays: collections that went through it would hold answers up
        gc.set_threshold(*COLLECTED)
        started(address_of(listener))
        server.run(sockets=[listener])
        service.interrupt()


@contextmanager
def running(settings: Settings, *, announce: bool = False) -> Iterator[RunningService]:
    """Serve from a thread of this process while the block runs. With ``announce``, other processes find the service.
    Raises what ``serve`` raises."""
    with bind(settings.host, settings.port) as listener, Service.open(settings) as service:
        check_access(settings, service.users)
        server = _server(service, settings)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, name="server", daemon=True)
        thread.start()
        try:
            url = address_of(listener)
            if announce:
                service.announce(url, lasting=False)
            yield RunningService(url, service.instance, lasting=False)
        finally:
            service.interrupt()
            server.should_exit = True
            thread.join()


class _Server(uvicorn.Server):
    """Stops at the first SIGINT or SIGTERM and returns, so that the service is closed. uvicorn's own class would raise
    the signal again afterwards. The second signal stops without waiting for open connections."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.force_exit = self.should_exit
        self.should_exit = True


def _server(service: Service, settings: Settings) -> uvicorn.Server:
    app = create_app(service, settings)
    for (
        route
    ) in app.routes:  # FastAPI prepares routers when they are first asked: a quarter of a second on the event loop
        route.matches({"type": "http", "method": "GET", "path": "", "root_path": "", "headers": []})
    server = _Server(
        uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=True,
            timeout_keep_alive=30,
            timeout_graceful_shutdown=_STOP_SECONDS,
        )
    )
    app.state.stopping = lambda: server.should_exit
    return server
