"""The limits of each GPU architecture, and the occupancy that follows: how many blocks run on a multiprocessor."""

from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np

from ...core.errors import UnsupportedTarget
from ...core.target import Target
from ...ir.expr import WARP_LANES
from ...ir.gpu.tcgen05 import TENSOR_COLUMNS
from ..space.columns import Floats, Ints, Size

Whole: TypeAlias = int | Ints
"""This is one whole number, or a column of them."""


PARTS = 4
"""Into how many parts a multiprocessor is divided. Each has its share of the registers, and warps that stay there."""


class LaunchSizes(Protocol):
    """Columns of a space: how many blocks the largest launch has, how many threads and how much shared memory a block,
    and how many registers a thread."""

    @property
    def blocks(self) -> Size: ...
    @property
    def threads(self) -> Size: ...
    @property
    def registers(self) -> Size: ...
    @property
    def shared_bytes(self) -> Size: ...


@dataclass(frozen=True, slots=True)
class GpuLimits:
    """What one multiprocessor has room for.

    The sources are the CUDA C++ Programming Guide, "Compute Capabilities", and the AMD CDNA 3 ISA, where a
    multiprocessor is called a compute unit, and a warp a wave. ``clusters``: whether there are thread block clusters.
    ``lanes``: how many lanes a warp has. ``async_copies``: whether copies to shared memory are asynchronous.
    ``reserved_shared_bytes``: what the system takes of shared memory for each block. ``kind``: the kind of target.
    ``tensor_columns``: how many columns of tensor memory there are.
    """

    shared_bytes_per_block: int
    shared_bytes_per_multiprocessor: int
    registers_per_multiprocessor: int
    threads_per_multiprocessor: int
    blocks_per_multiprocessor: int
    clusters: bool
    registers_per_thread: int = 255
    threads_per_block: int = 1024
    lanes: int = WARP_LANES
    async_copies: bool = True
    reserved_shared_bytes: int = 1024
    kind: str = "cuda"
    tensor_columns: int = 0

    def resident_blocks(self, threads: Whole, registers: Whole, shared_bytes: Whole) -> Ints:
        """Return how many blocks run on a multiprocessor at once; 0 where not even one fits. A block has ``threads``
        threads, each with ``registers`` registers, and ``shared_bytes`` of shared memory.

        Warps get registers in units of 8 for each lane, from one of the four parts of a multiprocessor. Blocks get
        shared memory in units of 128 bytes, and the system takes some of it (CUDA Occupancy Calculator).
        """
        warps = _up(np.asarray(threads, np.int64), self.lanes) // self.lanes
        given = np.maximum(np.asarray(registers, np.int64), 1)
        of_a_warp = _up(given, 8) * self.lanes
        by_registers = self.registers_per_multiprocessor // (PARTS * of_a_warp) * PARTS // warps
        shared = np.asarray(shared_bytes, np.int64)
        held = np.maximum(_up(shared, 128) + self.reserved_shared_bytes, 1)
        blocks = np.minimum(self.threads_per_multiprocessor // (warps * self.lanes), self.blocks_per_multiprocessor)
        blocks = np.minimum(blocks, by_registers)
        blocks = np.minimum(blocks, self.shared_bytes_per_multiprocessor // held)
        fits = (
            (given <= self.registers_per_thread)
            & (shared <= self.shared_bytes_per_block)
            & (warps * self.lanes <= self.threads_per_block)
        )
        return np.where(fits, blocks, 0)

    def resident(self, sizes: LaunchSizes) -> Ints:
        """Return ``resident_blocks`` of the blocks of a launch."""
        return self.resident_blocks(sizes.threads, sizes.registers, sizes.shared_bytes)

    def shared_bytes_for(self, ctas_per_sm: Whole) -> Ints:
        """Return how many bytes of shared memory each of ``ctas_per_sm`` blocks may have that run on a
        multiprocessor."""
        room = np.asarray(self.shared_bytes_per_multiprocessor // ctas_per_sm, np.int64) - self.reserved_shared_bytes
        return np.minimum(room, self.shared_bytes_per_block)

    def overlapping_ctas(self, resident: Whole, multiprocessors: int) -> Ints:
        """Return how many blocks of a launch may start while the launch before still ends, ``resident`` of them on each
        multiprocessor. It is 0 where launches do not overlap; they do where there are clusters."""
        return np.asarray(resident, np.int64) * (multiprocessors if self.clusters else 0)

    def waves(self, blocks: Whole, resident: Whole, multiprocessors: int) -> Floats:
        """Return how many waves it takes until all ``blocks`` have run, ``resident`` at once on each multiprocessor."""
        at_once = np.maximum(np.asarray(resident, np.float64) * multiprocessors, 1)
        return np.asarray(blocks, np.float64) / at_once


def _up(value: Ints, unit: int) -> Ints:
    return -(-value // unit) * unit


MOST_BLOCKS = (1 << 31) - 1
"""How many blocks a launch may have along x, on all architectures."""

_KIB = 1024

LIMITS: dict[str, GpuLimits] = {
    "sm_80": GpuLimits(163 * _KIB, 164 * _KIB, 65536, 2048, 32, clusters=False),
    "sm_89": GpuLimits(99 * _KIB, 100 * _KIB, 65536, 1536, 24, clusters=False),
    "sm_90a": GpuLimits(227 * _KIB, 228 * _KIB, 65536, 2048, 32, clusters=True),
    "sm_100a": GpuLimits(227 * _KIB, 228 * _KIB, 65536, 2048, 32, clusters=True, tensor_columns=TENSOR_COLUMNS),
    **{
        arch: GpuLimits(
            *(shared, shared, 131072, 2048, 16),
            clusters=False,
            registers_per_thread=512,
            lanes=2 * WARP_LANES,
            async_copies=False,
            reserved_shared_bytes=0,
            kind="amdgpu",
        )
        for arch, shared in (("gfx942", 64 * _KIB), ("gfx950", 160 * _KIB))
    },
}
"""The limits of each architecture, by its name."""


def limits_of(target: Target) -> GpuLimits:
    """Return the limits of a target's architecture. Raises UnsupportedTarget, which names the known ones."""
    found = LIMITS.get(target.arch)
    if found is None or found.kind != target.kind:
        known = ", ".join(f"{limits.kind} {arch}" for arch, limits in LIMITS.items())
        raise UnsupportedTarget(f"no limits are known of {target}; known: {known}", field="target")
    return found
