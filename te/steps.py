"""Steps: some stages of a workload as a workload of their own."""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from ..ir.buffer import Buffer
from ..ir.rewrite import loads_of
from .check import check
from .workload import Stage, Workload

_checked = lru_cache(maxsize=512)(check)
"""The decompositions of a workload have most of their steps in common."""


def step_of(
    whole: Workload, intermediates: Sequence[Buffer], stages: Sequence[Stage], outputs: tuple[str, ...]
) -> Workload:
    """Return some stages as a workload of their own. Raises InvalidWorkload where it has a tensor beyond the limits."""
    read = {load.buffer.name for s in stages for load in loads_of(s.body)} - {s.name for s in stages}
    inputs = tuple(b for b in (*whole.inputs, *intermediates) if b.name in read)
    constants = whole.constants & read
    return _checked(replace(whole, inputs=inputs, stages=tuple(stages), outputs=outputs, constants=constants))


def run_of(whole: Workload, stages: Sequence[Stage], begin: int, end: int) -> Workload:
    """Return the stages from ``begin`` to before ``end`` as a workload of their own. ``stages``: all that compute what
    ``whole`` does. Its outputs are what later ones read, and those of ``whole``. Raises InvalidWorkload as
    ``step_of``."""
    own, later = stages[begin:end], stages[end:]
    read = {load.buffer.name for s in later for load in loads_of(s.body)} | set(whole.outputs)
    return step_of(whole, [s.tensor for s in stages[:begin]], own, tuple(s.name for s in own if s.name in read))
