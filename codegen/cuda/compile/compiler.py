"""CUDA C++ to machine code by NVRTC."""

import re

from .... import __version__
from ....core.errors import UnsupportedTarget
from ....core.target import Target, Toolchain
from ...backend import Binary, Source
from . import nvrtc
from .cache import CompileCache, cache_folder, key_of
from .resources import check_launches, check_log, parse_log

CODEGEN_VERSION = 6
"""Grows whenever the emitter or the options change what a kernel compiles to."""

_OPTIONS = ("--std=c++17", "--ptxas-options=-v", "--fmad=true", "--diag-suppress=177")
"""Not ``--restrict``: loads through const pointers would pass for constants, and the compiler could move them ahead of
the wait for earlier launches. What is stored to is said to be ``__restrict__`` where the emitter writes it, which is
all that lets loads pass stores."""
_ARCH = re.compile(r"sm_(\d+)([af]?)$")


def toolchain(target: Target) -> Toolchain:
    """Raises UnsupportedTarget where NVRTC is missing or does not know the target's architecture."""
    return Toolchain(
        {
            "tilewright": __version__,
            "codegen": str(CODEGEN_VERSION),
            "nvrtc": nvrtc.version(),
            "flags": " ".join(options(target)),
        }
    )


def options(target: Target) -> tuple[str, ...]:
    """What NVRTC is given for ``target``. Raises UnsupportedTarget for an architecture it does not know."""
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


def compile_source(source: Source, target: Target) -> Binary:
    """A cubin with what its functions take. Raises CompileError with the compiler's log, and ResourcesExceeded
    for a kernel that spills or takes what the hardware does not have."""
    result = compiled(source, target)
    resources = parse_log(result.log)
    check_log(resources, result.log)
    check_launches(source.launches, resources, target)
    return Binary("cubin", result.cubin, source.entry, source.parameters, toolchain(target), source.launches, resources)


def compiled(source: Source, target: Target) -> nvrtc.Compiled:
    """Machine code, PTX and log of ``source``: cached, or from NVRTC. Raises CompileError, UnsupportedTarget."""
    given = options(target)
    cache = CompileCache(cache_folder())
    key = key_of(source.text, given, nvrtc.version())
    found = cache.get(key)
    if found is None:
        found = nvrtc.compile_program(source.text, f"{source.entry}.cu", given)
        cache.put(key, found)
    return found
