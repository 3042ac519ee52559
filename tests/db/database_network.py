"""A network of its own for the database, which services reach by links that can be cut.

service 0 ── 10.77.0.1 ═══ 10.77.0.2 ──┐
service 1 ── 10.77.1.1 ═══ 10.77.1.2 ──┤ PostgreSQL, in a network namespace
"""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import pytest

PREFIX = "tw"


class DatabaseNetwork:
    """``namespace`` is the name of the namespace that the server runs in."""

    def __init__(self, links: int) -> None:
        self.namespace = f"{PREFIX}{os.getpid()}"
        _ip("netns", "add", self.namespace)
        for link in range(links):
            here, there = f"twh{os.getpid()}-{link}"[-15:], self._device(link)
            _ip("link", "add", here, "type", "veth", "peer", "name", there, "netns", self.namespace)
            _ip("addr", "add", f"10.77.{link}.1/30", "dev", here)
            _ip("link", "set", here, "up")
            _ip("-n", self.namespace, "addr", "add", f"{self.address(link)}/30", "dev", there)
            self.heal(link)

    def address(self, link: int) -> str:
        """Where the database is for a service."""
        return f"10.77.{link}.2"

    def cut(self, link: int) -> None:
        """Lose what either side sends from now on."""
        _ip("-n", self.namespace, "link", "set", self._device(link), "down")

    def heal(self, link: int) -> None:
        _ip("-n", self.namespace, "link", "set", self._device(link), "up")

    def _device(self, link: int) -> str:
        return f"link{link}"

    def close(self) -> None:
        """Delete the namespace; its links go with it."""
        _ip("netns", "del", self.namespace)


@contextmanager
def database_network(links: int) -> Iterator[DatabaseNetwork]:
    """Have the network while the block runs. Skip the test where that is not allowed."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("no right to make a network namespace")
    network = DatabaseNetwork(links)
    try:
        yield network
    finally:
        network.close()


def remove_leftovers() -> None:
    """Delete the namespaces of processes that were killed, which could not do so themselves."""
    if os.geteuid() == 0 and shutil.which("ip") is not None:
        for line in _ip("netns", "list").splitlines():
            name = line.split()[0]
            owner = name.removeprefix(PREFIX)
            if name != owner and owner.isdecimal() and not psutil.pid_exists(int(owner)):
                _ip("netns", "del", name)


def _ip(*words: str) -> str:
    """Return what ``ip`` prints."""
    done = subprocess.run(["ip", *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout
