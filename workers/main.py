"""A worker child: ``python -m tilewright.workers.main SOCKET PARENT``. It answers frames until its parent is gone."""

import ctypes
import os
import resource
import signal
import sys
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ..core.collector import collector_resting
from .frames import Frame, receive, send
from .sandbox import Sandbox

if TYPE_CHECKING:
    from .report import Announce  # it loads NumPy, whose threads Landlock would not hold for

_PR_SET_PDEATHSIG = 1
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


def main(descriptor: int, parent: int) -> None:
    """Serve the parent at the other end of ``descriptor``; returns when it closes the connection."""
    die_with(parent)
    _be_harmless()
    connection = Connection(descriptor)
    try:
        setup = receive(connection).header
        try:
            if "sandbox" in setup:
                Sandbox.from_json(setup["sandbox"]).enter()
            module, name = ROLES[str(setup["role"])].split(":")
            with collector_resting():
                role: Role = getattr(import_module(f".{module}", __package__), name)(setup)
        except Exception as error:  # whatever keeps a child from starting must reach the parent as text
            send(connection, Frame({"error": f"{type(error).__name__}: {error}"}))
            return
        send(connection, Frame({"ready": True}))

        def announce(stage: str, item: int | None = None, note: str = "") -> None:
            header: dict[str, object] = {"stage": stage, "note": note}
            send(connection, Frame(header if item is None else {**header, "item": item}))

        while True:
            send(connection, role.answer(receive(connection), announce))
    except (EOFError, OSError):
        return


def die_with(parent: int) -> None:
    """Ask to be killed with the parent. The parent may have died before we asked, hence the second look."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _be_harmless() -> None:
    """No core files of crashed kernels, and the first to go when memory runs out."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if _OOM_SCORE.exists():
        _OOM_SCORE.write_text("500")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
