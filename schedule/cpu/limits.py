"""What a thread of a processor has: vector registers, scratch memory and lines of a cache."""

from ...core.target import Target

MOST_SCRATCH_BYTES = (1 << 30) - (1 << 20)
"""Local buffers of a kernel for each thread. ``codegen/llvm/frame.py`` refuses more than 1 GiB; the last MiB is left to
small buffers."""

LINE_BYTES = 64
"""How many bytes a cache line has, below which nothing is moved."""

PAGE_BYTES = 4096
"""Rows at multiples of this many bytes fall on the same set of a first-level cache."""
WAYS = 8
"""Lines of one set that a first-level cache holds."""


def vector_registers(target: Target) -> int:
    """Vector registers of the instruction set: 32 with AVX-512, on 64-bit Arm and on RISC-V, else 16."""
    wide = any(f.startswith("avx512") for f in target.features) or target.arch in ("aarch64", "riscv64")
    return 32 if wide else 16
