"""Fences between the writes of threads and the asynchronous proxy: TMA and ``wgmma`` (``fence.proxy.async``, sm_90)."""

from dataclasses import dataclass

from ..stmt import Operation


@dataclass(frozen=True, slots=True)
class AsyncProxyFence(Operation):
    """What this thread wrote to shared memory is seen by every WarpgroupMma, TmaStore and TmaLoad that is ordered after
    this, by a barrier for example."""
