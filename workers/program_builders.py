"""Children build the kernels of a program, so that a program of hundreds of kernels uses many cores.

A thread of this process cannot do it: the interpreter runs one of them at a time, and the program's own calls wait for
it meanwhile.

    workload, known schedule ─▶ child: choose, lower, compile ─▶ schedule, binary
"""

import os
import sys
import threading
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from ..codegen.lowering import BuiltKernel, build_known
from ..core.cgroups import processor_count
from ..core.errors import WorkerLost
from ..core.schedule import Schedule
from ..core.target import Target
from ..te.json import workload_from_json, workload_to_json
from ..te.workload import Workload
from .compilation_pool import CompilationSupervisor
from .frames import Frame
from .pool import WorkerPool
from .settings import ExecutorSettings
from .wire import Json, binary_from_frame, binary_to_frame, target_from_json

MOST_CHILDREN = 8
IDLE_SECONDS = 20.0
"""Children that have built nothing for so long end. They take some 100 MB each."""


def program_children() -> int:
    """Return how many children build a program on this host: half of its processors, eight at most. None do in a
    program that embeds Python, such as a web server: it cannot be started as one."""
    is_python = Path(sys.executable).name.startswith("python")
    return min(MOST_CHILDREN, processor_count() // 2) if is_python else 0


class ProgramBuilders:
    """A ``runtime.kernels.BuildKernel`` that has ``children`` children. It is thread-safe. The children start with the
    first kernel, and end when they have been idle for ``idle_seconds``. Where none starts, this process builds."""

    def __init__(self, children: int, idle_seconds: float = IDLE_SECONDS) -> None:
        self._children = children
        self._idle_seconds = idle_seconds
        self._reset()
        os.register_at_fork(after_in_child=self._reset)

    def __call__(
        self, workload: Workload, target: Target, known: Schedule | None, refused_sketches: Collection[str] = ()
    ) -> BuiltKernel:
        if workload.dynamic:
            return build_known(workload, target, known, refused_sketches)
        question: Json = {
            "ask": "build",
            "workload": workload_to_json(workload),
            "target": target.to_json(),
            "known": None if known is None else known.to_json(),
            "refused": sorted(refused_sketches),
        }
        with self._lock:
            future = self._begun().submit(lambda supervisor: supervisor.ask(question))
            self._building += 1
        try:
            frame = future.result()
        except (WorkerLost, OSError):
            return build_known(workload, target, known, refused_sketches)
        finally:
            with self._lock:
                self._building -= 1
                self._last = time.monotonic()
        schedule = Schedule.from_json(frame.header["schedule"])
        return BuiltKernel(schedule, binary_from_frame(frame), bool(frame.header["tuned"]))

    @property
    def is_idle(self) -> bool:
        """Whether there are no children."""
        return self._pool is None

    def _reset(self) -> None:
        """Begin without children. A forked process has none: they belong to threads of its parent."""
        self._lock = threading.Lock()
        self._pool: WorkerPool[CompilationSupervisor] | None = None
        self._building, self._last = 0, time.monotonic()

    def _begun(self) -> WorkerPool[CompilationSupervisor]:
        if self._pool is None:
            compiler = f"{__name__}:{built.__name__}"
            supervisors = [CompilationSupervisor(ExecutorSettings(), compiler) for _ in range(self._children)]
            self._pool = WorkerPool(supervisors, "program-builder")
            threading.Thread(target=self._end_when_idle, name="program-builders", daemon=True).start()
        return self._pool

    def _end_when_idle(self) -> None:
        pool, left = self._pool, self._idle_seconds
        assert pool is not None
        while left > 0:
            time.sleep(left)
            with self._lock:
                left = self._idle_seconds if self._building else self._last + self._idle_seconds - time.monotonic()
                if left <= 0:
                    self._pool = None
        pool.close()


def built(question: Mapping[str, Any]) -> Frame:
    """Answer a question in a child. Raises IllegalSchedule, CompileError, UnsupportedTarget."""
    known = question["known"]
    found = build_known(
        workload_from_json(question["workload"]),
        target_from_json(question["target"]),
        None if known is None else Schedule.from_json(known),
        question["refused"],
    )
    return binary_to_frame(found.binary, {"schedule": found.schedule.to_json(), "tuned": found.tuned})
