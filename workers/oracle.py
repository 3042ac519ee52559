"""What the outputs of a Triton kernel should be. It has no tensor expression to compute them from, so that its first
configuration that can be built is the oracle: the others have to compute the same from the same data.

The tolerance is that of the dtype: 8 units of roundoff for 16-bit floats, and 2^-12 and 2^-40 for float32 and float64,
relative to an element and to the root mean square of its tensor. It allows for other orders of summation, and for
rounding of intermediate values. Whole numbers have to be equal.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..codegen.backend import CompiledKernel, KernelParameter
from ..core.dtypes import DType
from ..runtime.device import Device, Memory
from .check import Expected

_RELATIVE = {"float64": 2.0**-40, "float32": 2.0**-12, "float16": 2.0**-8, "bfloat16": 2.0**-5}


@dataclass(frozen=True, slots=True)
class Oracle:
    """The binary that results are compared with, and which configuration it is of."""

    binary: CompiledKernel
    configuration: int


def expected_of(
    oracle: Oracle, device: Device, inputs: Mapping[str, Memory], initial: Mapping[str, Memory]
) -> dict[str, Expected]:
    """Launch the oracle and return its outputs. ``initial`` has what they hold before. Raises DeviceFault, CompileError
    and InvalidParameter where it cannot be launched."""
    kernel = device.load(oracle.binary)
    buffers: dict[str, Memory] = {}
    for parameter in oracle.binary.parameters:
        buffers[parameter.name] = memory = device.allocate(parameter.bytes)
        for contents in (inputs, initial):
            if parameter.name in contents:
                device.copy(memory, contents[parameter.name])
    kernel.launch([buffers[p.name] for p in oracle.binary.parameters])
    outputs: Sequence[KernelParameter] = [p for p in oracle.binary.parameters if p.role == "output"]
    return {p.name: _expected(device, p.dtype, buffers[p.name].read().view(p.dtype.numpy)) for p in outputs}


def _expected(device: Device, dtype: DType, values: NDArray[np.generic]) -> Expected:
    if not dtype.is_float:
        return Expected(device.hold(np.ascontiguousarray(values)), 0.0, 0.0)
    wide = values.astype(np.float64)
    finite = wide[np.isfinite(wide)]
    relative = _RELATIVE[dtype.name]
    size = float(np.sqrt(np.mean(finite * finite))) if finite.size else 0.0
    return Expected(device.hold(wide), relative * size + float(np.finfo(np.float32).tiny), relative)
