"""Estimates the time of a product with few rows: B streams from memory once, and everything else keeps up or not.

    seconds = launch + exposed work + soft maximum of
        memory      bytes / (memory rate * share of the rate that the bytes in flight sustain)
        L2          bytes that all blocks read / L2 rate
        shared      bytes to and from shared memory of the busiest multiprocessor / its rate
        matrix      cycles of the matrix units of the busiest multiprocessor
        chain       waves * what one block does one after the other: latency, steps of k, exchange

The share follows from Little's law: memory delivers its rate if at least rate * latency bytes are in flight.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...problems.gemm import Gemm
from ...space.columns import Floats, Ints
from ..peaks import GpuPeaks

LATENCY_SECONDS = 700e-9
"""How long a load of memory takes on Hopper, roughly."""
MMA_SHARE = 0.525
"""Which share of the matrix units' rate mma.sync reaches: 2150 of 4096 operations in a cycle, fitted to kernels of
``cuda_gemm_mma`` on an H200."""
EXCHANGE_CYCLES, EXCHANGE_BYTES_PER_CYCLE = 2000, 12
"""How long the exchange of accumulators in a cluster takes: its barriers, and what a block reads from the others. This
was fitted to kernels of ``cuda_gemm_mma`` on an H200."""
NORM = 6
"""The exponent of the soft maximum. Work that overlaps takes little more than the slowest part of it."""

Figures = Ints | NDArray[np.floating[Any]]


@dataclass(frozen=True, slots=True)
class WeightStream:
    """What a launch of ``blocks`` blocks does, ``resident`` of which share a multiprocessor: columns, one row for each
    setting.

    ``in_flight`` are the bytes from memory that a block has asked for at a time, and ``latency`` the seconds that they
    take. ``l2_bytes`` is what all blocks read. ``shared_bytes`` is what one block moves to and from shared memory, and
    ``mma_cycles`` how long it keeps the matrix units busy. ``chain_cycles`` is what one block does one after the other
    besides waiting for its first bytes. ``exposed_cycles`` is what a multiprocessor does while it asks for nothing.
    """

    blocks: Ints
    resident: Ints
    in_flight: Figures
    l2_bytes: Figures
    shared_bytes: Figures
    chain_cycles: Figures
    mma_cycles: Figures | float = 0.0
    exposed_cycles: Figures | float = 0.0
    latency: float = LATENCY_SECONDS


def weight_stream_seconds(p: Gemm, peaks: GpuPeaks, stream: WeightStream) -> Floats:
    """Return the estimated time of each setting in seconds, float64[n]."""
    most_blocks = -(-stream.blocks // peaks.multiprocessors)
    at_once = np.maximum(stream.resident, 1) * peaks.multiprocessors
    waves, clock = -(-stream.blocks // at_once), peaks.clock_hz
    overlapped = soft_maximum(
        _memory_seconds(p, peaks, stream, at_once),
        stream.l2_bytes / (peaks.l2_bytes_per_cycle * peaks.multiprocessors * clock),
        most_blocks * stream.shared_bytes / (peaks.shared_bytes_per_cycle * clock),
        most_blocks * stream.mma_cycles / clock,
        waves * (LATENCY_SECONDS + stream.chain_cycles / clock),
    )
    return peaks.launch_seconds + stream.exposed_cycles / clock + overlapped


def _memory_seconds(p: Gemm, peaks: GpuPeaks, stream: WeightStream, at_once: Ints) -> Floats:
    """Return how long memory takes for all full waves of blocks, and for the last one, which may keep it less busy."""
    tensors = (*p.inputs, *(r.tensor for r in p.results))
    bytes_per_block = sum(t.bytes for t in tensors) / stream.blocks
    needed = peaks.memory_bytes_per_second * stream.latency
    full_waves, last = stream.blocks // at_once, stream.blocks % at_once
    seconds = np.zeros(len(stream.blocks))
    for waves, blocks in ((full_waves, at_once), (np.ones_like(last), last)):
        share = np.minimum(1.0, np.maximum(blocks, 1) * stream.in_flight / needed)
        seconds += waves * blocks * bytes_per_block / (peaks.memory_bytes_per_second * share)
    return seconds


def soft_maximum(*seconds: NDArray[np.floating[Any]]) -> Floats:
    """Return a little more than the largest of times that overlap."""
    return np.asarray(sum(s**NORM for s in seconds), np.float64) ** (1 / NORM)
