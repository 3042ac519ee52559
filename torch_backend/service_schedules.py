"""Tuned schedules from a service (``torch_backend.schedules.Schedules``)."""

import logging
from collections.abc import Mapping, Sequence

from ..api.client import Client
from ..core.errors import TilewrightError
from ..core.schedule import Schedule

TIMEOUT_SECONDS = 2.0
"""How long a process waits for an answer before it takes defaults."""

log = logging.getLogger("tilewright")


class ServiceSchedules:
    """It asks for all workloads at once. When the service does not answer, none is known. Schedules of other
    toolchains, devices and profiles are welcome: the kernels are built and checked here."""

    def __init__(self, client: Client) -> None:
        self._client = client

    @classmethod
    def at(cls, address: str) -> "ServiceSchedules":
        return cls(Client(address, timeout_seconds=TIMEOUT_SECONDS, retries=0))

    def find(self, workload_keys: Sequence[str]) -> Mapping[str, Schedule]:
        try:
            answers = self._client.best_of_many(workload_keys, relax=("profile", "toolchain", "device"))
        except TilewrightError as error:
            log.warning("no schedules from %s: %s", self._client.address, error.message)
            return {}
        return {
            best.workload_key: Schedule.of(best.schedule.sketch, best.schedule.version, best.schedule.knobs)
            for best in answers
            if best is not None
        }
