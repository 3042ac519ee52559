"""Compiles LLVM IR to object code for AMD's processors, in this process."""

import re
from collections.abc import Mapping

import llvmlite
import llvmlite.binding as llvm

from ... import __version__
from ...core.errors import UnsupportedTarget
from ...core.target import Target, Toolchain
from ..backend import CompiledKernel, Resources, Source
from ..llvm.compile import optimised
from ..llvm.machine import OPTIMISATION_LEVEL
from .emit import TRIPLE

CODEGEN_VERSION = 2
"""It grows whenever the emitter or the passes of LLVM change what a kernel compiles to."""
ARCHITECTURES = ("gfx942", "gfx950")
"""CDNA3 and CDNA4. The second one has all instructions of the first that kernels use."""
_WORD_BYTES = 4


def toolchain(target: Target) -> Toolchain:
    """Return the versions and flags of ``compile_source``. Raises UnsupportedTarget for an architecture that is not in
    ``ARCHITECTURES``."""
    _check(target)
    return Toolchain(
        {
            "tilewright": __version__,
            "amdgpu codegen": str(CODEGEN_VERSION),
            "llvmlite": llvmlite.__version__,
            "llvm": ".".join(map(str, llvm.llvm_version_info)),
            "opt": str(OPTIMISATION_LEVEL),
        }
    )


def compile_source(source: Source, target: Target) -> CompiledKernel:
    """Compile ``source`` to a relocatable object. Equal text gives equal bytes. Raises CompileError with LLVM's
    message."""
    machine = _machine(target)
    module = optimised((source.text,), machine)
    taken = resources(str(machine.emit_assembly(module.clone())))
    code = bytes(machine.emit_object(module))
    return CompiledKernel("elf", code, source.entry, source.parameters, toolchain(target), source.launches, taken)


def assembly(source: Source, target: Target) -> str:
    """Return the machine instructions that ``compile_source`` encodes, as text that ends in what the kernels take."""
    machine = _machine(target)
    return str(machine.emit_assembly(optimised((source.text,), machine)))


def resources(text: str) -> Mapping[str, Resources]:
    """Return kernel -> what it takes, from the metadata at the end of an assembly."""
    found = {}
    for kernel in text.partition("amdhsa.kernels:")[2].split("  - .agpr_count:")[1:]:

        def number(name: str, of: str = kernel) -> int:
            return int(re.findall(rf"\.{name}:\s+(\d+)", of)[0])

        spilled = number("vgpr_spill_count") + number("sgpr_spill_count")
        (name,) = re.findall(r"^    \.name:\s+(\S+)", kernel, re.MULTILINE)
        stack, static = number("private_segment_fixed_size"), number("group_segment_fixed_size")
        found[name] = Resources(number("vgpr_count"), _WORD_BYTES * spilled, stack, static)
    return found


def _machine(target: Target) -> llvm.TargetMachine:
    """Make a target machine. Threads must not share LLVM's."""
    _check(target)
    return llvm.Target.from_triple(TRIPLE).create_target_machine(cpu=target.arch, opt=OPTIMISATION_LEVEL, reloc="pic")


def _check(target: Target) -> None:
    if target.arch not in ARCHITECTURES:
        raise UnsupportedTarget(
            f"amdgpu has no architecture {target.arch!r} here; known: {', '.join(ARCHITECTURES)}", field="arch"
        )
