"""What an executor can be told: deadlines, how children start, and how long timing may take."""

import sys
from dataclasses import dataclass, field

from ..core.errors import InvalidParameter
from .timing import TimingRules


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

    def by_stage(self) -> dict[str, float]:
        return {name: getattr(self, name) for name in Deadlines.__slots__}


@dataclass(frozen=True, slots=True)
class ExecutorSettings:
    """``builder``: ``module:function`` with the signature ``(workload, target, schedule) -> Binary`` that builder
    children call. ``python_path``: where children look for modules (the parent's own path).
    ``batch``: how many candidates are built before they are timed where the two must not overlap.
    ``builder_memory_bytes``: address space of a builder child, so that a runaway compile hurts nobody else."""

    builder: str = "tilewright.codegen.road:build"
    deadlines: Deadlines = field(default_factory=Deadlines)
    timing: TimingRules = field(default_factory=TimingRules)
    batch: int = 16
    builder_memory_bytes: int = 8 << 30
    python_path: tuple[str, ...] = field(default_factory=lambda: tuple(p for p in sys.path if p))

    def __post_init__(self) -> None:
        if ":" not in self.builder:
            raise InvalidParameter(f"builder {self.builder!r}; allowed: module:function", field="builder")
        if not 1 <= self.batch <= 10_000:
            raise InvalidParameter(f"batch of {self.batch} candidates; allowed: 1 to 10000", field="batch")
