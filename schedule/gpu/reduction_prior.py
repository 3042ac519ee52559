"""What the priors of row-wise and column-wise reductions share: waves, what overlaps, and how long barriers take."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..space.columns import Ints

LOAD_LATENCY_SECONDS = 700e-9
"""Roughly how long a load from memory takes on Hopper."""
WARP_REDUCTION_CYCLES = 150
"""Roughly how long the lanes of a warp take to combine their states: five shuffles, one after another."""
CTA_BARRIER_CYCLES = 150
"""Roughly how long the warps of a CTA take to exchange their states through shared memory, with a barrier."""
CLUSTER_BARRIER_CYCLES = 1000
"""Roughly how long the CTAs of a cluster take for the same."""

WaveSeconds = Callable[[Ints], NDArray[np.float64]]
"""How long a wave of so many CTAs (or clusters) takes, for each setting."""


def seconds_in_waves(work: Ints, at_once: Ints, wave_seconds: WaveSeconds) -> NDArray[np.float64]:
    """How long ``work`` CTAs (or clusters) take, ``at_once`` of them at a time; the last wave has what is left."""
    full_waves, left = np.divmod(work, np.maximum(at_once, 1))
    seconds: NDArray[np.float64] = full_waves * wave_seconds(np.maximum(at_once, 1))
    return seconds + np.where(left > 0, wave_seconds(left), 0.0)


def overlapped_seconds(*seconds: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
    """How long several things take that go on at once: the longest of them, and more where others are nearly as long,
    since these hide one another only in part. The exponent is a guess."""
    together: NDArray[np.float64] = np.sum([each**4 for each in seconds], axis=0) ** 0.25
    return together
