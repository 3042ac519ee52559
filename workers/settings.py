"""Describes the settings of an executor: deadlines, how children start, and how long timing may take."""

import sys
from dataclasses import dataclass, field

from ..core.cgroups import ControlGroups, processor_count
from ..core.errors import InvalidParameter
from .timing import RemeasureRules, TimingRules

BUILDER_BYTES = 512 << 20
"""What a builder seldom goes beyond: libraries that it loads, and what it builds."""
HOST_KINDS = ("llvm",)
"""Target kinds whose device is the processor that builds too. Building and timing must not overlap there."""


@dataclass(frozen=True, slots=True)
class Deadlines:
    """How many seconds a stage may take before its child is killed.

    Deadlines bound hangs and are generous. The timing rules stop a candidate that is merely slow long before.
    """

    start: float = 120.0
    """The time from the spawn of a child to its first message."""
    compile: float = 60.0
    """It includes lowering."""
    ask: float = 30.0
    """It is for questions that need no work: which device and which toolchain there are."""
    prepare: float = 600.0
    """It is for random inputs and the float64 reference of a workload."""
    load: float = 20.0
    check: float = 20.0
    time: float = 30.0
    baseline: float = 120.0
    peaks: float = 120.0
    probe: float = 30.0
    """It is for timing the anchors."""
    wait: float = 86_400.0
    """It is for waiting until another program leaves the device."""

    def by_stage(self) -> dict[str, float]:
        return {name: getattr(self, name) for name in Deadlines.__slots__}


@dataclass(frozen=True, slots=True)
class ExecutorSettings:
    """How an executor works.

    ``builder``: ``module:function`` with the signature ``(workload, target, schedule) -> CompiledKernel``; builder
    children call it. ``python_path``: where children look for modules, by default where the parent does. ``batch``:
    how many candidates are built before they are timed, where the two must not overlap. ``ahead``: how many
    candidates are under way at once, where building and timing overlap. ``builders``: how many children build; None
    means as many as the processors and the memory of this process's control groups allow. ``builder_memory_bytes``:
    the address space of a builder child, so that a runaway compiler hurts nobody else; and the memory of it and the
    programs that it starts, where it has a control group. ``runner_memory_bytes``: the memory of a runner child
    there; 0 means nine tenths of what is available. ``lock_folder``: where the locks of devices lie, by default in
    the folder for temporary files; containers that share devices mount one. ``timing`` and ``final``: how candidates
    are timed, and how the fastest are timed again. ``ray_address``: the cluster of the Ray executor, such as
    ``10.0.0.1:6379``; without it, that executor starts a Ray of its own. ``accept_code``: whether Triton kernels are
    built; then builder children may start programs, which Triton's assembler is one of.
    """

    builder: str = "tilewright.codegen.lowering:build"
    deadlines: Deadlines = field(default_factory=Deadlines)
    timing: TimingRules = field(default_factory=TimingRules)
    final: RemeasureRules = field(default_factory=RemeasureRules)
    batch: int = 8
    ahead: int = 12
    builders: int | None = None
    builder_memory_bytes: int = 8 << 30
    runner_memory_bytes: int = 0
    lock_folder: str = ""
    ray_address: str = ""
    accept_code: bool = False
    python_path: tuple[str, ...] = field(default_factory=lambda: tuple(p for p in sys.path if p))

    def __post_init__(self) -> None:
        if ":" not in self.builder:
            raise InvalidParameter(f"builder {self.builder!r}; allowed: module:function", field="builder")
        for name in ("batch", "ahead", "builders"):
            value = getattr(self, name)
            if value is not None and not 1 <= value <= 10_000:
                raise InvalidParameter(f"{name} of {value}; allowed: 1 to 10000", field=name)


def settings_for(kind: str, deadlines: Deadlines) -> ExecutorSettings:
    """Return the settings that suit devices of a kind.

    A GPU is quiet: samples agree soon, and every candidate gets the same time, about three times what the work around
    it takes, unless it is plainly behind the fastest. Re-measurement there is done on a hot and on a rested chip (see
    ``RemeasureRules``). A processor is disturbed
    by other work, so that a trial takes all of its time.
    """
    if kind in HOST_KINDS:
        timing = TimingRules(least_samples=5, most_seconds=0.04, slower_ratio=1.25)
        return ExecutorSettings(deadlines=deadlines, timing=timing, final=RemeasureRules(most_seconds=1.0), batch=12)
    timing = TimingRules(
        sample_seconds=3e-3, least_samples=9, most_seconds=0.06, slow_seconds=1.0, spread=0.0, behind=0.1
    )
    final = RemeasureRules(most_seconds=3.0, rest_seconds=0.01)
    builders = most_builders(processor_count() - 3)  # for the program, the data child and the runner
    return ExecutorSettings(deadlines=deadlines, timing=timing, final=final, builders=builders)


def builder_count(settings: ExecutorSettings) -> int:
    """Return how many children build on this machine."""
    return settings.builders or most_builders(processor_count())


def most_builders(processors: int, groups: ControlGroups | None = None) -> int:
    """Return how many builders so many processors can have, and the memory of this process's control groups; 1 at
    least."""
    memory = (groups or ControlGroups()).memory_bytes
    return max(1, processors if memory is None else min(processors, memory // BUILDER_BYTES))
