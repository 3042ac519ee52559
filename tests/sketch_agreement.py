"""Do the kernels of a sketch compute their workload? Asked of reference, interpreter and compiled kernel.

Without a device for the target, kernels are compiled all the same, one of each workload, but not run.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.codegen.backend import CompiledKernel
from tilewright.codegen.backends import backend_for
from tilewright.codegen.lowering import finish, lower
from tilewright.core.errors import ResourcesExceeded, UnsupportedTarget
from tilewright.core.policy import DEFAULT_POLICY, SpacePolicy
from tilewright.core.streams import stream
from tilewright.core.target import Target
from tilewright.ir.interpret import interpret
from tilewright.ir.stmt import Kernel
from tilewright.ir.verify import verify
from tilewright.runtime.device import Device
from tilewright.runtime.devices import open_device
from tilewright.schedule.sketches import SKETCHES
from tilewright.te.data import random_inputs
from tilewright.te.dynamic import at_extent
from tilewright.te.operators import OPERATORS
from tilewright.te.reference import reference
from tilewright.te.tolerance import tolerance
from tilewright.te.workload import Workload
from tilewright.tests.random_expressions import random_workload

Arrays = Mapping[str, NDArray[Any]]


def check_operator(sketch: str, target: Target, operator: str, parameters: Mapping[str, Any], schedules: int) -> int:
    return check_schedules(sketch, target, OPERATORS[operator].workload(parameters), 0, schedules)


def check_random(sketch: str, target: Target, seed: int, schedules: int) -> int:
    return check_schedules(sketch, target, random_workload(seed), seed, schedules)


def check_schedules(
    sketch: str, target: Target, workload: Workload, seed: int, count: int, policy: SpacePolicy = DEFAULT_POLICY
) -> int:
    """Draw ``count`` schedules (all, where there are fewer) and compare; how many kernels were compared.

    Raises AssertionError that names the schedule and what differs; other errors carry the schedule as a note.
    """
    if not SKETCHES[sketch].matches(workload, target):
        return 0
    space = SKETCHES[sketch].space(workload, target, seed=seed, limit=10_000, policy=policy)
    rows = stream(seed, "schedules").permutation(len(space))[:count]
    inputs = random_inputs(workload, seed)
    wanted, limits = reference(workload, inputs), tolerance(workload)
    device = _device(target)
    for number, row in enumerate(rows):
        schedule = space.schedule(int(row))
        try:
            lowered = lower(workload, target, schedule)
            verify(lowered)
            final = finish(lowered, target)
            agree("interpreted", interpret(final, inputs), wanted, limits)
            if device is not None or number == 0:
                _compiled(device, final, target, inputs, wanted, limits)
        except Exception as error:
            error.add_note(str(schedule))
            raise
    return len(rows)


def check_dynamic(sketch: str, target: Target, workload: Workload, extents: Sequence[int], count: int) -> int:
    """Draw ``count`` schedules of a workload with a dynamic dimension and compare one kernel of each at all
    ``extents``, with references of their own; how many kernels were compared."""
    space = SKETCHES[sketch].space(workload, target, limit=10_000)
    rows = stream(0, "schedules").permutation(len(space))[:count]
    calls = []
    for extent in extents:
        static = at_extent(workload, extent)
        inputs = random_inputs(static, extent)
        calls.append((inputs, reference(static, inputs), tolerance(static)))
    device = _device(target)
    for number, row in enumerate(rows):
        schedule = space.schedule(int(row))
        try:
            lowered = lower(workload, target, schedule)
            verify(lowered)
            final = finish(lowered, target)
            verify(final, final=True)
            for inputs, wanted, limits in calls:
                agree("interpreted", interpret(final, inputs), wanted, limits)
            if device is not None or number == 0:
                for extent, (inputs, wanted, limits) in zip(extents, calls, strict=True):
                    _compiled(device, final, target, inputs, wanted, limits, extent)
        except Exception as error:
            error.add_note(str(schedule))
            raise
    return len(rows)


def assert_kernel_agrees(workload: Workload, kernel: Kernel, target: Target) -> None:
    """A kernel is well formed before and after the passes, and computes its workload in the interpreter."""
    verify(kernel)
    final = finish(kernel, target)
    verify(final, final=True)
    inputs = random_inputs(workload, 1)
    agree("interpreted", interpret(final, inputs), reference(workload, inputs), tolerance(workload))


def _compiled(
    device: Device | None,
    final: Kernel,
    target: Target,
    inputs: Arrays,
    wanted: Arrays,
    limits: Mapping[str, tuple[float, float]],
    extent: int = 0,
) -> None:
    """Compile, and run where there is a device, at ``extent`` where the kernel is dynamic. What does not fit its
    registers is refused, and that is an answer."""
    try:
        backend = backend_for(target)
        binary = backend.compile(backend.emit(final, target), target).at_extent(extent)
    except ResourcesExceeded:
        return
    if device is not None:
        agree("compiled", _run(device, binary, inputs), wanted, limits)


@cache
def _device(target: Target) -> Device | None:
    """The device of this machine for ``target``, if it has one."""
    try:
        return open_device(target.kind, target)
    except UnsupportedTarget:
        return None


def _run(device: Device, binary: CompiledKernel, inputs: Arrays) -> Arrays:
    """The outputs of one launch; workspace and outputs hold rubbish before it."""
    kernel = device.load(binary)
    memories = []
    for p in binary.parameters:
        memory = device.allocate(p.bytes)
        given = np.ascontiguousarray(inputs[p.name]) if p.role == "input" else np.full(p.bytes, 0xA5, np.uint8)
        memory.write(given.reshape(-1).view(np.uint8))
        memories.append(memory)
    kernel.launch(memories)
    return {
        p.name: m.read().view(p.dtype.numpy).reshape(p.shape)
        for p, m in zip(binary.parameters, memories, strict=True)
        if p.role == "output"
    }


def agree(what: str, given: Arrays, wanted: Arrays, limits: Mapping[str, tuple[float, float]]) -> None:
    for name, result in given.items():
        absolute, relative = limits[name]
        np.testing.assert_allclose(
            np.asarray(result, dtype=np.float64),
            np.asarray(wanted[name], dtype=np.float64),
            rtol=relative,
            atol=absolute,
            err_msg=f"{name}, {what}",
        )
