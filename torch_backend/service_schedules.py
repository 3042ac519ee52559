"""Tuned schedules from a service (``torch_backend.schedules.Schedules``)."""

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from ..core.budget import Budget
from ..core.errors import TilewrightError
from ..core.schedule import Schedule
from ..graph.partition import ForeignCall
from ..graph.program import Program
from ..te.workload import Workload
from .schedules import tuned_workloads

if TYPE_CHECKING:
    from ..api.client import Client

TIMEOUT_SECONDS = 2.0
"""How long a process waits for an answer before it takes defaults."""
JOB_RETRIES = 8
"""How often a call about a job is repeated: the job goes on while the connection is away."""
RELAX = ("profile", "toolchain", "device")

log = logging.getLogger("tilewright")


class ServiceSchedules:
    """It asks for all workloads at once. When the service does not answer, none is known. Schedules of other
    toolchains, devices and profiles are welcome: the kernels are built and checked here. ``kind`` is that of the
    target: ``llvm`` or ``cuda``. It connects when it is first asked, in the background, because the packages of the
    client alone take a third of a second."""

    def __init__(self, address: str, kind: str = "llvm") -> None:
        self._address = address
        self._kind = kind

    @cached_property
    def _client(self) -> "Client":
        return self._connected(0, TIMEOUT_SECONDS)

    def _connected(self, retries: int, timeout_seconds: float = 60.0) -> "Client":
        from ..api.client import Client
        from ..api.credentials import stored_token

        token = stored_token(self._address)
        return Client(self._address, token=token, timeout_seconds=timeout_seconds, retries=retries)

    def find(self, workload_keys: Sequence[str]) -> Mapping[str, Schedule]:
        try:
            return self._known(self._client, workload_keys)
        except (TilewrightError, ImportError) as error:
            log.warning("no schedules from %s: %s", self._address, error)
            return {}

    def _known(self, client: "Client", workload_keys: Sequence[str]) -> Mapping[str, Schedule]:
        answers = client.best_of_many(workload_keys, target=self._kind, relax=RELAX)
        return {
            best.workload_key: Schedule.of(best.schedule.sketch, best.schedule.version, best.schedule.knobs)
            for best in answers
            if best is not None
        }

    def tune(
        self, program: Program, workloads: Mapping[str, Workload], name: str, trials: int
    ) -> Iterator[Mapping[str, Schedule]]:
        foreign = Counter(str(c.node.attributes["target"]) for c in program.calls if isinstance(c, ForeignCall))
        for key, call in zip(program.kernel_keys, program.kernels, strict=True):
            if key not in workloads:
                foreign.update(program.graph.producers[name].op for name in call.nodes)
        tasks = tuned_workloads(program, workloads)
        keys = list(tasks)
        try:
            with self._connected(JOB_RETRIES) as client:
                described = [(task.workload, task.count, task.label) for task in tasks.values()]
                model = client.add_model(name, described, foreign)
                job = client.tune_model(model.key, budget=Budget(max(trials, len(keys))), target=self._kind)
                log.info("job %s of %s tunes the %d workloads of %s", job.id, client.address, len(keys), name)
                for event in client.events(job.id):
                    if event.kind == "task" and "stop_reason" in event.data:
                        yield self._known(client, keys)
                yield self._known(client, keys)
        except (TilewrightError, ImportError) as error:
            log.warning("%s is not tuned any further: %s", name, error)
