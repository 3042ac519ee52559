"""The derived columns that every sketch for GPUs has."""

import numpy as np
from numpy.typing import NDArray

from ..space.columns import Ints
from ..space.knob import Quantity
from .occupancy import GpuLimits

GPU_QUANTITIES: tuple[Quantity, ...] = (
    Quantity("blocks", "blocks", "how many blocks the largest launch has"),
    Quantity("threads", "threads", "how many threads a block has"),
    Quantity("waves", "waves", "how many times the device fills up until all blocks have run"),
    Quantity("registers_estimate", "registers", "how many registers a thread takes, estimated from what it holds"),
    Quantity("shared_bytes", "B", "how much shared memory a block takes"),
    Quantity("bytes_in_flight", "B", "how many bytes a multiprocessor loads before it uses the first one"),
)
"""They describe the largest launch of a kernel."""

WINDOW_QUANTITIES: tuple[Quantity, ...] = (
    Quantity("outputs", "elements", "outputs that a thread computes for each of its channels"),
    Quantity("loads_per_output", "loads", "input elements loaded for each output element"),
)
"""They describe kernels of windows."""


def gpu_columns(
    limits: GpuLimits, multiprocessors: int, *, blocks: Ints, threads: Ints, registers: Ints, shared: Ints, wanted: Ints
) -> dict[str, NDArray[np.float64]]:
    """Return the columns of ``GPU_QUANTITIES``. ``wanted``: how many bytes one thread loads before it uses the first
    one."""
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
