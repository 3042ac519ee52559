"""Do the kernels of a sketch compute their workload? Asked of reference, interpreter and (for this machine's own kind
of target) compiled kernel; kernels for other devices are interpreted and written out."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.random_expressions import random_workload
from tilewright.codegen.backend import Binary
from tilewright.codegen.backends import backend_for
from tilewright.codegen.road import build_kernel, finish
from tilewright.core.streams import stream
from tilewright.core.target import Target
from tilewright.ir.interpret import interpret
from tilewright.ir.verify import verify
from tilewright.runtime.cpu import CpuDevice, CpuMemory
from tilewright.schedule.sketches import SKETCHES
from tilewright.te.data import random_inputs
from tilewright.te.operators import OPERATORS
from tilewright.te.reference import reference
from tilewright.te.tolerance import tolerance
from tilewright.te.workload import Workload

Arrays = Mapping[str, NDArray[Any]]


def check_operator(sketch: str, target: Target, operator: str, parameters: Mapping[str, Any], schedules: int) -> int:
    return check_schedules(sketch, target, OPERATORS[operator].workload(parameters), 0, schedules)


def check_random(sketch: str, target: Target, seed: int, schedules: int) -> int:
    return check_schedules(sketch, target, random_workload(seed), seed, schedules)


def check_schedules(sketch: str, target: Target, workload: Workload, seed: int, count: int) -> int:
    """Draw ``count`` schedules (all, where there are fewer) and compare; how many kernels were compared.

    Raises AssertionError that names the schedule and what differs; other errors carry the schedule as a note.
    """
    if not SKETCHES[sketch].matches(workload, target):
        return 0
    space = SKETCHES[sketch].space(workload, target, seed=seed, limit=10_000)
    rows = stream(seed, "schedules").permutation(len(space))[:count]
    inputs = random_inputs(workload, seed)
    wanted, limits = reference(workload, inputs), tolerance(workload)
    device = CpuDevice(target) if target.kind == "llvm" else None
    for row in rows:
        schedule = space.schedule(int(row))
        try:
            lowered = SKETCHES[sketch].lower(workload, target, schedule)
            verify(lowered)
            final = finish(lowered, target)
            verify(final)
            _agree("interpreted", interpret(final, inputs), wanted, limits)
            if device is None:
                backend_for(target).emit(final, target)
            else:
                _agree("compiled", _run(device, build_kernel(lowered, target), inputs, workload), wanted, limits)
        except Exception as error:
            error.add_note(str(schedule))
            raise
    return len(rows)


def _run(device: CpuDevice, binary: Binary, inputs: Arrays, workload: Workload) -> Arrays:
    """The outputs of a compiled kernel, all memory but the inputs poisoned before."""
    kernel = device.load(binary)
    arrays = {p.name: np.full(p.shape, 0, p.dtype.numpy) for p in kernel.parameters}
    memories = []
    for p in kernel.parameters:
        memory = device.allocate(p.bytes)
        assert isinstance(memory, CpuMemory)
        given = inputs[p.name] if p.role == "input" else None
        poison = np.full(p.bytes, 0xA5, np.uint8)
        memory.write(poison if given is None else np.ascontiguousarray(given).view(np.uint8).reshape(-1))
        memories.append(memory)
    kernel.launch(memories)
    for p, memory in zip(kernel.parameters, memories, strict=True):
        arrays[p.name] = memory.read().view(p.dtype.numpy).reshape(p.shape)
    return {n: arrays[n] for n in workload.outputs}


def _agree(what: str, given: Arrays, wanted: Arrays, limits: Mapping[str, tuple[float, float]]) -> None:
    for name, result in given.items():
        absolute, relative = limits[name]
        np.testing.assert_allclose(
            np.asarray(result, dtype=np.float64),
            np.asarray(wanted[name], dtype=np.float64),
            rtol=relative,
            atol=absolute,
            err_msg=f"{name}, {what}",
        )
