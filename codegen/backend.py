"""What a backend is, and the values that pass through it: kernel IR -> source -> binary."""

from dataclasses import dataclass
from typing import Protocol

from ..core.dtypes import DType
from ..core.target import Target, Toolchain
from ..ir.stmt import Kernel


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
class Source:
    """Text a person can read and a compiler accepts. ``language``: ``llvm-ir`` or ``cuda-c++``."""

    language: str
    text: str
    entry: str
    parameters: tuple[Parameter, ...]


@dataclass(frozen=True, slots=True)
class Binary:
    """Machine code with what is needed to launch it. ``format``: ``elf`` (a relocatable object) or ``cubin``."""

    format: str
    code: bytes
    entry: str
    parameters: tuple[Parameter, ...]
    toolchain: Toolchain


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
