"""A worker child, which ``child`` starts by ``core.child_program``. It answers frames until its parent is gone.

What it logs goes to the parent too, which knows what the work is for (``core.log_context``) and where logs are kept.
"""

import logging
import resource
import sys
import threading
import time
from collections.abc import Callable
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ..core.collector import program_loading
from .frames import Frame, receive, send
from .sandbox import Sandbox

if TYPE_CHECKING:
    from .report import Announce  # it loads NumPy, whose threads Landlock would not hold for

_log = logging.getLogger(__package__)
_OOM_SCORE = Path("/proc/self/oom_score_adj")


class Role(Protocol):
    """What a child is for."""

    def answer(self, frame: Frame, announce: "Announce") -> Frame: ...


ROLES = {
    "build": "builder_child:BuilderRole",
    "compile": "compilation_child:CompilationRole",
    "prepare": "reference_child:ReferenceRole",
    "run": "runner_child:RunnerRole",
}
"""Role -> ``module:class`` in this folder, called with the header of the setup frame. Named rather than imported,
because a builder needs no device and a child that starts quickly is replaced quickly."""


def main() -> None:
    """Serve the parent at the other end of the descriptor in the command line; returns when it closes the
    connection."""
    _be_harmless()
    connection = Connection(int(sys.argv[1]))
    try:
        setup = receive(connection).header
        sending = threading.Lock()

        def tell(header: dict[str, object]) -> None:
            with sending:
                send(connection, Frame(header))

        _log_to(tell, int(str(setup.get("log_level", logging.WARNING))))
        try:
            if "sandbox" in setup:
                Sandbox.from_json(setup["sandbox"]).enter()
            module, name = ROLES[str(setup["role"])].split(":")
            with program_loading():
                role: Role = getattr(import_module(f".{module}", __package__), name)(setup)
        except Exception as error:  # whatever keeps a child from starting must reach the parent as text
            send(connection, Frame({"error": f"{type(error).__name__}: {error}"}))
            return
        send(connection, Frame({"ready": True}))

        def announce(stage: str, item: int | None = None) -> None:
            tell({"stage": stage} if item is None else {"stage": stage, "item": item})

        while True:
            request = receive(connection)
            began = time.perf_counter()
            answer = role.answer(request, announce)
            _log.debug("%s took %.3f s", request.header.get("ask", setup["role"]), time.perf_counter() - began)
            with sending:
                send(connection, answer)
    except (EOFError, OSError):
        return


class _ToParent(logging.Handler):
    def __init__(self, tell: Callable[[dict[str, object]], None]) -> None:
        super().__init__()
        self._tell = tell

    def emit(self, record: logging.LogRecord) -> None:
        self._tell({"log": self.format(record), "level": record.levelno})


def _log_to(tell: Callable[[dict[str, object]], None], level: int) -> None:
    """Have lines of this package from a level on told to the parent."""
    logger = logging.getLogger(str(__package__).partition(".")[0])
    logger.setLevel(level)
    logger.addHandler(_ToParent(tell))
    logger.propagate = False


def _be_harmless() -> None:
    """No core files of crashed kernels, and the first to go when memory runs out."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if _OOM_SCORE.exists():
        _OOM_SCORE.write_text("500")
