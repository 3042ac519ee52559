"""What the death of a task worker says about the task that it had.

    SIGKILL from outside            killed        says nothing: an administrator, a supervisor, a test
    SIGKILL while memory ran out    actor_lost    the search may have taken it
    SIGKILL because it hung         actor_lost
    the same, but it was held up    holder_delayed  it was stopped, or waited for a processor
    another signal                  actor_lost    it crashed
    it ended by itself              -             it gave its leases back, or they run out

The end of a service with its workers is reported by the next one on its host (``worker_journal``). Nobody is left to
report the end of a host: its leases run out, which counts, because a task that ends its host does so again and again.
"""

import os
import signal
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ..core.fleet import AttemptEnd

COUNTERS = Path("/proc/vmstat")
"""It has how many processes of this machine the kernel has killed to get memory, in whatever control group."""


def memory_kills() -> int | None:
    """Return how many processes the kernel has killed for want of memory since it started; None where it does not say
    so."""
    try:
        counters = dict(line.split() for line in COUNTERS.read_text().splitlines())
    except (OSError, ValueError):
        return None
    return int(counters["oom_kill"]) if "oom_kill" in counters else None


@dataclass(frozen=True, slots=True)
class ProcessorUse:
    """What /proc says of a process: the state of each of its threads by its letter there, and for how many seconds it
    has used a processor."""

    states: str
    seconds: float

    @classmethod
    def of(cls, pid: int) -> "ProcessorUse | None":
        """None where there is no such process, or no /proc."""
        states, ticks = "", 0
        with suppress(OSError, ValueError, IndexError):
            for file in Path(f"/proc/{pid}/task").glob("*/stat"):
                fields = file.read_text().rpartition(")")[2].split()
                states += fields[0]
                ticks += int(fields[11]) + int(fields[12])
        return cls(states, ticks / os.sysconf("SC_CLK_TCK")) if states else None

    def held_up(self, before: "ProcessorUse", most_seconds: float) -> bool:
        """Return whether a process that has been silent since ``before`` was stopped, or waits for a processor, of
        which it used less than ``most_seconds`` meanwhile."""
        return "T" in self.states or ("R" in self.states and self.seconds - before.seconds < most_seconds)


@dataclass(frozen=True, slots=True)
class WorkerDeath:
    """How a worker ended: its exit ``status``, minus the number of the signal that ended it. ``hung``: this program
    killed it, because it did not answer; ``held_up``: something outside kept it from that. The counts are those of
    ``memory_kills`` from its start and after its end."""

    status: int
    hung: bool
    memory_kills_before: int | None
    memory_kills_after: int | None
    held_up: bool = False

    @property
    def end(self) -> AttemptEnd | None:
        """How its attempts ended; None where it ended by itself."""
        if self.status >= 0:
            return None
        if self.held_up:
            return AttemptEnd.HOLDER_DELAYED
        has_memory = self.memory_kills_before is not None and self.memory_kills_before == self.memory_kills_after
        from_outside = self.status == -signal.SIGKILL and not self.hung and has_memory
        return AttemptEnd.KILLED if from_outside else AttemptEnd.ACTOR_LOST

    @property
    def detail(self) -> str:
        """Say for people how it ended."""
        words = f"its task worker ended by signal {-self.status}"
        why = ": it was stopped, or waited for a processor" if self.held_up else ""
        return f"{words}, because it did not answer{why}" if self.hung else words
