"""A workload's seeded inputs and float64 reference, computed once and mapped read-only by every runner child.

The bytes live in an anonymous file that a runner owns and its children inherit. A child that replaces a killed one need
not compute them again, and a kernel that writes wildly cannot change what it is judged by.
"""

import math
import mmap
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import NDArray

from ..core.cgroups import ControlGroups
from ..core.dtypes import dtype_named, dtype_of_numpy
from ..ir.buffer import Buffer
from ..te.cost import cheapest_stages
from ..te.data import random_inputs
from ..te.dynamic import at_representative
from ..te.reference import reference, reference_slicing, slice_bytes
from ..te.tolerance import tolerance
from ..te.triton import TritonWorkload
from ..te.workload import Workload

_ALIGNMENT = 64
_MEMINFO = Path("/proc/meminfo")


@dataclass(frozen=True, slots=True)
class Reference:
    """One output as it should be. ``values``: float64, or the native dtype for integers and bool; C-contiguous."""

    values: NDArray[np.generic]
    absolute: float
    relative: float


@dataclass(frozen=True, slots=True)
class ReferenceData:
    """``inputs``: native dtypes, by name; ``expected``: the outputs with their tolerances, by name. Of a Triton kernel
    ``inputs`` are what all its pointers hold at first, and there is nothing else (see ``oracle``)."""

    inputs: Mapping[str, NDArray[np.generic]]
    expected: Mapping[str, Reference]


def anonymous_file() -> int:
    """Return the descriptor of an empty file without a name, gone with the last process that holds it."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("tilewright-reference_data")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def needed_bytes(workload: Workload) -> int:
    """About what computing a reference_data takes: inputs, every stage in the reference's types with the intermediates
    of sums of products, and inputs and outputs once more in the file. Of stages that are computed in slices it is the
    slices that are there at once. A Triton kernel has what its pointers hold at first, and no reference."""
    if isinstance(workload, TritonWorkload):
        return 2 * sum(b.bytes for b in (*workload.inputs, *workload.output_buffers))
    inputs = sum(b.elements * b.dtype.bytes for b in workload.inputs)
    sliced = reference_slicing(workload)
    apart = {} if sliced is None else sliced.dimensions
    tensors = [part.tensor for s in workload.stages if s.name not in apart for part in cheapest_stages(s)]

    def size(tensor: Buffer) -> int:
        return tensor.elements * (8 if tensor.dtype.is_float else tensor.dtype.bytes)

    slices = 0 if sliced is None else slice_bytes(workload, sliced)
    outputs = [b for b in workload.output_buffers if b.name in apart] + list(workload.output_buffers)
    return 2 * inputs + sum(map(size, tensors)) + slices + sum(map(size, outputs))


def available_bytes() -> int | None:
    """Memory that can be had without swapping, and within the limits of this process's control groups (Linux; None
    elsewhere)."""
    try:
        fields = dict(line.split(":", 1) for line in _MEMINFO.read_text().splitlines())
        present = int(fields["MemAvailable"].split()[0]) << 10
    except (OSError, KeyError, ValueError):
        return None
    free = ControlGroups().free_bytes
    return present if free is None else min(present, free)


def compute_reference(workload: Workload, seed: int) -> ReferenceData:
    """Inputs drawn under ``seed`` and what the workload makes of them, at the representative extent of a dynamic
    dimension. Raises MemoryError where they do not fit: asked
    beforehand, because a system that promises more memory than it has kills who uses it."""
    workload = at_representative(workload)
    needed, available = needed_bytes(workload), available_bytes()
    if available is not None and needed > available:
        raise MemoryError(f"{needed:,} bytes needed, {available:,} available")
    inputs = random_inputs(workload, seed)
    if isinstance(workload, TritonWorkload):
        return ReferenceData(inputs, {})
    tolerances = tolerance(workload)
    outputs = reference(workload, inputs)
    return ReferenceData(inputs, {name: Reference(values, *tolerances[name]) for name, values in outputs.items()})


def store_reference(reference_data: ReferenceData, descriptor: int) -> dict[str, object]:
    """Write ``reference_data`` to the file and return where everything is: JSON that ``map_reference`` takes."""
    entries: list[list[object]] = []
    offset = 0
    os.ftruncate(descriptor, 0)
    for name, array in reference_data.inputs.items():
        entries.append(["input", name, dtype_of_numpy(array.dtype).name, list(array.shape), offset, 0.0, 0.0])
        offset = _write(descriptor, array, offset)
    for name, e in reference_data.expected.items():
        dtype = dtype_of_numpy(e.values.dtype).name
        entries.append(["output", name, dtype, list(e.values.shape), offset, e.absolute, e.relative])
        offset = _write(descriptor, e.values, offset)
    os.ftruncate(descriptor, max(offset, 1))
    return {"entries": entries, "bytes": max(offset, 1), "descriptor": descriptor}


def map_reference(layout: Mapping[str, object]) -> ReferenceData:
    """Return the arrays that ``store_reference`` wrote, as read-only views of the file."""
    size = cast(int, layout["bytes"])
    data = mmap.mmap(cast(int, layout["descriptor"]), size, prot=mmap.PROT_READ)
    inputs: dict[str, NDArray[np.generic]] = {}
    expected: dict[str, Reference] = {}
    entries = cast(list[tuple[str, str, str, list[int], int, float, float]], layout["entries"])
    for role, name, dtype, shape, offset, absolute, relative in entries:
        flat = np.frombuffer(data, dtype_named(dtype).numpy, math.prod(shape), offset)
        if role == "input":
            inputs[name] = flat.reshape(shape)
        else:
            expected[name] = Reference(flat.reshape(shape), absolute, relative)
    return ReferenceData(inputs, expected)


def _write(descriptor: int, array: NDArray[np.generic], offset: int) -> int:
    """Write the array at ``offset``; returns the next free offset."""
    view = memoryview(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    done = 0
    while done < len(view):
        done += os.pwrite(descriptor, view[done:], offset + done)
    return -(-(offset + len(view)) // _ALIGNMENT) * _ALIGNMENT
