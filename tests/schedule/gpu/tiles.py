"""What the tests of tile sketches share: schedules by knobs, agreement on the interpreter, compiling for one device."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from tests.various_rows import various_rows
from tilewright.codegen.backend import Resources
from tilewright.codegen.lowering import build_kernel, finish
from tilewright.core.policy import DEFAULT_POLICY, SpacePolicy
from tilewright.core.schedule import KnobValue, Schedule
from tilewright.core.streams import stream
from tilewright.core.target import Target
from tilewright.ir.interpret import interpret
from tilewright.ir.verify import verify
from tilewright.schedule.sketch import Sketch
from tilewright.schedule.space.space import Space
from tilewright.te.data import random_inputs
from tilewright.te.operators import OPERATORS
from tilewright.te.reference import reference
from tilewright.te.tolerance import tolerance
from tilewright.te.workload import Workload

H200 = Target("cuda", "sm_90a", (), threads=132, vector_bytes=16)
EVERY_LEGAL = WHOLE = SpacePolicy(prune=False)
"""The policy that keeps every legal setting."""


def workload_of(operator: str, **parameters: Any) -> Workload:
    return OPERATORS[operator].workload(parameters)


def schedule_of(sketch: Sketch, workload: Workload, target: Target = H200, /, **knobs: KnobValue) -> Schedule:
    """The first promising schedule with these knobs; AssertionError where there is none."""
    return _first(sketch, _space(sketch, workload, target, DEFAULT_POLICY), knobs)


_spaces: dict[tuple[int, Workload, Target, SpacePolicy], Space] = {}


def _space(sketch: Sketch, workload: Workload, target: Target, policy: SpacePolicy) -> Space:
    """The space of a workload. The last eight are kept: tests ask for them with other knobs again and again."""
    key = (id(sketch), workload, target, policy)
    if key not in _spaces:
        if len(_spaces) == 8:
            del _spaces[next(iter(_spaces))]
        _spaces[key] = sketch.space(workload, target, policy=policy)
    return _spaces[key]


def legal_schedule_of(sketch: Sketch, workload: Workload, target: Target = H200, /, **knobs: KnobValue) -> Schedule:
    """The first legal schedule with these knobs, promising or not; AssertionError where there is none."""
    return _first(sketch, _space(sketch, workload, target, WHOLE), knobs)


def _first(sketch: Sketch, space: Space, knobs: Mapping[str, KnobValue]) -> Schedule:
    kept = np.ones(len(space), dtype=bool)
    for name, value in knobs.items():
        kept &= space.column(name) == value
    assert kept.any(), f"no schedule of {sketch.name} has {knobs}"
    return space.schedule(int(kept.argmax()))


def assert_agrees(
    sketch: Sketch,
    workload: Workload,
    count: int = 8,
    target: Target = H200,
    policy: SpacePolicy = DEFAULT_POLICY,
) -> int:
    """Reference and interpreter agree on ``count`` schedules (all, where there are fewer), which share as few values of
    knobs as can be; how many were tried."""
    assert sketch.matches(workload, target)
    space = _space(sketch, workload, target, policy)
    inputs = random_inputs(workload, 1)
    wanted, limits = reference(workload, inputs), tolerance(workload)
    rows = various_rows(space, stream(1, sketch.name).permutation(len(space)), count)
    for row in rows:
        kernel = sketch.lower(workload, target, space.schedule(row))
        verify(kernel)
        got = interpret(finish(kernel, target), inputs)
        for name in workload.outputs:
            absolute, relative = limits[name]
            a, b = (np.asarray(x[name], np.float64) for x in (got, wanted))
            np.testing.assert_allclose(a, b, relative, absolute, err_msg=f"{name}, {space.schedule(row)}")
    return len(rows)


def assert_schedule_agrees(sketch: Sketch, workload: Workload, schedule: Schedule, target: Target = H200) -> None:
    """Reference and interpreter agree on one schedule."""
    inputs, limits = random_inputs(workload, 1), tolerance(workload)
    kernel = sketch.lower(workload, target, schedule)
    verify(kernel)
    got, wanted = interpret(finish(kernel, target), inputs), reference(workload, inputs)
    for name in workload.outputs:
        absolute, relative = limits[name]
        a, b = (np.asarray(x[name], np.float64) for x in (got, wanted))
        np.testing.assert_allclose(a, b, relative, absolute, err_msg=f"{name}, {schedule}")


def compiled(sketch: Sketch, workload: Workload, target: Target = H200, /, **knobs: KnobValue) -> Resources:
    """What the compiler says of the one function of a schedule."""
    kernel = sketch.lower(workload, target, schedule_of(sketch, workload, target, **knobs))
    (resources,) = build_kernel(kernel, target).resources.values()
    return resources
