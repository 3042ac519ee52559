"""The host's CPU as a device."""

from collections.abc import Callable, Sequence
from ctypes import CFUNCTYPE, Array, addressof, c_int32, c_void_p
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..codegen.backend import CompiledKernel
from ..core.dtypes import DType
from ..core.errors import CompileError, InvalidParameter, UnsupportedTarget
from ..core.target import DeviceInfo, Target
from . import cpu_checks, hardware, peaks
from .device import Comparison, Memory, PatternMatches
from .jit_session import load_object
from .thread_pool import native_services, parallel_for_address

ALIGNMENT_BYTES = 64
_ENTRY = CFUNCTYPE(c_int32, c_void_p)


class CpuMemory:
    """Host memory. The NumPy array behind it is freed with the last view."""

    def __init__(self, data: NDArray[np.uint8]) -> None:
        self._data = data

    @property
    def nbytes(self) -> int:
        return self._data.nbytes

    @property
    def address(self) -> int:
        return int(self._data.ctypes.data)

    @property
    def array(self) -> NDArray[np.uint8]:
        """The bytes themselves, without a copy."""
        return self._data

    def view(self, offset: int, nbytes: int) -> "CpuMemory":
        if offset < 0 or nbytes < 0 or offset + nbytes > self.nbytes:
            raise InvalidParameter(
                f"a view of bytes {offset} to {offset + nbytes} of a span of {self.nbytes}", field="offset"
            )
        return CpuMemory(self._data[offset : offset + nbytes])

    def write(self, data: NDArray[np.uint8]) -> None:
        if data.nbytes != self.nbytes:
            raise InvalidParameter(f"{data.nbytes} bytes written to a span of {self.nbytes}", field="data")
        self._data[:] = data.reshape(-1).view(np.uint8)

    def read(self) -> NDArray[np.uint8]:
        return self._data.copy()


class CpuKernel:
    """Machine code that is mapped into this process."""

    def __init__(self, binary: CompiledKernel, target: Target) -> None:
        self.parameters = binary.parameters
        imports = {
            "tilewright_parallel_for": parallel_for_address(target.threads),
            "tilewright_scratch": native_services().scratch,
        }
        names = [name for name in (binary.prologue, binary.entry) if name]
        self._library = load_object(binary.code, names, imports)
        self._address = self._library.addresses[binary.entry]
        self._entry = _ENTRY(self._address)
        self._prologue = _ENTRY(self._library.addresses[binary.prologue]) if binary.prologue else None

    def prepare(self, arguments: Sequence[Memory]) -> None:
        pointers = self._pointers(arguments)
        if self._prologue is not None:
            self._prologue(addressof(pointers))

    def launch(self, arguments: Sequence[Memory]) -> None:
        pointers = self._pointers(arguments)
        if self._prologue is not None:
            self._prologue(addressof(pointers))
        self._entry(addressof(pointers))

    @property
    def has_prologue(self) -> bool:
        """Whether ``prepare_at`` computes anything, such as a packed copy of constant operands."""
        return self._prologue is not None

    @property
    def prepared(self) -> frozenset[str]:
        """Return the workspace that the prologue may fill, by the names of the parameters."""
        return frozenset(p.name for p in self.parameters if p.role == "workspace" and self._prologue is not None)

    def prepare_at(self, addresses: Sequence[int], stream: int = 0) -> None:
        """Do ``prepare`` on raw addresses, one per parameter. The caller must see to their sizes and alignment."""
        pointers = (c_void_p * len(addresses))(*addresses)  # It has a name because it must outlive the call.
        if self._prologue is not None:
            self._prologue(addressof(pointers))

    def launch_prepared_at(self, addresses: Sequence[int]) -> None:
        """Run once on raw addresses, as in ``prepare_at``, which must have been called on them before."""
        pointers = (c_void_p * len(addresses))(*addresses)
        self._entry(addressof(pointers))

    def bind_at(self, addresses: Sequence[int]) -> "CpuLaunch":
        """Return what does ``launch_prepared_at`` on these addresses."""
        return CpuLaunch(self, self._address, (c_void_p * len(addresses))(*addresses))

    def time(self, argument_sets: Sequence[Sequence[Memory]], launches: int) -> float:
        if not argument_sets or launches < 1:
            raise InvalidParameter(
                f"{launches} launches over {len(argument_sets)} argument sets; allowed: at least one of each",
                field="launches",
            )
        arrays = [self._pointers(arguments) for arguments in argument_sets]
        table = (c_void_p * len(arrays))(*(addressof(a) for a in arrays))
        return native_services().time(self._address, addressof(table), len(arrays), launches)

    def _pointers(self, arguments: Sequence[Memory]) -> "Array[c_void_p]":
        if len(arguments) != len(self.parameters):
            raise InvalidParameter(
                f"{len(arguments)} arguments for {len(self.parameters)} parameters: "
                f"{', '.join(p.name for p in self.parameters)}",
                field="arguments",
            )
        addresses = []
        for parameter, memory in zip(self.parameters, arguments, strict=True):
            if not isinstance(memory, CpuMemory):
                raise InvalidParameter(f"{parameter.name}: not memory of this device", field="arguments")
            if memory.nbytes != parameter.bytes:
                raise InvalidParameter(
                    f"{parameter.name}: {memory.nbytes} bytes given, {parameter.bytes} needed "
                    f"({parameter.dtype}{list(parameter.shape)})",
                    field="arguments",
                )
            if memory.address % parameter.dtype.bytes:
                raise InvalidParameter(
                    f"{parameter.name}: address is no multiple of the {parameter.dtype.bytes} bytes of an element",
                    field="arguments",
                )
            addresses.append(memory.address)
        return (c_void_p * len(addresses))(*addresses)


