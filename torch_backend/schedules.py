"""Where the schedule of a kernel comes from: somebody who has tuned it, else the default one."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from ..core.schedule import Schedule
from ..graph.program import Program
from ..te.key import workload_key
from ..te.workload import Workload


class Schedules(Protocol):
    """Somebody who knows tuned schedules."""

    def find(self, workload_keys: Sequence[str]) -> Mapping[str, Schedule]:
        """Return the schedules that are known, by key of the workload. It never raises, and answers within seconds."""
        ...

    def tune(
        self, program: Program, workloads: Mapping[str, Workload], name: str, trials: int
    ) -> Iterator[Mapping[str, Schedule]]:
        """Have kernels of a program tuned by one job of so many trials; all others are left to the library of the
        model. ``workloads``: what is tuned for each of these kernels, by the key of its workload in the program. It is
        that workload or its range. Yield what is known each time a task has come further, and at the end. It never
        raises, and ends where nobody tunes."""
        ...


class NoSchedules:
    """Nobody has tuned anything, and nobody will."""

    def find(self, workload_keys: Sequence[str]) -> Mapping[str, Schedule]:
        return {}

    def tune(
        self, program: Program, workloads: Mapping[str, Workload], name: str, trials: int
    ) -> Iterator[Mapping[str, Schedule]]:
        return iter(())


@dataclass(frozen=True, slots=True)
class TunedWorkload:
    """A workload that is tuned, how many kernels of a program take its schedule, and the operators of the first one."""

    workload: Workload
    count: int
    label: str


def tuned_workloads(program: Program, workloads: Mapping[str, Workload]) -> dict[str, TunedWorkload]:
    """Return what a job tunes for kernels of a program, by key. ``workloads`` are as for ``Schedules.tune``: several
    kernels may have one range."""
    found: dict[str, TunedWorkload] = {}
    for key, workload in workloads.items():
        wanted = workload_key(workload)
        before = found.get(wanted) or TunedWorkload(workload, 0, _label(program, key))
        found[wanted] = TunedWorkload(workload, before.count + program.tasks[key].count, before.label)
    return found


def _label(program: Program, key: str) -> str:
    """Return the operators of the first kernel of a workload."""
    call = program.kernels[program.kernel_keys.index(key)]
    return " ".join(program.graph.producers[n].op for n in call.nodes)
