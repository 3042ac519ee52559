"""Serve the application: open the service, bind the port, run until told to stop."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import uvicorn

from ..core.errors import InvalidParameter
from ..service.service import Service
from ..service.settings import Settings
from .app import create_app

_STOP_SECONDS = 5


def bind(host: str, port: int) -> socket.socket:
    """A listening socket. Raises InvalidParameter (field ``host`` or ``port``) that says why there is none."""
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


def serve(settings: Settings) -> None:
    """Serve until SIGINT or SIGTERM. Raises InvalidParameter when the port is taken, StoreError when the database
    cannot be opened; nothing is left running then."""
    with bind(settings.host, settings.port) as listener, Service.open(settings) as service:
        server = _server(service, settings)
        server.run(sockets=[listener])
        service.interrupt()


@contextmanager
def running(settings: Settings) -> Iterator[str]:
    """Serve from a thread of this process while the block runs; yields the address. Raises like ``serve``."""
    with bind(settings.host, settings.port) as listener, Service.open(settings) as service:
        server = _server(service, settings)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, name="server", daemon=True)
        thread.start()
        try:
            host, port = listener.getsockname()[:2]
            yield f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        finally:
            service.interrupt()
            server.should_exit = True
            thread.join()


class _Server(uvicorn.Server):
    """Stops at the first SIGINT or SIGTERM and returns, so that the service is closed; uvicorn's own would raise the
    signal again afterwards. The second one stops without waiting for open connections."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.force_exit = self.should_exit
        self.should_exit = True


def _server(service: Service, settings: Settings) -> uvicorn.Server:
    app = create_app(service, settings)
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
