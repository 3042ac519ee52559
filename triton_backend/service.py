"""Asks a service for the configuration of a Triton kernel, and has it tuned there."""

import json
import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from triton.runtime.driver import driver

from ..api.client import Client
from ..api.client_errors import InvalidRequest, Missing, Unreachable
from ..api.client_lookups import own_identity
from ..api.credentials import stored_token
from ..core.budget import Budget
from ..core.cache_folder import cache_folder, write_atomically
from ..core.errors import TilewrightError
from ..core.keys import content_key
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
ANY_DEVICE = (*RELAX, "device")
"""Any device that runs the same code will do where nobody says which one is meant."""

log = logging.getLogger("tilewright")


class KernelService:
    """A service at an address. Answers are kept on disk, for processes that start while it is away. ``target`` names
    the class of devices that is asked for; by default it is the device of this process."""

    def __init__(self, address: str, target: str | None = None) -> None:
        self._devices = DeviceClass.of_process() if target is None else DeviceClass.named(target)
        self._token = stored_token(address)
        self._client = Client(address, token=self._token, timeout_seconds=TIMEOUT_SECONDS, retries=0)

    @property
    def address(self) -> str:
        return self._client.address

    def find(self, workload: TritonWorkload) -> int | None:
        """Return the number of the best configuration; None where none is known. Where the service does not answer,
        what it answered before counts. Raises TilewrightError where it has not, and where it refuses."""
        devices, key = self._devices, workload_key(workload)
        path = cache_folder("triton") / f"{content_key([self.address, key, devices.name])}.json"
        try:
            best = self._client.best(key, target=devices.lookup, relax=devices.relax).schedule
        except Missing:
            return None
        except Unreachable:
            kept = _kept(path)
            if kept is None:
                raise
            return configuration_of(workload, kept)
        found = Schedule.of(best.sketch, best.version, best.knobs)
        with suppress(OSError):
            write_atomically(path, json.dumps(found.to_json()).encode())
        return configuration_of(workload, found)

    def tune(self, workload: TritonWorkload, done: Callable[[int], None]) -> None:
        """Submit a job that measures every configuration, and return. ``done`` is called on a thread of its own with
        the number of the best one, once the job has ended. Raises TilewrightError where the job is refused."""
        trials = Budget(trials=len(workload.triton.configurations))
        try:
            job = self._client.submit(workload, budget=trials, target=self._devices.job)
        except InvalidRequest:  # a service that has had no such device yet knows the kind alone
            job = self._client.submit(workload, budget=trials, target="cuda")
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


def _kept(path: Path) -> Schedule | None:
    try:
        return Schedule.from_json(json.loads(path.read_text()))
    except (OSError, ValueError, TilewrightError):
        return None


@dataclass(frozen=True)
class DeviceClass:
    """Whose configurations are asked for: ``lookup`` names it in look-ups, where ``relax`` may give way, and ``job`` in
    jobs. ``name`` tells it from others."""

    name: str
    lookup: str
    job: str
    relax: tuple[str, ...]

    @classmethod
    def named(cls, target: str) -> "DeviceClass":
        return cls(target, target, target, ANY_DEVICE)

    @classmethod
    def of_process(cls) -> "DeviceClass":
        """The extra ``cuda`` knows the device itself; without it Triton knows the architecture."""
        own = own_identity("cuda")
        if own is not None and own.code is not None:
            return cls(own.device_key or "", "cuda", ":".join(own.code), RELAX)
        try:
            capability = int(driver.active.get_current_target().arch)
        except (RuntimeError, TypeError, ValueError):  # no device, or none of NVIDIA
            return cls.named("cuda")
        return cls.named(f"cuda:sm_{capability}{'a' if capability >= 90 else ''}")
