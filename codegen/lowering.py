"""Runs the lowering pipeline, from a schedule to a binary: lower, passes, emit, compile.

    schedule ─ lower ─▶ kernel IR ─ passes ─▶ kernel IR ─ emit ─▶ source ─ compile ─▶ binary

``build`` runs all of it. ``lowering_stages`` keeps what every stage gives, for people to look at.
"""

import logging
from collections.abc import Collection
from dataclasses import dataclass, replace

from ..core.errors import CompileError, IllegalSchedule, TilewrightError
from ..core.schedule import Schedule
from ..core.target import Target
from ..ir.provenance import Origins, tracing
from ..ir.stmt import Kernel
from ..schedule.defaults import default_schedules
from ..schedule.sketch import Sketch
from ..schedule.sketches import ALL_SKETCHES
from ..te.triton import TritonWorkload
from ..te.workload import Workload
from .backend import Artifacts, CompiledKernel, Source
from .backends import backend_for
from .cuda.triton_compiler import build_triton

log = logging.getLogger("tilewright")


@dataclass(frozen=True, slots=True)
class BuiltKernel:
    """A binary and its schedule. ``tuned``: whether the schedule was given, not a default."""

    schedule: Schedule
    binary: CompiledKernel
    tuned: bool


@dataclass(frozen=True, slots=True)
class LoweringStages:
    """This is what each stage of the lowering pipeline makes of one schedule. ``passes`` holds (name, kernel after it),
    in order. ``origins`` knows what each statement was made from (``codegen.layers`` reads it)."""

    kernel: Kernel
    passes: tuple[tuple[str, Kernel], ...]
    source: Source
    artifacts: Artifacts
    origins: Origins

    @property
    def final(self) -> Kernel:
        """Return the kernel that is emitted: after all passes."""
        return self.passes[-1][1] if self.passes else self.kernel


def sketch_of(schedule: Schedule) -> Sketch:
    """Return the sketch that ``schedule`` is a setting of.

    Raises IllegalSchedule for a sketch that is unknown, or that has another version now.
    """
    sketch = ALL_SKETCHES.get(schedule.sketch)
    if sketch is None:
        raise IllegalSchedule(
            f"no sketch {schedule.sketch!r}; known: {', '.join(ALL_SKETCHES)}", field="/schedule/sketch"
        )
    if sketch.version != schedule.version:
        raise IllegalSchedule(
            f"a schedule of version {schedule.version} of {sketch.name}, which is at version {sketch.version} now",
            field="/schedule/version",
        )
    return sketch


def lower(workload: Workload, target: Target, schedule: Schedule) -> Kernel:
    """Lower one schedule to a kernel, before any pass. Raises IllegalSchedule."""
    sketch = sketch_of(schedule)
    if not sketch.matches(workload, target):
        raise IllegalSchedule(f"{sketch.name} cannot write this workload for {target}", field="/schedule/sketch")
    return replace(sketch.lower(workload, target, schedule), constants=workload.constants)


def finish(kernel: Kernel, target: Target) -> Kernel:
    """Return the kernel after all passes of the target's backend, which is what ``emit`` takes."""
    passes = backend_for(target).passes(kernel)
    return passes[-1][1] if passes else kernel


def build_kernel(kernel: Kernel, target: Target) -> CompiledKernel:
    """Build a lowered kernel: passes, emit, compile. Raises CompileError."""
    backend = backend_for(target)
    return backend.compile(backend.emit(finish(kernel, target), target), target)


def build(workload: Workload, target: Target, schedule: Schedule) -> CompiledKernel:
    """Build one schedule. Raises IllegalSchedule, CompileError, UnsupportedTarget."""
    if isinstance(workload, TritonWorkload):
        sketch_of(schedule)
        return build_triton(workload, target, schedule)
    return build_kernel(lower(workload, target, schedule), target)


def build_known(
    workload: Workload, target: Target, known: Schedule | None, refused_sketches: Collection[str] = ()
) -> BuiltKernel:
    """Build the schedule that is known. Where there is none, or it is not legal here, or its sketch is refused, build
    the first default schedule that the compiler takes. Raises IllegalSchedule, CompileError, UnsupportedTarget."""
    if known is not None and known.sketch not in refused_sketches:
        try:
            return BuiltKernel(known, build(workload, target, known), True)
        except TilewrightError as error:  # a schedule of another machine
            log.info("the schedule of %s is not legal here: %s", known.sketch, error.message)
    refused: TilewrightError = IllegalSchedule("no setting of a sketch is legal for this workload", field="/workload")
    for schedule in default_schedules(workload, target, refused_sketches=refused_sketches):
        try:
            return BuiltKernel(schedule, build(workload, target, schedule), False)
        except CompileError as error:
            refused = error
    raise refused


def lowering_stages(workload: Workload, target: Target, schedule: Schedule) -> LoweringStages:
    """Run the pipeline, and keep what every stage makes. Raises as ``build`` does."""
    backend = backend_for(target)
    kernel = lower(workload, target, schedule)
    with tracing() as origins:
        passes = backend.passes(kernel)
        source = backend.emit(passes[-1][1] if passes else kernel, target)
    return LoweringStages(kernel, passes, source, backend.artifacts(source, target), origins)
