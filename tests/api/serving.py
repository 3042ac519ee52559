"""Runs a real server on a real port, in a thread of the test's process."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from fastapi import FastAPI


@contextmanager
def running(app: FastAPI) -> Iterator[str]:
    """Serve ``app`` during the block; give its address."""
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(app, log_config=None, access_log=False, timeout_graceful_shutdown=2)
    server = uvicorn.Server(config)
    app.state.stopping = lambda: server.should_exit
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
        listener.close()
