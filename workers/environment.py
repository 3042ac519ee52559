"""What the machine did to a measurement: load, processor time taken away, switches forced on us."""

import os
import resource
from dataclasses import dataclass
from pathlib import Path

_TASKS = Path("/proc/self/task")
_STAT = Path("/proc/stat")
_STEAL = 8


@dataclass(frozen=True, slots=True)
class Disturbance:
    """Counters of this process since it started. ``waiting_seconds``: time its threads stood ready without a
    processor (Linux, 0 elsewhere). ``preemptions``: involuntary switches."""

    waiting_seconds: float
    preemptions: int

    def since(self, earlier: "Disturbance") -> "Disturbance":
        return Disturbance(self.waiting_seconds - earlier.waiting_seconds, self.preemptions - earlier.preemptions)


def disturbance() -> Disturbance:
    """Read the counters now (some 20 microseconds per thread). A thread that ends takes its waiting time with it,
    so differences may come out too small, never too large."""
    waiting = 0
    for task in _TASKS.iterdir() if _TASKS.is_dir() else ():
        try:
            waiting += int((task / "schedstat").read_text().split()[1])
        except (OSError, IndexError, ValueError):
            continue
    return Disturbance(waiting / 1e9, resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw)


def stolen_seconds() -> float:
    """Processor time that the hypervisor gave to others since the machine started, all processors together, in steps
    of 10 ms (Linux, 0 elsewhere)."""
    try:
        fields = _STAT.read_text().partition("\n")[0].split()
        return int(fields[_STEAL]) / os.sysconf("SC_CLK_TCK")
    except (OSError, IndexError, ValueError):
        return 0.0


def load() -> dict[str, float]:
    """``load_average_1min`` (processes) as the system gives it, and how many ``processors`` this process may use; empty
    where the system gives no load."""
    try:
        return {"load_average_1min": round(os.getloadavg()[0], 2), "processors": float(len(os.sched_getaffinity(0)))}
    except OSError:
        return {}
