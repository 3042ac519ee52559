"""Starts programs of this package by forking a process that has imported them: that costs a hundredth of the processor
time of a start from nothing, so that a test can afford many.

``python -m …fork_server PARENT MODULE …`` reads a request in a line of JSON, forks, and answers with the process id.
"""

import json
import os
import runpy
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Protocol, Self

import psutil

from tilewright.core.child_program import die_with
from tilewright.core.collector import program_loading

MODULE = "tilewright.tests.service.fork_server"


class Process(Protocol):
    """What is needed of a program that runs; ``subprocess.Popen`` has it, too."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None: ...

    def send_signal(self, number: int, /) -> None: ...

    def wait(self, timeout: float | None = None) -> int | None: ...


class ForkedProcess:
    """A program that a fork server started. Nobody learns its exit status: ``poll`` and ``wait`` return 0."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        try:
            self._process: psutil.Process | None = psutil.Process(pid)
        except psutil.NoSuchProcess:
            self._process = None

    def poll(self) -> int | None:
        return None if self._process is not None and self._process.is_running() else 0

    def send_signal(self, number: int, /) -> None:
        if self._process is not None:
            try:
                self._process.send_signal(number)
            except psutil.NoSuchProcess:
                return

    def wait(self, timeout: float | None = None) -> int | None:
        if self._process is not None:
            self._process.wait(timeout)
        return 0


class ForkServer:
    """It runs inside the block, and what it started dies with it. Thread-safe. All programs have its ``environment``
    from their first instruction on, which matters to what LD_PRELOAD names, and may get more variables. None has
    Tilewright's settings of this process."""

    def __init__(self, modules: Sequence[str], environment: Mapping[str, str]) -> None:
        paths = environment.get("PYTHONPATH", os.pathsep.join(p for p in sys.path if p))
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("TILEWRIGHT_")}
        self._environment = {**inherited, **environment, "PYTHONPATH": paths}
        self._words = [sys.executable, "-m", MODULE, str(os.getpid()), *modules]
        self._lock = threading.Lock()

    def start(self, module: str, arguments: Sequence[str], environment: Mapping[str, str], log: Path) -> ForkedProcess:
        """Run a module as ``python -m`` does; its output is appended to ``log``."""
        request = {"module": module, "arguments": list(arguments), "environment": dict(environment), "log": str(log)}
        with self._lock:
            assert self._process.stdin is not None and self._process.stdout is not None
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            return ForkedProcess(int(self._process.stdout.readline()))

    def __enter__(self) -> Self:
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            self._words, stdin=pipe, stdout=pipe, text=True, env=self._environment, cwd="/"
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()


def main(parent: int, modules: Sequence[str]) -> None:
    """Serve the process that started this one, until it closes the pipe."""
    die_with(parent)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the system forgets those that ended
    with program_loading():
        for module in modules:
            import_module(module)
    own = os.getpid()
    while line := sys.stdin.readline():
        request = json.loads(line)
        pid = os.fork()
        if not pid:
            _become(own, **request)
            return
        print(pid, flush=True)


def _become(parent: int, module: str, arguments: Sequence[str], environment: Mapping[str, str], log: str) -> None:
    die_with(parent)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    nothing, output = os.open(os.devnull, os.O_RDONLY), os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    for source, target in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    os.environ.update(environment)
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
