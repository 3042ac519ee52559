"""The CUDA driver through cuda-bindings, with typed errors. Nothing is loaded before it is first needed."""

import functools
import uuid
import weakref
from importlib import import_module
from typing import Any

from ...core.errors import CompileError, DeviceFault, Fault, TilewrightError, UnsupportedTarget

LEAST_DRIVER = 13_000
"""The first driver version that runs what the compilers of CUDA 13 make (13.0)."""

_NO_DRIVER = {34, 35, 803, 804}
_NO_DEVICE = {3, 36, 100, 101, 802}
_BUSY = {46}
_OUT_OF_MEMORY = {2}
_UNLOADABLE = {200, 209, 210, 218, 222, 223, 300, 301, 302, 303, 500}
_ILLEGAL_ACCESS = {700, 716, 717}
_TIMEOUT = {702}
_BROKEN_OFF = {4, 201, 214, 220, 226, 709, 710, 714, 715, 718, 719, 721, 909, 999}
"""These are codes of ``CUresult`` (CUDA Driver API, "Data types used by CUDA driver"), grouped by the errors that
they become."""


@functools.cache
def library() -> Any:
    """Return ``cuda.bindings.driver``, initialised. Raises UnsupportedTarget, which says what is missing."""
    try:
        found = import_module("cuda.bindings.driver")
    except ImportError as error:
        raise UnsupportedTarget(
            f"a cuda device needs cuda-bindings ({error}): pip install 'tilewright[cuda]'", field="target"
        ) from error
    try:
        (status,) = found.cuInit(0)
        if int(status) in _NO_DEVICE:
            raise UnsupportedTarget(f"no NVIDIA device can be used here: {_words(found, status)}", field="target")
        if int(status):
            raise UnsupportedTarget(f"the NVIDIA driver does not start: {_words(found, status)}", field="target")
        version = int(found.cuDriverGetVersion()[1])
    except RuntimeError as error:  # The bindings find no driver library.
        raise UnsupportedTarget(f"no NVIDIA driver is installed here ({error})", field="target") from error
    check_version(version)
    return found


def check_version(version: int) -> None:
    """Raises UnsupportedTarget for a driver (1000 * major + 10 * minor) that is too old for what is compiled here."""
    if version < LEAST_DRIVER:
        raise UnsupportedTarget(
            f"the NVIDIA driver is too old: it runs CUDA {_dotted(version)}, needed: {_dotted(LEAST_DRIVER)}",
            field="target",
        )


def call(name: str, *arguments: Any) -> Any:
    """Call a driver function and return what it gives besides its status: nothing, one value or a tuple. Raises as
    ``error_of`` says."""
    status, *rest = getattr(library(), name)(*arguments)
    if status:
        raise error_of(int(status), name)
    return rest[0] if len(rest) == 1 else tuple(rest)


def error_of(code: int, doing: str) -> Exception:
    """Return the error of ``typed_error`` with the driver's own text for the status."""
    return typed_error(code, f"{doing}: {_words(library(), code)}")


def typed_error(code: int, said: str) -> Exception:
    """Return the error for a status. It is MemoryError, CompileError (a binary that does not load here), DeviceFault
    (the launch was refused, or the kernel broke off) or UnsupportedTarget (no device)."""
    if code in _OUT_OF_MEMORY:
        return MemoryError(said)
    if code in _UNLOADABLE:
        return CompileError(f"the binary does not load on this device: {said}")
    if code in _NO_DEVICE or code in _NO_DRIVER or code in _BUSY:
        return UnsupportedTarget(said, field="target")
    fault = _fault(code)
    return DeviceFault(f"{_FAULT_WORDS[fault]}: {said}", fault, lost=fault is not Fault.REFUSED)


_FAULT_WORDS = {
    Fault.ILLEGAL_ACCESS: "the kernel touched memory that is not its own, or misaligned",
    Fault.TIMEOUT: "the driver ended the kernel, which ran for too long",
    Fault.BROKEN_OFF: "the kernel broke off",
    Fault.REFUSED: "the device refused the call",
}


def _fault(code: int) -> Fault:
    """Return what kind of fault a failing status is. All but REFUSED are sticky: the context is lost."""
    if code in _ILLEGAL_ACCESS:
        return Fault.ILLEGAL_ACCESS
    if code in _TIMEOUT:
        return Fault.TIMEOUT
    return Fault.BROKEN_OFF if code in _BROKEN_OFF else Fault.REFUSED


