"""Arrays of other libraries on the device. They are used without a copy, allocated, and ordered with the stream that
their library works on."""

import functools
import math
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np

from ...codegen.backend import KernelParameter
from ...core.errors import InvalidParameter, UnsupportedTarget
from .kernel import ALIGNMENT_BYTES

LEGACY_STREAM = 1
"""DLPack's number of the default stream. Its other number, 0, is ambiguous there."""


@dataclass(frozen=True, slots=True)
class Framework:
    """A library on whose arrays a kernel can be called.

    ``current_stream`` returns the handle of the stream that the library uses on a device. It is None where the library
    does not tell, so that results must be complete when they are handed over. ``empty`` allocates an uninitialised
    array for a parameter, on the device of another array and the stream of a handle.
    """

    name: str
    current_stream: Callable[[int], int] | None
    empty: Callable[[KernelParameter, Any, int], Any]


@dataclass(frozen=True, slots=True)
class ArrayView:
    """The address and size of one array on the device."""

    address: int
    nbytes: int

    def overlaps(self, other: "ArrayView") -> bool:
        return self.address < other.address + other.nbytes and other.address < self.address + self.nbytes


@dataclass(frozen=True, slots=True)
class _ExternalStream:
    """A stream, for libraries that ask for one by ``__cuda_stream__``."""

    value: int

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.value


def framework_of(array: object) -> Framework | None:
    """Return the library that ``array`` belongs to, and None for an unknown one."""
    for kind in type(array).__mro__:
        found = _FRAMEWORKS.get(kind.__module__.partition(".")[0])
        if found is not None:
            return found
    return None


def is_device_array(array: object) -> bool:
    """Say whether ``array`` speaks one of the protocols that hand over device memory."""
    return hasattr(array, "__dlpack_device__") or hasattr(array, "__cuda_array_interface__")


def view(parameter: KernelParameter, array: Any, stream: int, ordinal: int, *, written: bool = False) -> ArrayView:
    """Return the address of ``array``. Pending work of its library on the array completes before later work of
    ``stream``.

    Floats of 8 bits may come as their bits, uint8. Raises InvalidParameter for another dtype, shape or device, for
    arrays that are not contiguous or do not begin at a multiple of 16 bytes, and for read-only arrays that are to be
    ``written``.
    """
    name = parameter.name
    if not is_device_array(array):
        raise InvalidParameter(
            f"{name} is a {type(array).__name__}; allowed: arrays with __dlpack__ or __cuda_array_interface__",
            field=name,
        )
    if isinstance(array, np.ndarray):
        raise InvalidParameter(f"{name} lies in the host's memory, other arrays on the device", field=name)
    if parameter.dtype.is_float8 and str(getattr(array, "dtype", "")) == f"torch.{parameter.dtype}":
        array = array.view(import_module("torch").uint8)  # not every version hands over such floats
    try:
        found = _strided_view()(array, stream_ptr=stream or _default(array))
    except (BufferError, TypeError, RuntimeError, ValueError) as error:
        raise InvalidParameter(
            f"{name}, a {type(array).__name__}, cannot be taken over: {error}", field=name
        ) from error
    as_bits = parameter.dtype.is_float8 and found.dtype == np.uint8
    if found.dtype != parameter.dtype.numpy and not as_bits:
        raise InvalidParameter(f"{name} is {found.dtype}, needed: {parameter.dtype}", field=name)
    if tuple(found.shape) != parameter.shape:
        raise InvalidParameter(f"{name} has shape {list(found.shape)}, needed: {list(parameter.shape)}", field=name)
    if not found.is_device_accessible or found.device_id != ordinal:
        where = f"on device {found.device_id}" if found.is_device_accessible else "in the host's memory"
        raise InvalidParameter(f"{name} lies {where}; the kernel runs on cuda device {ordinal}", field=name)
    if not _is_contiguous(found.shape, found.strides):
        raise InvalidParameter(
            f"{name} is not contiguous (strides {list(found.strides)}); call the kernel on a contiguous copy",
            field=name,
        )
    if found.ptr % ALIGNMENT_BYTES:
        raise InvalidParameter(
            f"{name} begins {found.ptr % ALIGNMENT_BYTES} bytes past a multiple of {ALIGNMENT_BYTES}; call the kernel "
            "on a copy",
            field=name,
        )
    if written and found.readonly:
        raise InvalidParameter(f"out {name} is only to be read", field=name)
    return ArrayView(int(found.ptr), parameter.bytes)


