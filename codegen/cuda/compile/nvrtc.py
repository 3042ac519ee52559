"""Calls NVRTC, the CUDA compiler as a library, which needs neither a GPU nor a driver. No other file calls it."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from ....core.errors import CompileError, UnsupportedTarget


@dataclass(frozen=True, slots=True)
class Compiled:
    """This is the result of one compilation. ``log`` is all that the compiler and the assembler printed."""

    cubin: bytes
    ptx: str
    log: str


@functools.cache
def _library() -> Any:
    """Import the bindings. That is done on the first call, since only the extra ``cuda`` installs them."""
    try:
        library = import_module("cuda.bindings.nvrtc")
        library.nvrtcVersion()
    except (ImportError, RuntimeError) as error:
        raise UnsupportedTarget(
            f"compiling for cuda needs NVRTC, which cannot be loaded here ({error}): pip install 'tilewright[cuda]'",
            field="target",
        ) from error
    return library


def version() -> str:
    """Return ``major.minor``. Raises UnsupportedTarget where NVRTC is not installed."""
    major, minor = _call("nvrtcVersion")
    return f"{major}.{minor}"


def architectures() -> tuple[int, ...]:
    """Return the compute capabilities that this NVRTC knows, as 10 * major + minor. Raises UnsupportedTarget where it
    is not installed."""
    (known,) = _call("nvrtcGetSupportedArchs")
    return tuple(int(n) for n in known)


def compile_program(text: str, name: str, options: Sequence[str]) -> Compiled:
    """Compile ``text`` to machine code and PTX. Raises CompileError with the compiler's log."""
    nvrtc = _library()
    (program,) = _call("nvrtcCreateProgram", text.encode(), name.encode(), 0, [], [])
    try:
        given = [option.encode() for option in options]
        (status,) = nvrtc.nvrtcCompileProgram(program, len(given), given)
        log = _text(program, "ProgramLog").strip()
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise CompileError(f"NVRTC refuses the kernel ({status.name}): {log}")
        return Compiled(_bytes(program, "CUBIN"), _text(program, "PTX"), log)
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _call(function: str, *arguments: object) -> tuple[Any, ...]:
    """Call a function of NVRTC; return what it gives besides its status. Raises CompileError for a failure."""
    library = _library()
    status, *rest = getattr(library, function)(*arguments)
    if status != library.nvrtcResult.NVRTC_SUCCESS:
        raise CompileError(f"{function} of NVRTC failed: {status.name}")
    return tuple(rest)


def _bytes(program: Any, what: str) -> bytes:
    (size,) = _call(f"nvrtcGet{what}Size", program)
    buffer = bytearray(size)
    _call(f"nvrtcGet{what}", program, buffer)
    return bytes(buffer)


def _text(program: Any, what: str) -> str:
    return _bytes(program, what).rstrip(b"\0").decode(errors="replace")
