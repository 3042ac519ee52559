"""Do the kernels of a sketch compute their workload? Asked of reference, interpreter and compiled kernel.

Without a device for the target, kernels are compiled all the same, one of each workload, but not run.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from tests.various_rows import various_rows
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
from tilewright.schedule.space.space import Space
from tilewright.te.data import random_inputs
from tilewright.te.dynamic import at_extent
from tilewright.te.reference import reference
from tilewright.te.tolerance import tolerance
from tilewright.te.workload import Workload

Arrays = Mapping[str, NDArray[Any]]


def check_schedules(
    sketch: str, target: Target, workload: Workload, seed: int, count: int, policy: SpacePolicy = DEFAULT_POLICY
) -> int:
    """Draw ``count`` schedules (all, where there are fewer), which share as few values of knobs as can be, and compare;
    how many kernels were compared.

    Raises AssertionError that names the schedule and what differs; other errors carry the schedule as a note.
    """
    if not SKETCHES[sketch].matches(workload, target):
        return 0
    space = SKETCHES[sketch].space(workload, target, seed=seed, limit=10_000, policy=policy)
    return _check(space, target, workload, seed, count, [_Call.of(workload, seed)])


def check_dynamic(sketch: str, target: Target, workload: Workload, calls: Sequence[tuple[int, ...]], count: int) -> int:
    """Draw ``count`` schedules of a workload with dynamic dimensions and compare one kernel of each in ``calls`` with
    these extents, with references of their own; how many kernels were compared."""
    space = SKETCHES[sketch].space(workload, target, limit=10_000)
    given = [_Call.of(at_extent(workload, *extents), extents[0], extents) for extents in calls]
    return _check(space, target, workload, 0, count, given)


@dataclass(frozen=True)
class _Call:
    """The inputs of a call, what it should compute, and how far from that it may be. ``extents``: those of the dynamic
    dimensions, none where the kernel is static."""

    inputs: Arrays
    wanted: Arrays
    limits: Mapping[str, tuple[float, float]]
    extents: tuple[int, ...]

    @classmethod
    def of(cls, static: Workload, seed: int, extents: tuple[int, ...] = ()) -> Self:
        inputs = random_inputs(static, seed)
        return cls(inputs, reference(static, inputs), tolerance(static), extents)


def _check(space: Space, target: Target, workload: Workload, seed: int, count: int, calls: Sequence[_Call]) -> int:
    """Draw ``count`` schedules of a space and compare one kernel of each in all calls; how many were compared."""
    rows = various_rows(space, stream(seed, "schedules").permutation(len(space)), count)
    device = _device(target)
    for number, row in enumerate(rows):
        schedule = space.schedule(row)
        try:
            lowered = lower(workload, target, schedule)
            verify(lowered)
            final = finish(lowered, target)
            verify(final, final=True)
            for call in calls:
                agree("interpreted", interpret(final, call.inputs), call.wanted, call.limits)
                if device is not None or number == 0:
                    _compiled(device, final, target, call)
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


def _compiled(device: Device | None, final: Kernel, target: Target, call: _Call) -> None:
    """Compile, and run where there is a device. What does not fit its registers is refused, and that is an answer."""
    try:
        backend = backend_for(target)
        binary = backend.compile(backend.emit(final, target), target).at_extent(*call.extents)
    except ResourcesExceeded:
        return
    if device is not None:
        agree("compiled", _run(device, binary, call.inputs), call.wanted, call.limits)


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