def attribute(name: str) -> Any:
    """Return a constant of the bindings, such as ``CUdevice_attribute.CU_DEVICE_ATTRIBUTE_WARP_SIZE``."""
    return functools.reduce(getattr, name.split("."), library())


def device_count() -> int:
    """Return how many devices the driver shows. Raises UnsupportedTarget where there is no driver."""
    return int(call("cuDeviceGetCount"))


class DriverDevice:
    """One of the devices that the driver shows (a ``CUdevice``). Reading its attributes makes no context."""

    def __init__(self, ordinal: int) -> None:
        """Raises UnsupportedTarget for an ordinal without a device."""
        count = device_count()
        if not 0 <= ordinal < count:
            allowed = f"0 to {count - 1}" if count else "none, there is no NVIDIA device here"
            raise UnsupportedTarget(f"cuda device {ordinal}; allowed: {allowed}", field="ordinal")
        self.ordinal = ordinal
        self.handle = call("cuDeviceGet", ordinal)

    @property
    def name(self) -> str:
        return _text(call("cuDeviceGetName", 256, self.handle))

    @property
    def bus_id(self) -> str:
        """Its PCI address."""
        return _text(call("cuDeviceGetPCIBusId", 64, self.handle))

    @property
    def uuid(self) -> str:
        """Its UUID as the driver writes it in ``CUDA_VISIBLE_DEVICES``, without the prefix. A MIG slice has its own."""
        return str(uuid.UUID(bytes=bytes(call("cuDeviceGetUuid", self.handle).bytes)))

    @property
    def memory_bytes(self) -> int:
        return int(call("cuDeviceTotalMem", self.handle))

    @property
    def capability(self) -> tuple[int, int]:
        """Its compute capability."""
        return self.number("COMPUTE_CAPABILITY_MAJOR"), self.number("COMPUTE_CAPABILITY_MINOR")

    def number(self, name: str) -> int:
        """Return the device attribute ``CU_DEVICE_ATTRIBUTE_{name}``."""
        which = attribute(f"CUdevice_attribute.CU_DEVICE_ATTRIBUTE_{name}")
        return int(call("cuDeviceGetAttribute", which, self.handle))


class PrimaryContext:
    """A device's primary context, which every library of the process shares. ``with context:`` makes it current on
    this thread. It is released when nothing refers to it any more."""

    def __init__(self, device: DriverDevice) -> None:
        """Raises UnsupportedTarget where the device is busy: another process has it in exclusive mode, or its memory
        is so full that no context fits."""
        self.device = device
        try:
            self.handle = call("cuDevicePrimaryCtxRetain", device.handle)
        except (TilewrightError, MemoryError) as error:
            raise UnsupportedTarget(
                f"cuda device {device.ordinal} is busy: its memory is full, or another process has it alone: {error}",
                field="ordinal",
            ) from error
        self._push, self._pop = library().cuCtxPushCurrent, library().cuCtxPopCurrent
        weakref.finalize(self, release, None, "cuDevicePrimaryCtxRelease", device.handle)

    def __enter__(self) -> "PrimaryContext":
        (status,) = self._push(self.handle)
        if status:
            raise error_of(int(status), "cuCtxPushCurrent")
        return self

    def __exit__(self, *failure: object) -> None:
        self._pop()

    def own(self, owner: object, destroy: str, handle: Any) -> Any:
        """Return ``handle``, which the driver function ``destroy`` destroys when ``owner`` is no more."""
        weakref.finalize(owner, release, self, destroy, handle)
        return handle


def release(context: PrimaryContext | None, destroy: str, handle: Any) -> None:
    """Destroy a handle. The status is ignored, because a lost context has taken the handle with it."""
    found = library()
    if context is not None:
        found.cuCtxPushCurrent(context.handle)
    getattr(found, destroy)(handle)
    if context is not None:
        found.cuCtxPopCurrent()


def _text(given: bytes) -> str:
    return given.split(b"\0")[0].decode()


def _dotted(version: int) -> str:
    return f"{version // 1000}.{version % 1000 // 10}"


def _words(found: Any, status: Any) -> str:
    try:
        code = found.CUresult(int(status))
    except ValueError:  # The code is newer than the bindings.
        return f"CUDA error {int(status)}"
    texts = [found.cuGetErrorName(code)[1], found.cuGetErrorString(code)[1]]
    name, text = (t.decode() if isinstance(t, bytes) else "" for t in texts)
    return f"{text or 'unknown error'} ({name or code.name}, {int(status)})"
