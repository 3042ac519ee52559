"""What an executor can be told: deadlines, how children start, and how long timing may take."""

import os
import sys
from dataclasses import dataclass, field

from ..core.errors import InvalidParameter
from .timing import FinalRules, TimingRules

HOST_KINDS = ("llvm",)
"""Target kinds whose device is the processor that also builds: building and timing must not overlap there."""


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Seconds a stage may take before its child is killed. They bound hangs, so they are generous:
    a candidate that is merely slow is stopped by the timing rules long before."""

    start: float = 120.0
    """From the spawn to the first word of a child."""
    compile: float = 60.0
    """Lowering included."""
    ask: float = 30.0
    """Questions that need no work: which device, which toolchain."""
    prepare: float = 600.0
    """Random inputs and the float64 reference, once per workload."""
    load: float = 20.0
    check: float = 20.0
    time: float = 30.0
    baseline: float = 120.0
    peaks: float = 120.0
    wait: float = 86_400.0
    """For a device that another program is timing on."""

    def by_stage(self) -> dict[str, float]:
        return {name: getattr(self, name) for name in Deadlines.__slots__}


@dataclass(frozen=True, slots=True)
class ExecutorSettings:
    """``builder``: ``module:function`` with the signature ``(workload, target, schedule) -> Binary`` that builder
    children call. ``python_path``: where children look for modules (the parent's own path).
    ``batch``: how many candidates are built before they are timed where the two must not overlap; ``ahead``: how many
    are on their way at once where they do. ``builders``: children that build (None: as many as the processor has
    threads). ``builder_memory_bytes``: address space of a builder child, so that a runaway compile hurts nobody else.
    ``final``: how finalists are timed."""

    builder: str = "tilewright.codegen.lowering:build"
    deadlines: Deadlines = field(default_factory=Deadlines)
    timing: TimingRules = field(default_factory=TimingRules)
    final: FinalRules = field(default_factory=FinalRules)
    batch: int = 8
    ahead: int = 12
    builders: int | None = None
    builder_memory_bytes: int = 8 << 30
    python_path: tuple[str, ...] = field(default_factory=lambda: tuple(p for p in sys.path if p))

    def __post_init__(self) -> None:
        if ":" not in self.builder:
            raise InvalidParameter(f"builder {self.builder!r}; allowed: module:function", field="builder")
        for name in ("batch", "ahead", "builders"):
            value = getattr(self, name)
            if value is not None and not 1 <= value <= 10_000:
                raise InvalidParameter(f"{name} of {value}; allowed: 1 to 10000", field=name)


def settings_for(kind: str, deadlines: Deadlines) -> ExecutorSettings:
    """What suits devices of a kind. A graphics processor is quiet, so that samples agree soon, and it does nothing else
    meanwhile: it is given the same time for each candidate, some three times what goes on around it. Finals are played
    hot and rested there (see ``FinalRules``)."""
    if kind in HOST_KINDS:  # where other work disturbs, a trial takes all of its time; finalists meet again
        timing = TimingRules(least_samples=5, most_seconds=0.04, slower_ratio=1.25)
        return ExecutorSettings(deadlines=deadlines, timing=timing, final=FinalRules(most_seconds=1.0), batch=12)
    timing = TimingRules(sample_seconds=3e-3, least_samples=9, most_seconds=0.06, slow_seconds=1.0, spread=0.0)
    final = FinalRules(most_seconds=3.0, rest_seconds=0.01)
    builders = max(1, len(os.sched_getaffinity(0)) - 3)  # for the program, the data child and the runner
    return ExecutorSettings(deadlines=deadlines, timing=timing, final=final, builders=builders)


def builder_count(settings: ExecutorSettings) -> int:
    """How many children build on this machine."""
    return settings.builders or len(os.sched_getaffinity(0))
