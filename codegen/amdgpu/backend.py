"""Implements ``codegen.backend.Backend`` for AMD's graphics processors: launches -> LLVM IR -> object code."""

from dataclasses import replace

from ...core.errors import UnsupportedTarget
from ...core.target import Target, Toolchain
from ...ir.simplify import simplify_kernel
from ...ir.stmt import Kernel
from ..backend import Artifacts, CodeLayer, CompiledKernel, Package, Packaging, Source
from ..llvm.debug_lines import assembly_origins, with_debug_lines
from ..llvm.instructions import count_instructions
from ..passes.pipeline import KernelsAfterPasses, Pass, run_launch_passes
from ..passes.unroll import unroll
from ..passes.vectorise import vectorise
from . import compile as compiler
from .emit import emit

PASSES: tuple[tuple[str, Pass], ...] = (
    ("simplify", simplify_kernel),
    ("vectorise", vectorise),
    ("unroll", unroll),
    ("simplify unrolled", simplify_kernel),
)
"""These are the passes for CUDA, and one that unrolls loops, since LLVM is told to unroll nothing by itself."""


class AmdgpuBackend:
    """Generates code for targets of kind ``amdgpu``."""

    def toolchain(self, target: Target) -> Toolchain:
        return compiler.toolchain(target)

    def passes(self, kernel: Kernel) -> KernelsAfterPasses:
        return run_launch_passes(PASSES, kernel)

    def emit(self, kernel: Kernel, target: Target) -> Source:
        return emit(kernel, target)

    def compile(self, source: Source, target: Target) -> CompiledKernel:
        return compiler.compile_source(source, target)

    def assembly(self, source: Source, target: Target) -> str:
        return compiler.assembly(source, target)

    def artifacts(self, source: Source, target: Target) -> Artifacts:
        text = compiler.assembly(source, target)
        counts = count_instructions(text, target.arch)
        annotated = compiler.assembly(replace(source, text=with_debug_lines(source.text)), target)
        layer = CodeLayer("assembly", "assembly", text, assembly_origins(text, annotated))
        return Artifacts((layer,), counts, compiler.resources(text))

    def package(self, source: Source, target: Target, packaging: Packaging) -> Package:
        """Package LLVM IR, assembly, and the relocatable object, of which AMD's linker makes a code object."""
        if packaging.library:
            raise UnsupportedTarget("libraries are made of kernels for processors, kind llvm", field="library")
        files = {
            "kernel.ll": source.text.encode(),
            "kernel.s": compiler.assembly(source, target).encode(),
            "kernel.o": compiler.compile_source(source, target).code,
        }
        return Package(files, source.entry, source.parameters)