def stream_handle(stream: object) -> int:
    """Return the handle of a stream. It is given as an integer, or as an object of torch (``cuda_stream``), CuPy
    (``ptr``) or anything with ``__cuda_stream__``. Raises InvalidParameter for anything else."""
    if hasattr(stream, "__cuda_stream__"):
        return int(stream.__cuda_stream__()[1])
    for name in ("cuda_stream", "ptr", "handle"):
        if hasattr(stream, name):
            return int(getattr(stream, name))
    if isinstance(stream, int) and not isinstance(stream, bool) and stream >= 0:
        return stream
    raise InvalidParameter(
        f"{stream!r} is no stream; allowed: a handle, or a stream of torch, CuPy or anything with __cuda_stream__",
        field="stream",
    )


def _is_contiguous(shape: tuple[int, ...], strides: tuple[int, ...] | None) -> bool:
    """Say whether an array is row-major. ``strides`` count elements; None means row-major. The stride of a dimension
    of one element does not matter."""
    if strides is None or math.prod(shape) == 0:
        return True
    step = 1
    for extent, stride in zip(reversed(shape), reversed(strides), strict=True):
        if extent != 1 and stride != step:
            return False
        step *= extent
    return True


def _default(array: object) -> int:
    """Return the number of the default stream that the library of this array expects."""
    found = framework_of(array)
    return 0 if found is not None and found.name == "torch" else LEGACY_STREAM


@functools.cache
def _strided_view() -> Any:
    try:
        return import_module("cuda.core.utils").StridedMemoryView.from_any_interface
    except ImportError as error:
        raise UnsupportedTarget(
            f"calling a kernel on device arrays needs cuda-core ({error}): pip install 'tilewright[cuda]'",
            field="target",
        ) from error


def _torch_stream(ordinal: int) -> int:
    return int(sys.modules["torch"].cuda.current_stream(ordinal).cuda_stream)


def _torch_empty(parameter: KernelParameter, like: Any, stream: int) -> Any:
    torch = sys.modules["torch"]
    on_stream: AbstractContextManager[object] = nullcontext()
    if stream != _torch_stream(like.device.index):  # Memory belongs to the stream it is allocated on.
        on_stream = torch.cuda.stream(torch.cuda.ExternalStream(stream, device=like.device))
    with on_stream:
        return torch.empty(parameter.shape, dtype=getattr(torch, parameter.dtype.name), device=like.device)


def _cupy_stream(ordinal: int) -> int:
    return int(sys.modules["cupy"].cuda.get_current_stream(ordinal).ptr)


def _cupy_empty(parameter: KernelParameter, like: Any, stream: int) -> Any:
    cupy = sys.modules["cupy"]
    on_stream: AbstractContextManager[object] = nullcontext()
    if stream != _cupy_stream(like.device.id):
        on_stream = cupy.cuda.Stream.from_external(_ExternalStream(stream))
    with like.device, on_stream:
        return cupy.empty(parameter.shape, parameter.dtype.numpy)


def _jax_empty(parameter: KernelParameter, like: Any, stream: int) -> Any:
    numpy = sys.modules["jax"].numpy
    return numpy.empty(parameter.shape, parameter.dtype.numpy, device=like.device).block_until_ready()


_TORCH = Framework("torch", _torch_stream, _torch_empty)
_CUPY = Framework("cupy", _cupy_stream, _cupy_empty)
_JAX = Framework("jax", None, _jax_empty)
_FRAMEWORKS = {"torch": _TORCH, "cupy": _CUPY, "jax": _JAX, "jaxlib": _JAX}
"""This maps the package of a type to its library. Libraries are never imported here: whoever has such an array has
done so."""
