"""Disassembles cubins by NVIDIA's nvdisasm, where it is installed."""

import shutil
import subprocess
import tempfile
from importlib.util import find_spec
from pathlib import Path

_TIMEOUT_SECONDS = 60


def disassembler() -> Path | None:
    """Return ``nvdisasm`` on the path, or in the package of this environment that has it; None where there is none."""
    found = shutil.which("nvdisasm")
    if found is not None:
        return Path(found)
    spec = find_spec("nvidia")
    for folder in () if spec is None or spec.submodule_search_locations is None else spec.submodule_search_locations:
        for candidate in sorted(Path(folder).glob("*/bin/nvdisasm"), reverse=True):
            return candidate
    return None


def sass_of(cubin: bytes, *, ptx_lines: bool = False) -> str | None:
    """Return the SASS of a cubin; None where no disassembler is installed, or it does not know the architecture.
    ``ptx_lines``: say ahead of instructions which line of the PTX they come from, where the cubin has line
    information."""
    program = disassembler()
    if program is None:
        return None
    with tempfile.TemporaryDirectory(prefix="tilewright-") as folder:
        file = Path(folder) / "kernel.cubin"
        file.write_bytes(cubin)
        try:
            command = [str(program), "-c", *(["-gp"] if ptx_lines else []), str(file)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=True)
        except (OSError, subprocess.SubprocessError):
            return None
    return done.stdout
