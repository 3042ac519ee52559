"""Tuned schedules from a service (``torch_backend.schedules.Schedules``)."""

import logging
import time
from collections.abc import Mapping, Sequence

from ..api.client import Client
from ..api.client_errors import Missing
from ..core.errors import TilewrightError
from ..core.schedule import Schedule

TIMEOUT_SECONDS = 2.0
"""How long a process waits for all answers together before it takes defaults."""

log = logging.getLogger("tilewright")


class ServiceSchedules:
    """It asks for one workload after the other. When the service does not answer, what is missing counts as unknown."""

    def __init__(self, client: Client) -> None:
        self._client = client

    @classmethod
    def at(cls, address: str) -> "ServiceSchedules":
        return cls(Client(address, timeout_seconds=TIMEOUT_SECONDS, retries=0))

    def find(self, workload_keys: Sequence[str]) -> Mapping[str, Schedule]:
        found: dict[str, Schedule] = {}
        until = time.monotonic() + TIMEOUT_SECONDS
        for key in workload_keys:
            if time.monotonic() > until:
                break
            try:
                best = self._client.best(key)
            except Missing:
                continue
            except TilewrightError as error:
                log.warning("no schedules from %s: %s", self._client.address, error.message)
                break
            found[key] = Schedule.of(best.schedule.sketch, best.schedule.version, best.schedule.knobs)
        return found
