"""Implements ``codegen.backend.Backend`` for CUDA: kernel IR -> CUDA C++ -> cubin."""

from ...core.errors import UnsupportedTarget
from ...core.target import Target, Toolchain
from ...ir.simplify import simplify_kernel
from ...ir.stmt import Kernel
from ..backend import Artifacts, CompiledKernel, Package, Packaging, Source
from ..passes.pipeline import KernelsAfterPasses, Pass, run_launch_passes
from ..passes.vectorise import vectorise
from .compile import compiler
from .emit.kernel import emit
from .inspect.artifacts import artifacts, assembly
from .inspect.launcher import with_launcher

PASSES: tuple[tuple[str, Pass], ...] = (
    ("simplify", simplify_kernel),
    ("vectorise", vectorise),
    ("simplify vectors", simplify_kernel),
)
"""These are the passes for processors, with two left out. Unrolled loops stay loops, which the compiler unrolls.
Guarded loops are not partitioned: guards differ between the threads of a warp, so that a warp would run both versions.
"""


class CudaBackend:
    """Generates code for targets of kind ``cuda``."""

    def toolchain(self, target: Target) -> Toolchain:
        return compiler.toolchain(target)

    def passes(self, kernel: Kernel) -> KernelsAfterPasses:
        return run_launch_passes(PASSES, kernel)

    def emit(self, kernel: Kernel, target: Target) -> Source:
        return emit(kernel, target)

    def compile(self, source: Source, target: Target) -> CompiledKernel:
        return compiler.compile_source(source, target)

    def assembly(self, source: Source, target: Target) -> str:
        return assembly(source, target)

    def artifacts(self, source: Source, target: Target) -> Artifacts:
        return artifacts(source, target)

    def package(self, source: Source, target: Target, packaging: Packaging) -> Package:
        """Package the source with a host program that nvcc builds, the cubin, and the PTX."""
        if packaging.library:
            raise UnsupportedTarget("libraries are made of kernels for processors, kind llvm", field="library")
        files = {
            "kernel.cu": with_launcher(source, target.arch).encode(),
            "kernel.cubin": compiler.compile_source(source, target).code,
            "kernel.ptx": compiler.compiled(source, target).ptx.encode(),
        }
        return Package(files, source.entry, source.parameters)
