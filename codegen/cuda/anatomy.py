"""What CUDA C++ becomes: PTX, then SASS where a disassembler is installed."""

from ...core.target import Target
from ..backend import Anatomy, Layer, Source
from .compile import compiled
from .disassemble import sass_of
from .instructions import count_instructions
from .resources import parse_log

_NO_SASS = """// The machine instructions (SASS) cannot be shown: no nvdisasm that knows {arch} is on the path or in the
// environment of Python (the CUDA toolkit brings it, and pip install nvidia-cuda-nvdisasm).
// What follows is PTX, the virtual instructions that they are assembled from.

"""


def anatomy(source: Source, target: Target) -> Anatomy:
    """PTX and SASS of ``source``, its instructions by class (none counted without SASS), and what its functions take;
    also of a kernel that is refused for spilling. Raises CompileError."""
    result = compiled(source, target)
    sass = sass_of(result.cubin)
    if sass is None:
        last = Layer("assembly", "ptx", _NO_SASS.format(arch=target.arch) + result.ptx)
        return Anatomy((last,), {}, parse_log(result.log))
    layers = (Layer("PTX", "ptx", result.ptx), Layer("SASS", "sass", sass))
    return Anatomy(layers, count_instructions(sass), parse_log(result.log))
