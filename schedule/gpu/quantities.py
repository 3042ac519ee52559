"""The derived columns that every sketch for graphics processors has."""

import numpy as np
from numpy.typing import NDArray

from ..space.columns import Ints
from ..space.knob import Quantity
from .occupancy import GpuLimits

GPU_QUANTITIES: tuple[Quantity, ...] = (
    Quantity("blocks", "blocks", "blocks of the largest launch"),
    Quantity("threads", "threads", "threads of a block"),
    Quantity("waves", "waves", "how often the device fills up until all blocks have run"),
    Quantity("registers_estimate", "registers", "registers of a thread, estimated from what it holds"),
    Quantity("shared_bytes", "B", "shared memory of a block"),
    Quantity("bytes_in_flight", "B", "bytes asked for by a multiprocessor before the first one is used"),
)
"""The derived columns that every sketch for graphics processors has."""


def gpu_columns(
    limits: GpuLimits, multiprocessors: int, *, blocks: Ints, threads: Ints, registers: Ints, shared: Ints, wanted: Ints
) -> dict[str, NDArray[np.float64]]:
    """The columns of ``GPU_QUANTITIES``; ``wanted``: bytes that one thread asks for before it uses the first."""
    resident = np.maximum(limits.resident_blocks(threads, registers, shared), 1)
    here = np.minimum(resident, -(-blocks // multiprocessors))
    return {
        "blocks": blocks.astype(np.float64),
        "threads": threads.astype(np.float64),
        "waves": limits.waves(blocks, resident, multiprocessors),
        "registers_estimate": registers.astype(np.float64),
        "shared_bytes": shared.astype(np.float64),
        "bytes_in_flight": (wanted * threads * here).astype(np.float64),
    }
