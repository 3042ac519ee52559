"""Shared libraries are linked by the C compiler of the machine, because llvmlite has no linker."""

import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

from ...core.errors import CompileError, UnsupportedTarget
from ...core.target import Target
from .architectures import architecture_of

_COMPILERS = ("cc", "gcc", "clang")
_MACHINES = {"x86_64": "x86-64", "aarch64": "aarch64", "riscv64": "riscv64"}
"""This maps the operating system's names of architectures to ours."""
_FLAGS = ("-shared", "-Wl,-z,nodelete", "-Wl,-z,noexecstack", "-Wl,-z,defs", "-pthread")
"""``nodelete`` is needed because threads of the pool run the library's code to the end of the process."""
_SECONDS = 60


def shared_library(code: bytes, target: Target) -> bytes:
    """Link the relocatable object ``code`` into a shared library. Raises UnsupportedTarget on a machine without a
    compiler for the target, and CompileError with what a compiler says."""
    compiler = _compiler(target)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "kernel.o").write_bytes(code)
        command = [compiler, *_FLAGS, "-o", "kernel.so", "kernel.o", "-lm"]
        try:
            done = subprocess.run(
                command, cwd=folder, capture_output=True, text=True, timeout=_SECONDS, check=False, errors="replace"
            )
        except subprocess.TimeoutExpired as error:
            raise CompileError(f"{compiler} took over {_SECONDS} s to link a library") from error
        if done.returncode:
            raise CompileError(f"{compiler} cannot link the library: {done.stderr.strip()[-2000:]}")
        return Path(folder, "kernel.so").read_bytes()


def _compiler(target: Target) -> str:
    names = [architecture_of(target).triple.replace("-unknown", "") + "-gcc"]
    if _MACHINES.get(platform.machine()) == target.arch:
        names = [*_COMPILERS, *names]
    for name in names:
        if found := shutil.which(name):
            return found
    raise UnsupportedTarget(
        f"nothing here links a library for {target} (looked for {', '.join(names)}); its object can be exported",
        field="library",
    )
