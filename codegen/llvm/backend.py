"""The LLVM backend turns kernel IR into LLVM IR and then into object code, all in this process."""

from dataclasses import replace

from ...core.target import Target, Toolchain
from ...ir.stmt import Kernel
from ..backend import Artifacts, CodeLayer, CompiledKernel, Package, Packaging, Source
from ..passes.pipeline import KernelsAfterPasses, run_passes
from . import compile as compiler
from .debug_lines import assembly_origins, with_debug_lines
from .emit import emit
from .header import header
from .instructions import count_instructions
from .interface import arguments_of, function_name, library_object
from .link import shared_library


class LlvmBackend:
    """The LLVM backend; see ``codegen.backend.Backend``."""

    def toolchain(self, target: Target) -> Toolchain:
        return compiler.toolchain(target)

    def passes(self, kernel: Kernel) -> KernelsAfterPasses:
        return run_passes(kernel)

    def emit(self, kernel: Kernel, target: Target) -> Source:
        return emit(kernel, target)

    def compile(self, source: Source, target: Target) -> CompiledKernel:
        return compiler.compile_source(source, target)

    def assembly(self, source: Source, target: Target) -> str:
        return compiler.assembly(source, target)

    def artifacts(self, source: Source, target: Target) -> Artifacts:
        text = compiler.assembly(source, target)
        annotated = compiler.assembly(replace(source, text=with_debug_lines(source.text)), target)
        layer = CodeLayer("assembly", "assembly", text, assembly_origins(text, annotated))
        return Artifacts((layer,), count_instructions(text, target.arch))

    def package(self, source: Source, target: Target, packaging: Packaging) -> Package:
        """Return the files of an exported kernel: its LLVM IR, its assembly, an object with all that it calls, a
        header, and a shared library where one is asked for."""
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
