"""Asks a service for the configuration of a Triton kernel, and has it tuned there."""

import logging
import threading
from collections.abc import Callable

from ..api.client import Client
from ..api.client_errors import Missing
from ..api.credentials import stored_token
from ..core.budget import Budget
from ..core.cache_folder import cache_folder
from ..core.errors import TilewrightError
from ..core.schedule import Schedule
from ..schedule.gpu.triton import configuration_of
from ..te.key import workload_key
from ..te.triton import TritonWorkload

TIMEOUT_SECONDS = 2.0
"""How long a call waits for an answer."""
JOB_RETRIES = 8
"""How often a call about a job is repeated: the job goes on while the connection is away."""
RELAX = ("profile", "toolchain")
"""The toolchain of our own kernels does not matter; the version of Triton is part of the workload."""

log = logging.getLogger("tilewright")


class KernelService:
    """A service at an address. Answers are kept on disk, for processes that start while it is away."""

    def __init__(self, address: str, *, target: str = "cuda") -> None:
        self._target = target
        self._token = stored_token(address)
        self._client = Client(
            address,
            token=self._token,
            timeout_seconds=TIMEOUT_SECONDS,
            retries=0,
            cache_folder=cache_folder("triton"),
        )

    @property
    def address(self) -> str:
        return self._client.address

    def find(self, workload: TritonWorkload) -> int | None:
        """Return the number of the best configuration; None where none is known. Raises TilewrightError where the
        service does not answer or refuses."""
        try:
            best = self._client.best(workload_key(workload), target=self._target, relax=RELAX)
        except Missing:
            return None
        found = best.schedule
        return configuration_of(workload, Schedule.of(found.sketch, found.version, found.knobs))

    def tune(self, workload: TritonWorkload, done: Callable[[int], None]) -> None:
        """Submit a job that measures every configuration, and return. ``done`` is called on a thread of its own with
        the number of the best one, once the job has ended. Raises TilewrightError where the job is refused."""
        trials = Budget(trials=len(workload.triton.configurations))
        job = self._client.submit(workload, budget=trials, target=self._target)
        log.info("job %s of %s tunes %s", job.id, self.address, workload.triton.name)
        threading.Thread(target=self._follow, args=(job.id, workload, done), daemon=True).start()

    def _follow(self, job_id: str, workload: TritonWorkload, done: Callable[[int], None]) -> None:
        try:
            with Client(self.address, token=self._token, retries=JOB_RETRIES) as client:
                for _ in client.events(job_id):
                    pass
            found = self.find(workload)
        except TilewrightError as error:
            log.warning("job %s of %s is not followed any further: %s", job_id, self.address, error.message)
            return
        if found is None:
            log.warning("job %s of %s found no configuration of %s", job_id, self.address, workload.triton.name)
        else:
            done(found)
