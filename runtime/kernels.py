"""The kernels of a program in this process: tuned schedules where somebody knows them, default ones otherwise."""

import logging
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

from ..codegen.lowering import BuiltKernel, build_known
from ..core.errors import TilewrightError
from ..core.schedule import Schedule
from ..core.target import Target
from ..te.workload import Workload
from .bound_kernel import RawKernel
from .cpu import CpuDevice
from .cuda.device import CudaDevice

COMPILERS = 4
"""How many kernels are built at once."""
log = logging.getLogger("tilewright")


class BuildKernel(Protocol):
    """What builds kernels, such as ``codegen.lowering.build_known``, called by several threads."""

    def __call__(
        self, workload: Workload, target: Target, known: Schedule | None, refused_sketches: Collection[str]
    ) -> BuiltKernel: ...


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
    build: BuildKernel = build_known,
    at_once: int = COMPILERS,
) -> dict[str, ProgramKernel]:
    """Build and load the kernel of each workload, by key, ``at_once`` at a time. ``schedules`` holds those that are
    known. One that is not legal here gives way to the default, and so does one of ``refused_sketches``. A workload for
    which there is no kernel is left out, with a warning."""

    def loaded(key: str, workload: Workload) -> ProgramKernel | None:
        reason = ""
        for known in dict.fromkeys((schedules.get(key), None)):  # a known one may be built, and then not loaded
            try:
                built = build(workload, device.target, known, refused_sketches)
                return ProgramKernel(built.schedule, device.load(built.binary), built.tuned)
            except TilewrightError as error:
                reason = error.message
        log.warning("no kernel for %s: %s", key, reason)
        return None

    with ThreadPoolExecutor(at_once) as pool:
        found = pool.map(lambda item: (item[0], loaded(*item)), workloads.items())
        return {key: kernel for key, kernel in found if kernel is not None}
