"""The derived columns that every sketch for GPUs has."""

import numpy as np

from ...core.target import Target
from ..space.columns import Floats, Ints
from ..space.knob import Quantity
from .occupancy import LaunchSizes, limits_of

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


def gpu_columns(target: Target, s: LaunchSizes, *, wanted: Ints) -> dict[str, Ints | Floats]:
    """Return the columns of ``GPU_QUANTITIES``. ``wanted``: how many bytes one thread loads before it uses the first
    one."""
    limits, multiprocessors = limits_of(target), target.threads
    resident = np.maximum(limits.resident(s), 1)
    return {
        "blocks": s.blocks,
        "threads": s.threads,
        "waves": limits.waves(s.blocks, resident, multiprocessors),
        "registers_estimate": s.registers,
        "shared_bytes": s.shared_bytes,
        "bytes_in_flight": wanted * s.threads * np.minimum(resident, -(-s.blocks // multiprocessors)),
    }
