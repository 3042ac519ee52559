"""Tells the processes of one PostgreSQL of each other's commits, so that none has to look for them often.

    announce()  ─▶  NOTIFY, at most one in ``PAUSE_SECONDS``  ─▶  ``heard()`` in every other process

Notifications are no part of the transactions that they tell of. PostgreSQL lets transactions that notify commit one
after the other, each with its wait for the disk, and trials of all jobs would wait for each other. One that is lost,
because a process died after its commit, only makes others look later.
"""

import secrets
import select
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from ..core.errors import StoreError
from .driver_errors import driven
from .engine import Database

CHANNEL, TASKS = "tilewright_commits", "tasks"
PAUSE_SECONDS = 0.05
RETRY_SECONDS = 1.0
CLOSE_SECONDS = 5.0
"""A thread that waits for a database which does not answer is left behind after so long."""


class CommitListener:
    """``heard`` is called on a thread of this object after commits of other processes, with whether tasks may have
    become ready; and when it begins to listen, because something may have been committed before. ``listening`` is
    False while the database is away."""

    def __init__(self, database: Database, heard: Callable[[bool], None]) -> None:
        self._database = database
        self._heard = heard
        self._name = secrets.token_hex(8)
        self._closing = threading.Event()
        self._pending = self._tasks = False
        self._woken, self._waker = socket.socketpair()
        for end in (self._woken, self._waker):
            end.setblocking(False)
        self.listening = False
        self._thread = threading.Thread(target=self._run, name="commit-listener", daemon=True)
        self._thread.start()

    def announce(self, *, tasks: bool = False) -> None:
        """Tell the other processes soon that something was committed, and whether tasks may be ready by it. This never
        waits."""
        self._tasks |= tasks
        if not self._pending:
            self._pending = True
            self._wake()

    def close(self) -> None:
        """Stop listening."""
        self._closing.set()
        self._wake()
        self._thread.join(CLOSE_SECONDS)
        if not self._thread.is_alive():
            self._woken.close()
            self._waker.close()

    def _wake(self) -> None:
        with suppress(BlockingIOError):  # it is full of wake-ups then
            self._waker.send(b".")

    def _run(self) -> None:
        while not self._closing.is_set():
            with suppress(StoreError), driven(self._database.url, self._database.driver_error):
                with self._database.own_connection() as connection:
                    connection.execute(f"LISTEN {CHANNEL}")
                    self.listening = True
                    self._heard(True)
                    self._listen(connection)
            self.listening = False
            self._closing.wait(RETRY_SECONDS)

    def _listen(self, connection: Any) -> None:
        polled = select.poll()
        for descriptor in (connection.fileno(), self._woken.fileno()):
            polled.register(descriptor, select.POLLIN)
        while not self._closing.is_set():
            polled.poll()
            with suppress(BlockingIOError):
                self._woken.recv(4096)
            if self._pending:
                self._pending = False
                tasks, self._tasks = self._tasks, False
                about = f"{self._name} {TASKS if tasks else ''}"
                connection.execute("SELECT pg_notify(%s, %s)", [CHANNEL, about])
            told = [notification.payload.split(" ") for notification in connection.notifies(timeout=0)]
            others = [what for name, what in told if name != self._name]
            if others:
                self._heard(TASKS in others)
            self._closing.wait(PAUSE_SECONDS)
