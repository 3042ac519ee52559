"""Compiles CUDA C++ to machine code by NVRTC, by way of the cache and the gates on resources."""

import re

from .... import __version__
from ....core.cache_folder import cache_folder
from ....core.errors import UnsupportedTarget
from ....core.target import Target, Toolchain
from ...backend import CompiledKernel, Source
from . import nvrtc
from .cache import CompileCache, key_of
from .resources import check_launches, check_log, parse_log

CODEGEN_VERSION = 7
"""It grows whenever the emitter or the options change what a kernel compiles to."""

_OPTIONS = ("--std=c++17", "--ptxas-options=-v", "--fmad=true", "--diag-suppress=177")
"""``--restrict`` is not among them: loads through const pointers would pass for loads of constants, which the compiler
may move ahead of ``griddepcontrol.wait``. The emitter writes ``__restrict__`` where a buffer is stored to. That is all
that lets loads pass stores."""
_ARCH = re.compile(r"sm_(\d+)([af]?)$")


def toolchain(target: Target) -> Toolchain:
    """Return the versions and flags of ``compile_source``. Raises UnsupportedTarget where NVRTC is missing or does not
    know the target's architecture."""
    return Toolchain(
        {
            "tilewright": __version__,
            "codegen": str(CODEGEN_VERSION),
            "nvrtc": nvrtc.version(),
            "flags": " ".join(options(target)),
        }
    )


def options(target: Target) -> tuple[str, ...]:
    """Return the options for NVRTC. Raises UnsupportedTarget for an architecture that it does not know."""
    known = nvrtc.architectures()
    match = _ARCH.match(target.arch)
    if match is None or int(match.group(1)) not in known:
        named = ", ".join(f"sm_{n}" for n in known)
        raise UnsupportedTarget(
            f"NVRTC {nvrtc.version()} does not know {target.arch!r}; it knows {named} (and from sm_90 on, each with a "
            "suffix a)",
            field="target",
        )
    return (f"--gpu-architecture={target.arch}", *_OPTIONS)


def compile_source(source: Source, target: Target) -> CompiledKernel:
    """Compile ``source`` to a cubin. Raises CompileError with the compiler's log, and ResourcesExceeded for a kernel
    that spills or takes more than the hardware has."""
    result = compiled(source, target)
    resources = parse_log(result.log)
    check_log(resources, result.log)
    check_launches(source.launches, resources, target)
    return CompiledKernel(
        "cubin",
        result.cubin,
        source.entry,
        source.parameters,
        toolchain(target),
        source.launches,
        resources,
        dynamic=source.dynamic,
    )


def compiled(source: Source, target: Target, *, line_information: bool = False) -> nvrtc.Compiled:
    """Return machine code, PTX and log of ``source``, from the cache or from NVRTC. ``line_information``: the PTX and
    the cubin say which lines their instructions come from, which only people need. Raises CompileError,
    UnsupportedTarget."""
    given = (*options(target), *(("-lineinfo",) if line_information else ()))
    cache = CompileCache(cache_folder("cuda"))
    key = key_of(source.text, given, nvrtc.version())
    found = cache.get(key)
    if found is None:
        found = nvrtc.compile_program(source.text, f"{source.entry}.cu", given)
        cache.put(key, found)
    return found
