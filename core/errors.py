"""Every error a user can meet. Each says what was given and what is allowed; none is ever swallowed."""

from enum import StrEnum


class TilewrightError(Exception):
    """Base of all errors that Tilewright raises on purpose.

    ``code`` is stable and machine-readable (UPPER_SNAKE); ``field`` names the offending part of the input
    as a JSON pointer (``/stages/0/axes/1``) or a parameter name, empty when there is none.
    """

    code = "ERROR"

    def __init__(self, message: str, *, field: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.field = field


class InvalidWorkload(TilewrightError):
    """A tensor expression that is not well formed: shapes, dtypes, names, bounds or JSON structure."""

    code = "INVALID_WORKLOAD"


class InvalidGraph(TilewrightError):
    """A graph of a model that is not well formed: operators, operands, shapes, dtypes, names or JSON structure."""

    code = "INVALID_GRAPH"


class InvalidParameter(TilewrightError):
    """An operator, knob, budget or option was given a value outside what it allows."""

    code = "INVALID_PARAMETER"


class IllegalSchedule(TilewrightError):
    """A schedule or a primitive that does not fit the loop nest it is applied to."""

    code = "ILLEGAL_SCHEDULE"


class InvalidKernel(TilewrightError):
    """Kernel IR that breaks a rule of the verifier."""

    code = "INVALID_KERNEL"


class KernelFault(TilewrightError):
    """The interpreter met an out-of-bounds access, a read of unwritten data or another run-time fault."""

    code = "KERNEL_FAULT"


class UnsupportedTarget(TilewrightError):
    """The target is unknown, or not available on this machine."""

    code = "UNSUPPORTED_TARGET"


class CompileError(TilewrightError):
    """The code generator or the compiler behind it refused a kernel."""

    code = "COMPILE_ERROR"


class Fault(StrEnum):
    """What a device says went wrong with a kernel."""

    ILLEGAL_ACCESS = "illegal_access"
    """It touched an address that is not its own, or a misaligned one."""
    BROKEN_OFF = "broken_off"
    """It broke off otherwise: an illegal instruction, a trap, a hardware fault."""
    TIMEOUT = "timeout"
    """The driver's watchdog ended it."""
    REFUSED = "refused"
    """It was never started: its launch asks for what the device does not have."""


class DeviceFault(TilewrightError):
    """A device refused to launch a kernel, or the kernel broke off. ``lost``: the device's context is gone with it:
    every later call fails, and the process that holds it must be replaced."""

    code = "DEVICE_FAULT"

    def __init__(self, message: str, fault: Fault, *, lost: bool) -> None:
        super().__init__(message)
        self.fault = fault
        self.lost = lost


class ResourcesExceeded(CompileError):
    """The kernel compiles, but spills registers, or takes more of something than the hardware has."""

    code = "RESOURCES_EXCEEDED"


class OutOfMemory(TilewrightError):
    """The data of a workload do not fit into the memory of the machine, or of the device."""

    code = "OUT_OF_MEMORY"


class NotFound(TilewrightError):
    """What was asked for does not exist."""

    code = "NOT_FOUND"


class Conflict(TilewrightError):
    """The request contradicts the present state (a finished job cancelled, a key reused for another body)."""

    code = "CONFLICT"


class Forbidden(TilewrightError):
    """Whoever asks may not do this."""

    code = "FORBIDDEN"


class QuotaExceeded(TilewrightError):
    """A tenant has as much in the queue as it may have. The same request is possible once some of that is done."""

    code = "QUOTA_EXCEEDED"


class StoreError(TilewrightError):
    """The database cannot serve: unreachable, read-only, full, or written by a newer program."""

    code = "STORE_ERROR"


class DatabaseInUse(StoreError):
    """Another process has the embedded database open."""


class StorageFull(StoreError):
    """The disk, or the database's quota on it, has no room left; nothing was written."""

    code = "STORAGE_FULL"


class WorkerLost(TilewrightError):
    """An executor's process or actor died and could not be replaced."""

    code = "WORKER_LOST"
