"""Disassembles cubins by NVIDIA's nvdisasm, where it is installed."""

import shutil
import struct
import subprocess
import tempfile
from importlib.util import find_spec
from pathlib import Path

_TIMEOUT_SECONDS = 60
_EXECUTABLE = 4
"""The flag of a section of an ELF file that has instructions: SHF_EXECINSTR."""


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


def machine_code(cubin: bytes) -> list[tuple[bytes, bytes]]:
    """Return the sections of a cubin that have instructions: the name and the content of each, in order. Cubins with
    the same ones have the same SASS, and a disassembler needs a third of a second to begin."""
    table, *_, entry, count, names = struct.unpack_from("<QIHHHHHH", cubin, 0x28)  # from e_shoff to e_shstrndx
    headers = [struct.unpack_from("<IIQQQQ", cubin, table + n * entry) for n in range(count)]
    texts = headers[names][4]
    return [
        (cubin[texts + name : cubin.index(b"\0", texts + name)], cubin[start : start + size])
        for name, _, flags, _, start, size in headers
        if flags & _EXECUTABLE
    ]


def sass_of(cubin: bytes, *, ptx_lines: bool = False) -> str | None:
    """Return the SASS of a cubin; None where no disassembler is installed, or it does not know the architecture.
    ``ptx_lines``: say ahead of instructions which line of the PTX they come from, where the cubin has line
    information. The analysis of data flow (``-ndf`` leaves it out) takes a quarter of the time, and has something to
    say of jumps through the branch stack alone."""
    program = disassembler()
    if program is None:
        return None
    with tempfile.TemporaryDirectory(prefix="tilewright-") as folder:
        file = Path(folder) / "kernel.cubin"
        file.write_bytes(cubin)
        try:
            command = [str(program), "-c", "-ndf", *(["-gp"] if ptx_lines else []), str(file)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=True)
        except (OSError, subprocess.SubprocessError):
            return None
    return done.stdout
