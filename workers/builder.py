"""A builder: schedules to binaries, in a child without a device."""

import time
from typing import cast

from ..core.trial import Failed, Stage, Timed
from .frames import Frame
from .report import Built
from .station import Posting, Station, library_threads
from .wire import Json, binary_from_frame, outcome_from_json


class BuildStation(Station):
    """See ``executor.Builder``."""

    def __init__(self, posting: Posting) -> None:
        setup: Json = {
            "role": "build",
            "target": posting.target.to_json(),
            "builder": posting.settings.builder,
            "builder_memory_bytes": posting.settings.builder_memory_bytes,
        }
        super().__init__(setup, posting, environment=library_threads(1))

    def build(self, workload: Json, schedule: Json) -> Built:
        """``workload`` and ``schedule`` are JSON. Raises WorkerLost when interrupted or when no child will start."""
        started = time.perf_counter()
        answer = self._candidate(Frame({"workload": workload, "schedule": schedule}), Stage.COMPILE, lambda: None)
        wall = time.perf_counter() - started
        if isinstance(answer, Failed):
            return Built(answer, wall, 0.0)
        seconds = cast(float, answer.header["seconds"])
        result = binary_from_frame(answer) if answer.blobs else outcome_from_json(answer.header["outcome"])
        assert not isinstance(result, Timed)
        return Built(result, seconds, wall - seconds)
