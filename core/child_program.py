"""The first thing that a child process of this program does: it asks to die with its parent.

``python -P -m tilewright.core.child_program PARENT MODULE ARGUMENT …`` does so, then loads the module and calls its
``main``. To load a module takes seconds on a busy machine, and the parent may die meanwhile.
"""

import ctypes
import os
import signal
import sys
from importlib import import_module

from .collector import program_loading

_PR_SET_PDEATHSIG = 1


def command(module: str, *arguments: object) -> list[str]:
    """Return the command that runs a module as a child of this process. The kernel kills the child when the *thread*
    that starts it ends."""
    here = [sys.executable, "-P", "-m", "tilewright.core.child_program", str(os.getpid()), module]
    return [*here, *map(str, arguments)]


def die_with(parent: int) -> None:
    """Ask to be killed with the parent. The parent may have died before we asked, hence the second look."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


if __name__ == "__main__":
    die_with(int(sys.argv.pop(1)))
    with program_loading():
        program = import_module(sys.argv.pop(1))
    program.main()
