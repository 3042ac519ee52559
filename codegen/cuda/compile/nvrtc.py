"""NVRTC, the CUDA compiler as a library: needs neither a GPU nor a driver. The only file that speaks to it."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from ....core.errors import CompileError, UnsupportedTarget


@dataclass(frozen=True, slots=True)
class Compiled:
    """What one compilation gave. ``log``: all that the compiler and the assembler said."""

    cubin: bytes
    ptx: str
    log: str


@functools.cache
def _library() -> Any:
    """The bindings; imported when first asked for, since only the extra ``cuda`` brings them."""
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
    """``major.minor``. Raises UnsupportedTarget where NVRTC is not installed."""
    major, minor = _ask("nvrtcVersion")
    return f"{major}.{minor}"


def architectures() -> tuple[int, ...]:
    """The compute capabilities this NVRTC knows, as 10 * major + minor. Raises UnsupportedTarget without NVRTC."""
    (known,) = _ask("nvrtcGetSupportedArchs")
    return tuple(int(n) for n in known)


def compile_program(text: str, name: str, options: Sequence[str]) -> Compiled:
    """``text`` as machine code and PTX. Raises CompileError with the compiler's log."""
    nvrtc = _library()
    (program,) = _ask("nvrtcCreateProgram", text.encode(), name.encode(), 0, [], [])
    try:
        given = [option.encode() for option in options]
        (status,) = nvrtc.nvrtcCompileProgram(program, len(given), given)
        log = _text(program, "ProgramLog").strip()
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise CompileError(f"NVRTC refuses the kernel ({status.name}): {log}")
        return Compiled(_bytes(program, "CUBIN"), _text(program, "PTX"), log)
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _ask(function: str, *arguments: object) -> tuple[Any, ...]:
    """What a function of NVRTC gives besides its status."""
    library = _library()
    status, *rest = getattr(library, function)(*arguments)
    if status != library.nvrtcResult.NVRTC_SUCCESS:
        raise CompileError(f"{function} of NVRTC failed: {status.name}")
    return tuple(rest)


def _bytes(program: Any, what: str) -> bytes:
    (size,) = _ask(f"nvrtcGet{what}Size", program)
    buffer = bytearray(size)
    _ask(f"nvrtcGet{what}", program, buffer)
    return bytes(buffer)


def _text(program: Any, what: str) -> str:
    return _bytes(program, what).rstrip(b"\0").decode(errors="replace")