@dataclass(frozen=True, eq=False)
class CpuLaunch:
    """A call of the function at ``entry`` with these arguments. ``kernel`` is what it belongs to, which must stay
    loaded. The stream that a call is given means nothing."""

    kernel: CpuKernel
    entry: int
    pointers: "Array[c_void_p]"

    def __call__(self, stream: int) -> None:
        self.kernel._entry(addressof(self.pointers))


class LaunchesInARow:
    """One native call of several launches, without Python between them. It has arguments of its own."""

    def __init__(self, launches: Sequence[CpuLaunch]) -> None:
        self._held = launches
        self._arguments = [type(launch.pointers).from_buffer_copy(launch.pointers) for launch in launches]
        entries = [launch.entry for launch in launches]
        pairs = [a for pair in zip(entries, map(addressof, self._arguments), strict=True) for a in pair]
        self._calls = (c_void_p * len(pairs))(*pairs)
        self._run, self._at = native_services().run, addressof(self._calls)

    def __call__(self, stream: int) -> None:
        self._run(self._at, len(self._arguments))

    def place(self, launch: int, parameter: int, address: int) -> None:
        """From now on this parameter of this launch, by number, lies at ``address``."""
        self._arguments[launch][parameter] = address


def launched_in_a_row(launches: Sequence[Callable[[int], None]]) -> LaunchesInARow | None:
    """Return one native call of all launches; None where others than ``CpuLaunch`` are among them, or where it is
    one."""
    own = [launch for launch in launches if isinstance(launch, CpuLaunch)]
    return None if len(own) < len(launches) or len(own) < 2 else LaunchesInARow(own)


class CpuDevice:
    """The host's CPU; see ``runtime.device.Device``. Opening it starts nothing; threads start with the first
    parallel kernel."""

    def __init__(self, target: Target | None = None, ordinal: int = 0) -> None:
        """``target`` defaults to the whole host; one with fewer features or threads is allowed. There is one device,
        number 0. Raises UnsupportedTarget for any other number or target."""
        host = info(ordinal).target
        self.target = target or host
        if self.target.kind != host.kind or self.target.arch != host.arch:
            raise UnsupportedTarget(f"{self.target} does not run here; this machine is {host}", field="target")
        missing = sorted(set(self.target.features) - set(host.features))
        if missing:
            raise UnsupportedTarget(f"this CPU lacks {', '.join(missing)}", field="features")
        self._info = _info(self.target)

    @property
    def info(self) -> DeviceInfo:
        return self._info

    @property
    def lock_name(self) -> str:
        return ""

    def allocate(self, nbytes: int) -> CpuMemory:
        if nbytes < 0:
            raise InvalidParameter(f"{nbytes} bytes; allowed: 0 and more", field="nbytes")
        block = np.empty(nbytes + ALIGNMENT_BYTES, dtype=np.uint8)
        offset = -block.ctypes.data % ALIGNMENT_BYTES
        return CpuMemory(block[offset : offset + nbytes])

    def hold(self, data: NDArray[np.generic]) -> CpuMemory:
        return CpuMemory(data.reshape(-1).view(np.uint8))

    def fill(self, memory: Memory, pattern: bytes) -> None:
        cpu_checks.fill(_bytes(memory), pattern)

    def copy(self, into: Memory, source: Memory) -> None:
        into.write(_bytes(source))

    def sweep(self, memory: Memory) -> None:
        cpu_checks.sweep(_bytes(memory))

    def changed(self, memory: Memory, pattern: bytes) -> tuple[int, int] | None:
        return cpu_checks.changed(_bytes(memory), pattern)

    def differs(self, memory: Memory, other: Memory) -> bool:
        return cpu_checks.differs(_bytes(memory), _bytes(other))

    def matching(self, memory: Memory, pattern: bytes, among: PatternMatches | None = None) -> PatternMatches:
        return cpu_checks.matching(_bytes(memory), pattern, among)

    def compare(self, got: Memory, dtype: DType, want: Memory, absolute: float, relative: float) -> Comparison:
        return cpu_checks.compare(_bytes(got), dtype, _bytes(want), absolute, relative)

    def environment(self) -> dict[str, float]:
        return {}

    def load(self, binary: CompiledKernel) -> CpuKernel:
        if binary.format != "elf":
            raise CompileError(f"a CPU runs elf objects, not {binary.format}")
        return CpuKernel(binary, self.target)

    def measure_peaks(self) -> dict[str, float]:
        return peaks.measure(self)

    def power_anchor_seconds(self) -> None:
        return None


def count() -> int:
    """Return how many CPU devices there are. The machine is one."""
    return 1


def info(ordinal: int = 0) -> DeviceInfo:
    """Describe the whole machine. Raises UnsupportedTarget for any number but 0, and on a machine that code is not
    made for."""
    _check_ordinal(ordinal)
    return _info(hardware.host_target())


def uuid(ordinal: int = 0) -> str:
    """Return a stable name of the host. A processor has no UUID of its own. Raises UnsupportedTarget for any number
    but 0."""
    _check_ordinal(ordinal)
    return hardware.host_uuid()


def _check_ordinal(ordinal: int) -> None:
    if ordinal != 0:
        raise UnsupportedTarget(f"llvm device {ordinal}; allowed: 0", field="ordinal")


def _info(target: Target) -> DeviceInfo:
    return DeviceInfo(hardware.cpu_name(), target, hardware.hardware_columns(target))


def _bytes(memory: Memory) -> NDArray[np.uint8]:
    if not isinstance(memory, CpuMemory):
        raise InvalidParameter("not memory of this device", field="memory")
    return memory.array
