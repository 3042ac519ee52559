"""Collects the forms that CUDA C++ takes: PTX, then SASS where a disassembler is installed."""

from ....core.target import Target
from ...backend import Artifacts, CodeLayer, Source
from ..compile.compiler import compiled
from ..compile.resources import parse_log
from .disassemble import sass_of
from .instructions import count_instructions

_NO_SASS = """// The machine instructions (SASS) cannot be shown: no nvdisasm that knows {arch} is on the path or in the
// environment of Python (the CUDA toolkit brings it, and pip install nvidia-cuda-nvdisasm).
// What follows is PTX, the virtual instructions that they are assembled from.

"""


def artifacts(source: Source, target: Target) -> Artifacts:
    """Return PTX and SASS of ``source``, its instructions by class, and what its functions take, also of a kernel that
    is refused for spilling. Without SASS no instructions are counted. Raises CompileError."""
    result = compiled(source, target)
    sass = sass_of(result.cubin)
    if sass is None:
        last = CodeLayer("assembly", "ptx", _NO_SASS.format(arch=target.arch) + result.ptx)
        return Artifacts((last,), {}, parse_log(result.log))
    layers = (CodeLayer("PTX", "ptx", result.ptx), CodeLayer("SASS", "sass", sass))
    return Artifacts(layers, count_instructions(sass), parse_log(result.log))
