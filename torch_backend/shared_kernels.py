"""The kernels that the programs of one traced graph share.

A program of a symbolic trace is of one shape. Its kernels are those of the range of rows that the shape is in, where a
class takes dynamic rows: another shape of the range compiles nothing. Schedules that somebody tuned for the very shape
go first.
"""

import threading
from collections import OrderedDict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cache
from math import prod
from typing import Any

import torch

from ..core.schedule import Schedule
from ..core.target import Target
from ..runtime.cpu import CpuDevice
from ..runtime.cuda.device import CudaDevice
from ..runtime.cuda.kernel import CudaKernel
from ..runtime.kernels import ProgramKernel, load_kernels
from ..schedule.defaults import has_class
from ..te.key import workload_key
from ..te.row_range import DynamicRows, row_range
from ..te.workload import Workload
from ..workers.program_builders import ProgramBuilders, program_children

MOST_KERNELS = 256
"""A graph keeps at most so many kernels for programs to come."""
CHILDREN_FROM = 12
"""Children build so many kernels or more. Fewer are built before a child has started."""


def symbolic_extents(values: Mapping[Any, Any]) -> frozenset[int]:
    """Return the numbers of rows that depend on the shape: products of the first dimensions of a tensor of the trace,
    of which one is symbolic. ``values``: the concrete value of each node."""
    found = set[int]()
    for node, value in values.items():
        traced = node.meta.get("val")
        if isinstance(traced, torch.Tensor) and isinstance(value, torch.Tensor):
            first = next((d for d, n in enumerate(traced.shape) if not isinstance(n, int)), traced.dim())
            found.update(prod(value.shape[: d + 1]) for d in range(first, traced.dim()))
    return frozenset(found)


@dataclass(frozen=True, slots=True)
class WantedKernel:
    """What a program needs for a workload: a kernel of ``workload``, whose key is ``key``, at ``rows`` rows where
    these are dynamic."""

    key: str
    workload: Workload
    rows: int = 0


def row_ranges(workloads: Mapping[str, Workload], extents: frozenset[int], target: Target) -> dict[str, WantedKernel]:
    """Return the ranges of these workloads, by the key of the workload; only on GPUs, since kernels of processors have
    static rows."""
    if target.kind != "cuda" or not extents:
        return {}
    ranges = {key: row_range(w, extents, lambda wide: has_class(wide, target)) for key, w in workloads.items()}
    return {key: _wanted(found) for key, found in ranges.items() if found is not None}


def _wanted(found: DynamicRows) -> WantedKernel:
    return WantedKernel(workload_key(found.workload), found.workload, found.rows)


def known_schedule(key: str, ranges: Mapping[str, WantedKernel], schedules: Mapping[str, Schedule]) -> Schedule | None:
    """Return the schedule of a workload: one that is known for it, else one for its range."""
    wide = ranges.get(key)
    return schedules.get(key) or (None if wide is None else schedules.get(wide.key))


class SharedKernels:
    """Kernels by workload and schedule, none of them of ``refused_sketches``. It is safe to use from several
    threads."""

    def __init__(self, refused_sketches: Collection[str] = ()) -> None:
        self._refused_sketches = refused_sketches
        self._held: OrderedDict[tuple[str, Schedule | None], ProgramKernel] = OrderedDict()
        self._lock = threading.Lock()

    def load(
        self,
        workloads: Mapping[str, Workload],
        ranges: Mapping[str, WantedKernel],
        schedules: Mapping[str, Schedule],
        device: CpuDevice | CudaDevice,
    ) -> dict[str, ProgramKernel]:
        """As ``load_kernels``. A workload without a schedule has the kernel of its range, if it has one in
        ``ranges``; where that does not compile, one of its own."""
        ranged = {key: ranges[key] for key in workloads if key in ranges and key not in schedules}
        wide = self._loaded({w.key: w.workload for w in ranged.values()}, schedules, device)
        found = {key: _at_rows(wide[w.key], w.rows) for key, w in ranged.items() if w.key in wide}
        rest = {key: workload for key, workload in workloads.items() if key not in found}
        return found | self._loaded(rest, schedules, device)

    def _loaded(
        self, workloads: Mapping[str, Workload], schedules: Mapping[str, Schedule], device: CpuDevice | CudaDevice
    ) -> dict[str, ProgramKernel]:
        with self._lock:
            names = {key: (key, schedules.get(key)) for key in workloads}
            missing = {key: workload for key, workload in workloads.items() if names[key] not in self._held}
            found = {key: self._held[names[key]] for key in workloads if key not in missing}
            found |= self._built(missing, schedules, device)
            for key, kernel in found.items():
                self._held[names[key]] = kernel
                self._held.move_to_end(names[key])
            while len(self._held) > MOST_KERNELS:
                self._held.popitem(last=False)
        return found

    def _built(
        self, workloads: Mapping[str, Workload], schedules: Mapping[str, Schedule], device: CpuDevice | CudaDevice
    ) -> dict[str, ProgramKernel]:
        children = program_children() if len(workloads) >= CHILDREN_FROM else 0
        if children < 2:
            return load_kernels(workloads, schedules, device, self._refused_sketches)
        return load_kernels(workloads, schedules, device, self._refused_sketches, builders(children), children)


@cache
def builders(children: int) -> ProgramBuilders:
    return ProgramBuilders(children)


def _at_rows(loaded: ProgramKernel, rows: int) -> ProgramKernel:
    assert isinstance(loaded.kernel, CudaKernel)  # no other kernel has dynamic rows
    return replace(loaded, kernel=loaded.kernel.at_extent(rows))
