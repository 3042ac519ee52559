"""Ports for servers of tests."""

import socket


def free_port() -> int:
    """Return a port of this machine that nothing listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])
