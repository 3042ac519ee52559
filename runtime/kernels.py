"""The kernels of a program in this process: tuned schedules where somebody knows them, default ones otherwise."""

import logging
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from ..codegen.lowering import build
from ..core.errors import CompileError, TilewrightError
from ..core.schedule import Schedule
from ..schedule.defaults import default_schedules
from ..te.workload import Workload
from .bound_kernel import RawKernel
from .cpu import CpuDevice
from .cuda.device import CudaDevice

COMPILERS = 4
"""How many kernels are compiled at once."""
log = logging.getLogger("tilewright")


@dataclass(frozen=True, slots=True)
class ProgramKernel:
    """A loaded kernel and its schedule. ``tuned``: whether the schedule was given, not a default."""

    schedule: Schedule
    kernel: RawKernel
    tuned: bool


def load_kernels(
    workloads: Mapping[str, Workload],
    schedules: Mapping[str, Schedule],
    device: CpuDevice | CudaDevice,
    refused_sketches: Collection[str] = (),
) -> dict[str, ProgramKernel]:
    """Compile and load the kernel of each workload, by key. ``schedules`` holds those that are known. One that is not
    legal here gives way to the default, and so does one of ``refused_sketches``. A workload for which there is no
    kernel is left out, with a warning."""

    def loaded(key: str, workload: Workload) -> ProgramKernel | None:
        known = schedules.get(key)
        if known is not None and known.sketch not in refused_sketches:
            try:
                return ProgramKernel(known, device.load(build(workload, device.target, known)), True)
            except TilewrightError as error:  # a schedule of another machine
                log.info("the schedule of %s is not legal here: %s", key, error.message)
        reason = ""
        try:
            for schedule in default_schedules(workload, device.target, refused_sketches=refused_sketches):
                try:
                    return ProgramKernel(schedule, device.load(build(workload, device.target, schedule)), False)
                except CompileError as error:
                    reason = error.message
        except TilewrightError as error:
            reason = error.message
        log.warning("no kernel for %s: %s", key, reason)
        return None

    with ThreadPoolExecutor(COMPILERS) as pool:
        found = pool.map(lambda item: (item[0], loaded(*item)), workloads.items())
        return {key: kernel for key, kernel in found if kernel is not None}
