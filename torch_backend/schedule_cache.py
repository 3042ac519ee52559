"""Schedules that a service has answered, kept on disk by program, device and toolchain, so that a process that starts
while the service is away runs as fast as the one before."""

import json
from collections.abc import Mapping
from contextlib import suppress

from ..core.cache_folder import cache_folder, write_atomically
from ..core.errors import TilewrightError
from ..core.keys import content_key
from ..core.schedule import Schedule


class ScheduleCache:
    """The schedules of one program on one device with one toolchain. A folder that cannot be used, and a file that
    cannot be read, cost only time."""

    def __init__(self, program_key: str, device_key: str, toolchain_key: str) -> None:
        key = content_key({"program": program_key, "device": device_key, "toolchain": toolchain_key})
        self._path = cache_folder("programs") / f"{key}.json"

    def load(self) -> dict[str, Schedule]:
        """Return what was stored last, by key of the workload."""
        try:
            data = json.loads(self._path.read_text())
            return {str(key): Schedule.from_json(value) for key, value in data.items()}
        except (OSError, ValueError, AttributeError, TilewrightError):
            return {}

    def store(self, schedules: Mapping[str, Schedule]) -> None:
        """Replace what is stored. Processes may share the folder."""
        text = json.dumps({key: schedule.to_json() for key, schedule in sorted(schedules.items())})
        with suppress(OSError):
            write_atomically(self._path, text.encode())
