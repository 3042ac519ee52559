"""What a backend is, and the values that pass through it: kernel IR -> source -> binary."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from ..core.dtypes import DType
from ..core.errors import InvalidParameter
from ..core.target import Target, Toolchain
from ..ir.stmt import Kernel

NAME_PATTERN = r"[A-Za-z_][A-Za-z0-9_]{0,63}"


@dataclass(frozen=True, slots=True)
class Parameter:
    """One buffer a launch is given. ``role``: ``input``, ``output`` or ``workspace``."""

    name: str
    role: str
    shape: tuple[int, ...]
    dtype: DType

    @property
    def bytes(self) -> int:
        size = self.dtype.bytes
        for extent in self.shape:
            size *= extent
        return size


@dataclass(frozen=True, slots=True)
class TensorMap:
    """What a device function is told of a tensor that it copies boxes of: ``parameter`` by position, the extents of a
    ``box``, one per dimension of the parameter, whether rows of 128 bytes are swizzled (see ``ir.gpu``), and
    ``line_bytes``: what comes into the cache in front of memory together, 128 or 256."""

    parameter: int
    box: tuple[int, ...]
    swizzled: bool
    line_bytes: int = 128


@dataclass(frozen=True, slots=True)
class LaunchConfig:
    """One device function and its launch. ``blocks`` counts thread blocks along x, y and z, those of all clusters;
    ``cluster``: neighbouring blocks along x that form one (1: none). ``shared_bytes``: dynamic shared memory of a
    block. ``arguments``: which of the binary's parameters the function takes, by position, in its order; after them it
    takes ``tensor_maps`` (128 bytes each, which the driver fills for a parameter's address). ``overlaps``: its blocks
    may begin while the launch before it in the stream still runs: they wait for its end themselves."""

    function: str
    blocks: tuple[int, int, int]
    threads: int
    cluster: int = 1
    shared_bytes: int = 0
    arguments: tuple[int, ...] = ()
    tensor_maps: tuple[TensorMap, ...] = ()
    overlaps: bool = False


@dataclass(frozen=True, slots=True)
class Resources:
    """What the compiler says one device function takes: registers and stack bytes of a thread, bytes of registers
    spilled to memory (loads and stores together), static shared bytes of a block."""

    registers: int
    spill_bytes: int = 0
    stack_bytes: int = 0
    static_shared_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Source:
    """Text a person can read and a compiler accepts. ``language``: ``llvm-ir`` or ``cuda-c++``. ``launches``: on a
    device with launches, those of one call, in order; elsewhere ``entry`` is called. ``prologue``: what is called
    before it once for the same constant inputs and workspace, and looks at these alone; empty where there is nothing to
    do. ``minimal_passes``: as in Kernel."""

    language: str
    text: str
    entry: str
    parameters: tuple[Parameter, ...]
    launches: tuple[LaunchConfig, ...] = ()
    prologue: str = ""
    minimal_passes: bool = False


@dataclass(frozen=True, slots=True)
class Binary:
    """Machine code with what is needed to launch it. ``format``: ``elf`` (a relocatable object) or ``cubin``.
    ``resources``: function name -> what it takes, where the compiler says so. ``prologue``: as in Source."""

    format: str
    code: bytes
    entry: str
    parameters: tuple[Parameter, ...]
    toolchain: Toolchain
    launches: tuple[LaunchConfig, ...] = ()
    resources: Mapping[str, Resources] = field(default_factory=dict)
    prologue: str = ""


@dataclass(frozen=True, slots=True)
class Layer:
    """One form of a kernel as text. ``language``: ``assembly``, ``ptx``, …"""

    title: str
    language: str
    text: str


@dataclass(frozen=True, slots=True)
class Artifacts:
    """What a source becomes. ``layers``: its forms below the source, in order. ``instructions``: class -> count in the
    last of them. ``resources``: as in Binary, also of a kernel that ``compile`` refuses for what it takes."""

    layers: tuple[Layer, ...]
    instructions: Mapping[str, int]
    resources: Mapping[str, Resources] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Packaging:
    """How a kernel is exported. ``name``: what its functions for other programs are called, an identifier of C;
    ``library``: whether a shared library is linked, beside the object."""

    name: str = "kernel"
    library: bool = False

    def __post_init__(self) -> None:
        """Raises InvalidParameter."""
        if not re.fullmatch(NAME_PATTERN, self.name):
            raise InvalidParameter(f"{self.name[:80]!r} is no name; allowed: {NAME_PATTERN}", field="name")


AS_KERNEL = Packaging()


@dataclass(frozen=True, slots=True)
class Package:
    """A kernel for use without Tilewright. ``files``: file name -> content. ``entry``: the function that is called, or
    launched first; ``parameters``: what it is given."""

    files: Mapping[str, bytes]
    entry: str
    parameters: tuple[Parameter, ...]


class Backend(Protocol):
    """One per target kind; stateless. The road is ``passes`` -> ``emit`` -> ``compile``."""

    def toolchain(self, target: Target) -> Toolchain:
        """The versions and flags that ``compile`` would use."""
        ...

    def passes(self, kernel: Kernel, target: Target) -> tuple[tuple[str, Kernel], ...]:
        """(name of the pass, kernel after it), in order; the last one is what ``emit`` takes."""
        ...

    def emit(self, kernel: Kernel, target: Target) -> Source:
        """Raises CompileError for IR this backend cannot express."""
        ...

    def compile(self, source: Source, target: Target) -> Binary:
        """Raises CompileError with the compiler's message."""
        ...

    def assembly(self, source: Source, target: Target) -> str:
        """The machine instructions of ``source`` as text."""
        ...

    def artifacts(self, source: Source, target: Target) -> Artifacts:
        """All there is to see of ``source`` below its text. Raises CompileError."""
        ...

    def package(self, source: Source, target: Target, packaging: Packaging) -> Package:
        """What a person takes away to build and use ``source`` without Tilewright. Raises CompileError, and
        UnsupportedTarget for a library that cannot be made here."""
        ...
