"""The machine instructions of a kernel, counted by class. The counts show whether vectors and fused operations are
there."""

import re
from collections import Counter
from collections.abc import Mapping

from ...core.errors import UnsupportedTarget
from .dialects.aarch64 import AARCH64
from .dialects.amdgcn import AMDGCN
from .dialects.dialect import AsmDialect
from .dialects.riscv import RISCV
from .dialects.x86 import X86

CLASSES = (
    "vector_fma",
    "vector_arithmetic",
    "vector_integer",
    "vector_load",
    "vector_store",
    "broadcast",
    "gather",
    "scatter",
    "masked",
    "shuffle",
    "convert",
    "matrix",
    "scalar_fma",
    "scalar_fp",
    "scalar_load_store",
    "integer",
    "branch",
    "call",
    "other",
)
"""Every class, in the order in which it is shown. ``masked`` counts vector instructions under a mask a second time,
so it does not belong to the sum."""

DIALECTS: Mapping[str, AsmDialect] = {
    "x86-64": X86,
    "aarch64": AARCH64,
    "riscv64": RISCV,
    "gfx942": AMDGCN,
    "gfx950": AMDGCN,
}
"""This maps each architecture to its assembly language."""

_INSTRUCTION = re.compile(r"^\s+([a-z][a-z0-9._]*)\b\s*(.*)")


def count_instructions(assembly: str, arch: str = "x86-64") -> dict[str, int]:
    """Count the instructions of ``assembly``, as LLVM prints it for ``arch``, by class; every class of ``CLASSES``
    is a key. Raises UnsupportedTarget for an architecture without a dialect."""
    dialect = _dialect(arch)
    counts: Counter[str] = Counter()
    for line in assembly.splitlines():
        match = _INSTRUCTION.match(line.split(dialect.comment)[0])
        if match is None or match.group(1).startswith("."):
            continue
        operands = re.sub(r"\s+", " ", match.group(2)).strip()
        counts[dialect.classify(match.group(1), operands)] += 1
        if dialect.mask.search(operands):
            counts["masked"] += 1
    return {name: counts.get(name, 0) for name in CLASSES}


def classify(mnemonic: str, operands: str, arch: str = "x86-64") -> str:
    """Return the class of one instruction. Raises UnsupportedTarget for an architecture without a dialect."""
    return _dialect(arch).classify(mnemonic, operands)


def total(counts: Mapping[str, int]) -> int:
    """Return how many instructions there are in all."""
    return sum(number for name, number in counts.items() if name != "masked")


def _dialect(arch: str) -> AsmDialect:
    if arch not in DIALECTS:
        raise UnsupportedTarget(f"no assembly of {arch!r} is read; known: {', '.join(DIALECTS)}", field="arch")
    return DIALECTS[arch]
