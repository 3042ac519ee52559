"""The LLVM backend: kernel IR -> LLVM IR -> object code, all in process."""

from collections.abc import Mapping

from ...core.target import Target, Toolchain
from ...ir.stmt import Kernel
from ..backend import Anatomy, Binary, Layer, Source
from ..passes.pipeline import run_passes
from . import compile as compiler
from .emit import emit
from .instructions import count_instructions


class LlvmBackend:
    """See ``codegen.backend.Backend``."""

    def toolchain(self, target: Target) -> Toolchain:
        return compiler.toolchain(target)

    def passes(self, kernel: Kernel, target: Target) -> tuple[tuple[str, Kernel], ...]:
        return run_passes(kernel)

    def emit(self, kernel: Kernel, target: Target) -> Source:
        return emit(kernel, target)

    def compile(self, source: Source, target: Target) -> Binary:
        return compiler.compile_source(source, target)

    def assembly(self, source: Source, target: Target) -> str:
        return compiler.assembly(source, target)

    def anatomy(self, source: Source, target: Target) -> Anatomy:
        text = compiler.assembly(source, target)
        return Anatomy((Layer("assembly", "assembly", text),), count_instructions(text, target.arch))

    def files(self, source: Source, target: Target) -> Mapping[str, bytes]:
        """LLVM IR, assembly, and the object that they become."""
        return {
            "kernel.ll": source.text.encode(),
            "kernel.s": compiler.assembly(source, target).encode(),
            "kernel.o": compiler.compile_source(source, target).code,
        }
