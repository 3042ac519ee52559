"""What the priors of row-wise and column-wise reductions share: waves, what overlaps, and how long barriers take."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..space.columns import Floats, Ints

LOAD_LATENCY_SECONDS = 700e-9
"""Roughly how long a load from memory takes on Hopper."""
WARP_REDUCTION_CYCLES = 150
"""Roughly how long the lanes of a warp take to combine their states: five shuffles, one after another."""
CTA_BARRIER_CYCLES = 150
"""Roughly how long the warps of a CTA take to exchange their states through shared memory, with a barrier."""
CLUSTER_BARRIER_CYCLES = 1000
"""Roughly how long the CTAs of a cluster take for the same."""
LARGEST_CLUSTER = 16
"""CTAs of a cluster at most, on Hopper and with a launch attribute."""
CLUSTERED_SHARE = 112 / 132
"""Which share of all multiprocessors clusters of 16 CTAs can have: clusters do not cross GPCs, so that 7 run at once on
an H200 (``cuOccupancyMaxActiveClusters``)."""

KEPT_IN_L2_BYTES = 40 << 20
"""Of what one launch has read last, the next one finds so many bytes in L2, which has 60 MB on an H200."""

LINE_BYTES, SECTOR_BYTES = 128, 32
"""A cache line, and the least that memory gives of one."""
PARTIAL_LINE_EXPONENT = 0.37
"""Runs of 64 contiguous bytes cost 1.28 times as much as whole lines, runs of 32 bytes 1.68 times. These are
medians of 273 and 241 pairs of settings of a column sum on an H200 that differ in nothing else."""

WaveSeconds = Callable[[Ints], Floats]
"""How long a wave of so many CTAs (or clusters) takes, for each setting."""


def seconds_in_waves(work: Ints, at_once: Ints, wave_seconds: WaveSeconds) -> Floats:
    """Return how long ``work`` CTAs (or clusters) take, ``at_once`` of them at a time; the last wave has what is
    left."""
    full_waves, left = np.divmod(work, np.maximum(at_once, 1))
    return full_waves * wave_seconds(np.maximum(at_once, 1)) + np.where(left > 0, wave_seconds(left), 0.0)


def bytes_for_run(contiguous_bytes: Ints) -> Floats:
    """Return how many bytes memory could move in the time of a run of contiguous ones: more than the run has, where it
    is shorter than a cache line."""
    moved = np.maximum(contiguous_bytes, SECTOR_BYTES)
    return moved * (LINE_BYTES / np.minimum(moved, LINE_BYTES)) ** PARTIAL_LINE_EXPONENT


def overlapped_seconds(*seconds: NDArray[np.floating[Any]]) -> Floats:
    """Return how long several things take that go on at once: the longest of them, and more where others are nearly as
    long, since these hide one another only in part. The exponent is a guess."""
    found: Floats = np.sum([each**4 for each in seconds], axis=0) ** 0.25
    return found
