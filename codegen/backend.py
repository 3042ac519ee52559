"""Defines the contract of a backend, and the values of the lowering pipeline: kernel IR -> source -> binary."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from ..core.dtypes import DType
from ..core.errors import InvalidParameter
from ..core.target import Target, Toolchain
from ..ir.dynamic import check_extents, count_at_extent, shape_at_extent
from ..ir.expr import Expr
from ..ir.gpu.tma import Im2col
from ..ir.stmt import DynamicExtent, Kernel, Stmt
from .line_origins import LineOrigins

Origin = Stmt | Kernel
"""What a line of a source was written for: a statement of the emitted kernel, or the kernel itself with its
parameters."""

NAME_PATTERN = r"[A-Za-z_][A-Za-z0-9_]{0,63}"
"""It matches identifiers of C with up to 64 characters."""


@dataclass(frozen=True, slots=True)
class KernelParameter:
    """This is one buffer that a kernel is called with. ``role`` is ``input``, ``output`` or ``workspace``."""

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


def parameters_of(kernel: Kernel) -> tuple[KernelParameter, ...]:
    """Return what a call of ``kernel`` is given: inputs, then outputs, then workspace."""
    roles = (("input", kernel.inputs), ("output", kernel.outputs), ("workspace", kernel.workspace))
    return tuple(KernelParameter(b.name, role, b.shape, b.dtype) for role, buffers in roles for b in buffers)


@dataclass(frozen=True, slots=True)
class TensorMap:
    """It says how TMA copies boxes of one tensor (``CUtensorMap`` of the CUDA driver).

    parameter: Which parameter of the kernel the tensor is, by position.
    box: How many elements a box has along each dimension of the tensor; how many pixels and channels with ``im2col``.
    swizzle_128b: Whether the box lies in shared memory under the 128-byte swizzle (see ``ir.gpu``).
    l2_promotion_bytes: How many bytes come into L2 together, 128 or 256.
    shape: The shape that the tensor is seen in; None for that of the parameter.
    strides: How many elements lie between neighbours along each dimension; None where the tensor is row-major.
    im2col: The window whose positions a box takes; None for tiled boxes.
    rounds_to_tf32: Whether float32 elements are rounded to TF32 on their way.
    """

    parameter: int
    box: tuple[int, ...]
    swizzle_128b: bool
    l2_promotion_bytes: int = 128
    shape: tuple[int, ...] | None = None
    im2col: Im2col | None = None
    strides: tuple[int, ...] | None = None
    rounds_to_tf32: bool = False


@dataclass(frozen=True, slots=True)
class LaunchConfig:
    """It says how one device function is launched.

    blocks: How many thread blocks (CTAs) there are along x, y and z, in all clusters together.
    threads: How many threads a block has.
    cluster: How many neighbouring blocks along x form a cluster; 1 where there are no clusters.
    shared_bytes: How many bytes of dynamic shared memory a block has.
    arguments: Which parameters of the kernel the function takes, by position, in its order.
    tensor_maps: Which tensor maps it takes after them, each of 128 bytes. The driver encodes them for the address of a
        parameter.
    cooperative: Whether all blocks must run at once, because they wait for each other.
    in_prologue: Whether it reads nothing but constant inputs and what such launches write, so that it need not be done
        again for the same ones (``ir.prologue``).
    programmatic_dependent_launch: Whether its blocks may start while the launch before it in the stream still runs.
        The function itself waits for the end of that launch.
    numbers: Which numbers it takes besides: (place among all its arguments, eight bytes as a whole number).
    block_counts: How many of ``blocks`` there are along x, y and z in a call of a dynamic kernel, as expressions of its
        extents (a launch with none is left out); None where the grid is always the same.
    takes_extents: Which dynamic extents it takes, as ints behind the pointers: their variables, in order.
    """

    function: str
    blocks: tuple[int, int, int]
    threads: int
    cluster: int = 1
    shared_bytes: int = 0
    arguments: tuple[int, ...] = ()
    tensor_maps: tuple[TensorMap, ...] = ()
    programmatic_dependent_launch: bool = False
    numbers: tuple[tuple[int, int], ...] = ()
    block_counts: tuple[Expr, Expr, Expr] | None = None
    takes_extents: tuple[str, ...] = ()
    cooperative: bool = False
    in_prologue: bool = False

    def at_extent(
        self, dynamic: Sequence[DynamicExtent], parameters: Sequence[KernelParameter], extents: Sequence[int]
    ) -> "LaunchConfig":
        """Return the launch of a call with ``extents``, for the ``parameters`` of the dynamic kernel."""
        x, y, z = self.blocks
        if self.block_counts is not None:
            x, y, z = (count_at_extent(count, dynamic, extents) for count in self.block_counts)
        maps = [
            m
            if m.shape is None
            else replace(m, shape=shape_at_extent(dynamic, parameters[m.parameter].name, m.shape, extents))
            for m in self.tensor_maps
        ]
        taken = [extent for d, extent in zip(dynamic, extents, strict=True) if d.var in self.takes_extents]
        numbers = tuple((len(self.arguments) + n, extent) for n, extent in enumerate(taken))
        return replace(
            self, blocks=(x, y, z), tensor_maps=tuple(maps), numbers=numbers, block_counts=None, takes_extents=()
        )


@dataclass(frozen=True, slots=True)
class Resources:
    """It says what one device function takes, as the compiler reports it.

    registers: How many registers a thread has.
    spill_bytes: How many bytes of registers are spilled to memory, by loads and stores together.
    stack_bytes: How many bytes of stack a thread has.
    static_shared_bytes: How many bytes of static shared memory a block has.
    """

    registers: int
    spill_bytes: int = 0
    stack_bytes: int = 0
    static_shared_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Source:
    """This is text that a person can read and a compiler accepts.

    language: It is ``llvm-ir`` or ``cuda-c++``.
    entry: Which function is called. On a device with launches it is the one that is launched first.
    launches: On a device with launches, these are done for one call, in order.
    prologue: Which function is called once ahead of ``entry`` for the same constant inputs and workspace, and reads
        nothing else. It is empty where there is none.
    minimal_passes, dynamic: They mean what they mean in ``ir.stmt.Kernel``.
    origins: What each line of ``text`` was written for. A function that several statements call has them all. A
        statement that the emitter made on the way is traced to the kernel by ``ir.provenance``.
    """

    language: str
    text: str
    entry: str
    parameters: tuple[KernelParameter, ...]
    launches: tuple[LaunchConfig, ...] = ()
    prologue: str = ""
    minimal_passes: bool = False
    dynamic: tuple[DynamicExtent, ...] = ()
    origins: tuple[tuple[Origin, ...], ...] = field(default=(), compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class CompiledKernel:
    """This is machine code with what is needed to launch it.

    format: It is ``elf`` (a relocatable object) or ``cubin``.
    entry, launches, prologue: They mean what they mean in ``Source``.
    resources: What each function takes, by its name, where the compiler reports it.
    dynamic: The extents that every call gives, in their order. Parameters have the shapes of the largest ones.
    """

    format: str
    code: bytes
    entry: str
    parameters: tuple[KernelParameter, ...]
    toolchain: Toolchain
    launches: tuple[LaunchConfig, ...] = ()
    resources: Mapping[str, Resources] = field(default_factory=dict)
    prologue: str = ""
    dynamic: tuple[DynamicExtent, ...] = ()

    @property
    def has_prologue(self) -> bool:
        """Whether a part of the kernel is done once for the same constant inputs."""
        return bool(self.prologue) or any(launch.in_prologue for launch in self.launches)

    def at_extent(self, *extents: int) -> "CompiledKernel":
        """Return the kernel as a call with ``extents``, one for each dynamic extent, sees it: with static parameters
        and launches. Raises InvalidParameter for extents that it does not allow."""
        if not self.dynamic:
            return self
        check_extents(self.dynamic, extents)
        parameters = [
            replace(p, shape=shape_at_extent(self.dynamic, p.name, p.shape, extents)) for p in self.parameters
        ]
        called = (config.at_extent(self.dynamic, self.parameters, extents) for config in self.launches)
        launches = [config for config in called if all(config.blocks)]
        return replace(self, parameters=tuple(parameters), launches=tuple(launches), dynamic=())


@dataclass(frozen=True, slots=True)
class CodeLayer:
    """This is one form of a kernel as text. ``language`` is ``assembly``, ``ptx``, ``sass`` or the like. ``origins``
    says which lines of the form above it each line comes from; it is empty where the compiler does not tell."""

    title: str
    language: str
    text: str
    origins: LineOrigins = ()


@dataclass(frozen=True, slots=True)
class Artifacts:
    """This is all that a compiler makes of a source, for people to read.

    layers: Which forms there are below the source, in the order of compilation.
    instructions: How many machine instructions of each class there are in the last layer.
    resources: It means what it means in ``CompiledKernel``, and is there for a kernel that ``compile`` refuses, too.
    """

    layers: tuple[CodeLayer, ...]
    instructions: Mapping[str, int]
    resources: Mapping[str, Resources] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Packaging:
    """It says how a kernel is exported. ``name`` is what its functions for other programs are called, an identifier of
    C; ``library`` says whether a shared library is linked besides the object."""

    name: str = "kernel"
    library: bool = False

    def __post_init__(self) -> None:
        """Raises InvalidParameter."""
        if not re.fullmatch(NAME_PATTERN, self.name):
            raise InvalidParameter(f"{self.name[:80]!r} is no name; allowed: {NAME_PATTERN}", field="name")


DEFAULT_PACKAGING = Packaging()


@dataclass(frozen=True, slots=True)
class Package:
    """This is a kernel for use without Tilewright.

    files: What each file has in it, by its name.
    entry: Which function is called, or launched first.
    parameters: What it is given.
    """

    files: Mapping[str, bytes]
    entry: str
    parameters: tuple[KernelParameter, ...]


class Backend(Protocol):
    """A backend generates code for one kind of target. It has no state. The pipeline is ``passes`` -> ``emit`` ->
    ``compile``."""

    def toolchain(self, target: Target) -> Toolchain:
        """Return the versions and flags that ``compile`` would use."""
        ...

    def passes(self, kernel: Kernel) -> tuple[tuple[str, Kernel], ...]:
        """Return (name of a pass, kernel after it) for each pass, in order. ``emit`` takes the last kernel."""
        ...

    def emit(self, kernel: Kernel, target: Target) -> Source:
        """Raises CompileError for IR that this backend cannot express."""
        ...

    def compile(self, source: Source, target: Target) -> CompiledKernel:
        """Raises CompileError with the compiler's message."""
        ...

    def assembly(self, source: Source, target: Target) -> str:
        """Return the machine instructions of ``source`` as text."""
        ...

    def artifacts(self, source: Source, target: Target) -> Artifacts:
        """Return all there is to see of ``source`` below its text. Raises CompileError."""
        ...

    def package(self, source: Source, target: Target, packaging: Packaging) -> Package:
        """Return the files that a person needs to build and use ``source`` without Tilewright. Raises CompileError, and
        UnsupportedTarget for a library that cannot be made here."""
        ...
