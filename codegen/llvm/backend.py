"""The LLVM backend: kernel IR -> LLVM IR -> object code, all in process."""

from ...core.target import Target, Toolchain
from ...ir.stmt import Kernel
from ..backend import Artifacts, CodeLayer, CompiledKernel, Package, Packaging, Source
from ..passes.pipeline import run_passes
from . import compile as compiler
from .emit import emit
from .header import header
from .instructions import count_instructions
from .interface import arguments_of, function_name, library_object
from .link import shared_library


class LlvmBackend:
    """See ``codegen.backend.Backend``."""

    def toolchain(self, target: Target) -> Toolchain:
        return compiler.toolchain(target)

    def passes(self, kernel: Kernel, target: Target) -> tuple[tuple[str, Kernel], ...]:
        return run_passes(kernel)

    def emit(self, kernel: Kernel, target: Target) -> Source:
        return emit(kernel, target)

    def compile(self, source: Source, target: Target) -> CompiledKernel:
        return compiler.compile_source(source, target)

    def assembly(self, source: Source, target: Target) -> str:
        return compiler.assembly(source, target)

    def artifacts(self, source: Source, target: Target) -> Artifacts:
        text = compiler.assembly(source, target)
        return Artifacts((CodeLayer("assembly", "assembly", text),), count_instructions(text, target.arch))

    def package(self, source: Source, target: Target, packaging: Packaging) -> Package:
        """The kernel's LLVM IR and assembly; an object of it with all that it calls, and its header; a library."""
        code = library_object(source, packaging.name, target)
        files = {
            "kernel.ll": source.text.encode(),
            "kernel.s": compiler.assembly(source, target).encode(),
            "kernel.h": header(source, packaging.name, target).encode(),
            "kernel.o": code,
        }
        if packaging.library:
            files["kernel.so"] = shared_library(code, target)
        return Package(files, function_name(packaging.name), arguments_of(source))
