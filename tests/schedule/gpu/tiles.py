"""What the tests of tile sketches share: schedules by knobs, agreement on the interpreter, compiling for one device."""

from typing import Any

import numpy as np

from tilewright.codegen.backend import Resources
from tilewright.codegen.lowering import build_kernel, finish
from tilewright.core.policy import DEFAULT_POLICY, SpacePolicy
from tilewright.core.schedule import KnobValue, Schedule
from tilewright.core.streams import stream
from tilewright.core.target import Target
from tilewright.ir.interpret import interpret
from tilewright.ir.verify import verify
from tilewright.schedule.sketch import Sketch
from tilewright.te.data import random_inputs
from tilewright.te.operators import OPERATORS
from tilewright.te.reference import reference
from tilewright.te.tolerance import tolerance
from tilewright.te.workload import Workload

H200 = Target("cuda", "sm_90a", (), threads=132, vector_bytes=16)


def workload_of(operator: str, **parameters: Any) -> Workload:
    return OPERATORS[operator].workload(parameters)


def schedule_of(sketch: Sketch, workload: Workload, target: Target = H200, /, **knobs: KnobValue) -> Schedule:
    """The first schedule with these knobs; AssertionError where there is none."""
    space = sketch.space(workload, target)
    for row in range(len(space)):
        schedule = space.schedule(row)
        if all(schedule[name] == value for name, value in knobs.items()):
            return schedule
    raise AssertionError(f"no schedule of {sketch.name} has {knobs}")


EVERY_LEGAL = SpacePolicy(prune=False)


def assert_agrees(
    sketch: Sketch,
    workload: Workload,
    count: int = 20,
    target: Target = H200,
    policy: SpacePolicy = DEFAULT_POLICY,
) -> int:
    """Reference and interpreter agree on ``count`` schedules of the space that ``policy`` keeps (all, where there are
    fewer); how many were tried."""
    assert sketch.matches(workload, target)
    space = sketch.space(workload, target, policy=policy)
    inputs = random_inputs(workload, 1)
    wanted, limits = reference(workload, inputs), tolerance(workload)
    rows = stream(1, sketch.name).permutation(len(space))[:count]
    for row in rows:
        kernel = sketch.lower(workload, target, space.schedule(int(row)))
        verify(kernel)
        got = interpret(finish(kernel, target), inputs)
        for name in workload.outputs:
            absolute, relative = limits[name]
            a, b = (np.asarray(x[name], np.float64) for x in (got, wanted))
            np.testing.assert_allclose(a, b, relative, absolute, err_msg=f"{name}, {space.schedule(int(row))}")
    return len(rows)


def compiled(sketch: Sketch, workload: Workload, target: Target = H200, /, **knobs: KnobValue) -> Resources:
    """What the compiler says of the one function of a schedule."""
    kernel = sketch.lower(workload, target, schedule_of(sketch, workload, target, **knobs))
    (resources,) = build_kernel(kernel, target).resources.values()
    return resources
