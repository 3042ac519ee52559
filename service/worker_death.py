"""What the death of a task worker says about the task that it had.

    SIGKILL from outside            killed        says nothing: an administrator, a supervisor, a test
    SIGKILL while memory ran out    actor_lost    the search may have taken it
    SIGKILL because it hung         actor_lost
    another signal                  actor_lost    it crashed
    it ended by itself              -             it gave its leases back, or they run out

Nobody is left to report the end of a service with its workers, or of a host: their leases run out, which counts,
because a task that ends its host does so again and again.
"""

import signal
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
class WorkerDeath:
    """How a worker ended: its exit ``status``, minus the number of the signal that ended it. ``hung``: this program
    killed it, because it did not answer. The counts are those of ``memory_kills`` from its start and after its end."""

    status: int
    hung: bool
    memory_kills_before: int | None
    memory_kills_after: int | None

    @property
    def end(self) -> AttemptEnd | None:
        """How its attempts ended; None where it ended by itself."""
        if self.status >= 0:
            return None
        has_memory = self.memory_kills_before is not None and self.memory_kills_before == self.memory_kills_after
        from_outside = self.status == -signal.SIGKILL and not self.hung and has_memory
        return AttemptEnd.KILLED if from_outside else AttemptEnd.ACTOR_LOST

    @property
    def detail(self) -> str:
        """Say for people how it ended."""
        words = f"its task worker ended by signal {-self.status}"
        return f"{words}, because it did not answer" if self.hung else words
