"""The one file that joins the concrete parts: operators, sketches, code generation, devices, executors, search."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..codegen.backends import BACKENDS, backend_for
from ..codegen.llvm.instructions import count_instructions
from ..codegen.road import layers, sketch_of
from ..core.errors import InvalidParameter, UnsupportedTarget
from ..core.record import MeasuredOn
from ..core.schedule import Schedule
from ..core.target import DeviceInfo, Profile, Target
from ..ir.text import kernel_text
from ..runtime.devices import DEVICES, device_infos
from ..schedule.sketches import sketches_for
from ..te.operators import OPERATORS
from ..te.operators.operator import Operator
from ..te.workload import Workload
from .views import Section

TARGETS: tuple[str, ...] = tuple(kind for kind in BACKENDS if kind in DEVICES)
"""Target kinds that can be both compiled for and timed on here."""

STRATEGY_NAMES = ("random", "evolution", "model")
EXECUTOR_NAMES = ("local", "ray")
CACHES = ("warm", "cold")
"""Cache states a profile can ask for."""


def operators() -> Mapping[str, Operator]:
    """The operator library."""
    return OPERATORS


def operator_named(name: str, field: str = "operator") -> Operator:
    """Raises InvalidParameter naming the operators there are."""
    found = OPERATORS.get(name)
    if found is None:
        raise InvalidParameter(f"{name[:80]!r} is no operator; allowed: {', '.join(OPERATORS)}", field=field)
    return found


def present_devices() -> tuple[DeviceInfo, ...]:
    """The devices attached to this machine."""
    return device_infos()


def measured_on(kind: str, cache: str) -> MeasuredOn:
    """What a job for the target kind would be measured on here. Raises UnsupportedTarget."""
    for info in device_infos():
        if info.target.kind == kind:
            return MeasuredOn(info, backend_for(info.target).toolchain(info.target), Profile(cache))
    raise UnsupportedTarget(f"this machine has no device for {kind!r}", field="target")


def first_schedule(workload: Workload, target: Target) -> Schedule:
    """A legal schedule when none is known yet: the first one of the first sketch that fits."""
    sketches = sketches_for(workload, target)
    if not sketches:
        raise UnsupportedTarget(f"no sketch can write this workload for {target}", field="target")
    return sketches[0].space(workload, target, limit=64).schedule(0)


@dataclass(frozen=True, slots=True)
class Anatomy:
    """Every layer of one schedule's road as text, and the instructions it ends in by class."""

    sections: tuple[Section, ...]
    instructions: Mapping[str, int]


def anatomy(workload: Workload, target: Target, schedule: Schedule) -> Anatomy:
    """Raises IllegalSchedule, CompileError, UnsupportedTarget."""
    road = layers(workload, target, schedule)
    before: Sequence[tuple[str, str]] = [("kernel", kernel_text(road.kernel))]
    after = [(f"after {name}", kernel_text(kernel)) for name, kernel in road.passes]
    sections = [Section(title, "ir", text) for title, text in (*before, *after)]
    sections.append(Section("source", road.source.language, road.source.text))
    sections.append(Section("assembly", "assembly", road.assembly))
    return Anatomy(tuple(sections), count_instructions(road.assembly))


def knob_meanings(workload: Workload, target: Target, schedule: Schedule) -> Mapping[str, str]:
    """What each knob of the schedule's sketch means. Raises IllegalSchedule."""
    space = sketch_of(schedule).space(workload, target, limit=64)
    return {knob.name: knob.meaning for knob in space.knobs}
