"""The supervisor of a builder child, which turns schedules into binaries and needs no device."""

import time
from typing import cast

from ..core.trial import Failed, Timed, TrialStage
from .child_environment import library_threads
from .child_supervisor import ChildSupervisor, WorkerSpec
from .frames import Frame
from .report import BuildReport
from .sandbox import Sandbox
from .wire import Json, binary_from_frame, outcome_from_json


class BuilderSupervisor(ChildSupervisor):
    """See ``executor.Builder``."""

    def __init__(self, spec: WorkerSpec) -> None:
        setup: Json = {
            "role": "build",
            "target": spec.target.to_json(),
            "builder": spec.settings.builder,
            "accept_code": spec.settings.accept_code,
        }
        memory_bytes = spec.settings.builder_memory_bytes
        sandbox = Sandbox(memory_bytes=memory_bytes, programs=spec.settings.accept_code)
        self._spec = spec
        super().__init__(
            setup, spec.settings, environment=library_threads(1), sandbox=sandbox, memory_bytes=memory_bytes
        )

    def build(self, workload: Json, schedule: Json) -> BuildReport:
        """Build one schedule; ``workload`` and ``schedule`` are JSON.

        Raises WorkerLost when the call is interrupted or when no child starts.
        """
        started = time.perf_counter()
        answer = self._candidate(Frame({"workload": workload, "schedule": schedule}), TrialStage.COMPILE, lambda: None)
        wall = time.perf_counter() - started
        if isinstance(answer, Failed):
            return BuildReport(answer, wall, 0.0)
        seconds = cast(float, answer.header["seconds"])
        result = binary_from_frame(answer) if answer.blobs else outcome_from_json(answer.header["outcome"])
        assert not isinstance(result, Timed)
        return BuildReport(result, seconds, wall - seconds)
