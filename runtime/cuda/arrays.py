"""Arrays of other libraries on the device: looked at without a copy, allocated, on the stream their owner works on."""

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
"""The default stream as DLPack calls it; 0, its other name, says nothing there."""


@dataclass(frozen=True, slots=True)
class Framework:
    """A library whose arrays a kernel can be called on.

    ``current_stream``: the handle of the stream its work goes to on a device; None where it keeps that to itself, and
    results must be complete when they are handed over. ``empty``: an uninitialised array for a parameter beside
    another array, on the stream of a handle.
    """

    name: str
    current_stream: Callable[[int], int] | None
    empty: Callable[[KernelParameter, Any, int], Any]


@dataclass(frozen=True, slots=True)
class View:
    """Where the elements of one array lie on the device."""

    address: int
    nbytes: int

    def overlaps(self, other: "View") -> bool:
        return self.address < other.address + other.nbytes and other.address < self.address + self.nbytes


@dataclass(frozen=True, slots=True)
class _Handle:
    """A stream for those who ask for one by ``__cuda_stream__``."""

    value: int

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.value


def framework_of(array: object) -> Framework | None:
    """The library ``array`` belongs to; None for an unknown one."""
    for kind in type(array).__mro__:
        found = _FRAMEWORKS.get(kind.__module__.partition(".")[0])
        if found is not None:
            return found
    return None


def is_device_array(array: object) -> bool:
    """Whether ``array`` speaks one of the protocols that hand over device memory."""
    return hasattr(array, "__dlpack_device__") or hasattr(array, "__cuda_array_interface__")


def view(parameter: KernelParameter, array: Any, stream: int, ordinal: int, *, written: bool = False) -> View:
    """Look at ``array``; what its owner has under way on it is done before what ``stream`` is given from now on.

    Raises InvalidParameter for another dtype, shape or device, and for arrays that are not contiguous, do not begin at
    a multiple of 16 bytes, or are only to be read although they are to be ``written``.
    """
    name = parameter.name
    if not is_device_array(array):
        raise InvalidParameter(
            f"{name} is a {type(array).__name__}; allowed: arrays with __dlpack__ or __cuda_array_interface__",
            field=name,
        )
    if isinstance(array, np.ndarray):
        raise InvalidParameter(f"{name} lies in the host's memory, other arrays on the device", field=name)
    try:
        found = _strided_view()(array, stream_ptr=stream or _default(array))
    except (BufferError, TypeError, RuntimeError, ValueError) as error:
        raise InvalidParameter(
            f"{name}, a {type(array).__name__}, cannot be taken over: {error}", field=name
        ) from error
    if found.dtype != parameter.dtype.numpy:
        raise InvalidParameter(f"{name} is {found.dtype}, needed: {parameter.dtype}", field=name)
    if tuple(found.shape) != parameter.shape:
        raise InvalidParameter(f"{name} has shape {list(found.shape)}, needed: {list(parameter.shape)}", field=name)
    if not found.is_device_accessible or found.device_id != ordinal:
        place = f"on device {found.device_id}" if found.is_device_accessible else "in the host's memory"
        raise InvalidParameter(f"{name} lies {place}; the kernel runs on cuda device {ordinal}", field=name)
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
    return View(int(found.ptr), parameter.bytes)


def stream_handle(stream: object) -> int:
    """The handle of a stream: an integer, or an object of torch (``cuda_stream``), CuPy (``ptr``) or anything with
    ``__cuda_stream__``. Raises InvalidParameter for what is none."""
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
    """``strides`` in elements; None is row-major. The stride of a dimension of one element does not matter."""
    if strides is None or math.prod(shape) == 0:
        return True
    step = 1
    for extent, stride in zip(reversed(shape), reversed(strides), strict=True):
        if extent != 1 and stride != step:
            return False
        step *= extent
    return True


def _default(array: object) -> int:
    """What the default stream is called when this array is asked for its memory."""
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


def _torch_empty(parameter: KernelParameter, beside: Any, stream: int) -> Any:
    torch = sys.modules["torch"]
    place: AbstractContextManager[object] = nullcontext()
    if stream != _torch_stream(beside.device.index):  # memory belongs to the stream it is allocated on
        place = torch.cuda.stream(torch.cuda.ExternalStream(stream, device=beside.device))
    with place:
        return torch.empty(parameter.shape, dtype=getattr(torch, parameter.dtype.name), device=beside.device)


def _cupy_stream(ordinal: int) -> int:
    return int(sys.modules["cupy"].cuda.get_current_stream(ordinal).ptr)


def _cupy_empty(parameter: KernelParameter, beside: Any, stream: int) -> Any:
    cupy = sys.modules["cupy"]
    place: AbstractContextManager[object] = nullcontext()
    if stream != _cupy_stream(beside.device.id):
        place = cupy.cuda.Stream.from_external(_Handle(stream))
    with beside.device, place:
        return cupy.empty(parameter.shape, parameter.dtype.numpy)


def _jax_empty(parameter: KernelParameter, beside: Any, stream: int) -> Any:
    numpy = sys.modules["jax"].numpy
    return numpy.empty(parameter.shape, parameter.dtype.numpy, device=beside.device).block_until_ready()


_TORCH = Framework("torch", _torch_stream, _torch_empty)
_CUPY = Framework("cupy", _cupy_stream, _cupy_empty)
_JAX = Framework("jax", None, _jax_empty)
_FRAMEWORKS = {"torch": _TORCH, "cupy": _CUPY, "jax": _JAX, "jaxlib": _JAX}
"""The package a type comes from -> its library. They are never imported here: whoever has such an array has them."""
