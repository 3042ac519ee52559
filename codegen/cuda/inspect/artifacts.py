"""Collects the forms that CUDA C++ takes: PTX, then SASS where a disassembler is installed."""

from ....core.target import Target
from ...backend import Artifacts, CodeLayer, Source
from ..compile.compiler import compiled
from ..compile.resources import parse_log
from .disassemble import machine_code, sass_of
from .instructions import count_instructions
from .line_information import ptx_origins, sass_origins, without_lines

_NO_SASS = """// The machine instructions (SASS) cannot be shown: no nvdisasm that knows {arch} is on the path or in the
// environment of Python (the CUDA toolkit brings it, and pip install nvidia-cuda-nvdisasm).
// What follows is PTX, the virtual instructions that they are assembled from.

"""


def artifacts(source: Source, target: Target) -> Artifacts:
    """Return PTX and SASS of ``source``, its instructions by class, and what its functions take, also of a kernel that
    is refused for spilling. Without SASS no instructions are counted. Raises CompileError."""
    result, annotated = compiled(source, target), compiled(source, target, line_information=True)
    origins, with_lines = ptx_origins(result.ptx, annotated.ptx), sass_of(annotated.cubin, ptx_lines=True) or ""
    same = bool(with_lines) and machine_code(annotated.cubin) == machine_code(result.cubin)
    sass = without_lines(with_lines) if same else sass_of(result.cubin)
    if sass is None:
        note = _NO_SASS.format(arch=target.arch)
        blank = ((),) * note.count("\n") if origins else ()
        return Artifacts((CodeLayer("assembly", "ptx", note + result.ptx, blank + origins),), {}, parse_log(result.log))
    layers = (
        CodeLayer("PTX", "ptx", result.ptx, origins),
        CodeLayer("SASS", "sass", sass, sass_origins(result.ptx, annotated.ptx, sass, with_lines)),
    )
    return Artifacts(layers, count_instructions(sass), parse_log(result.log))


def assembly(source: Source, target: Target) -> str:
    """Return the SASS of ``source``, or PTX with a note where no disassembler is installed. Raises CompileError."""
    result = compiled(source, target)
    return sass_of(result.cubin) or _NO_SASS.format(arch=target.arch) + result.ptx
