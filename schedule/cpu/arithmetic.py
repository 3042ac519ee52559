"""Formulas over columns that several kernel classes need."""

import numpy as np

from ..space.columns import Floats, Ints


def ceil_div(a: int | Ints, b: int | Ints) -> Ints:
    """Return the quotient rounded up, int64[n]."""
    return np.asarray(-(-np.asarray(a, dtype=np.int64) // np.asarray(b, dtype=np.int64)))


def idle_share(tasks: Ints, threads: int) -> Floats:
    """Return the share of the threads' time in which they have no task, float64[n]: the last round may not occupy them
    all."""
    return 1 - tasks / (threads * ceil_div(tasks, threads))


NORM = 4
"""The order of the norm of parts that overlap."""


def overlapped(*seconds: Floats | float) -> Floats:
    """Return what parts that overlap take together: little more than the slowest. A maximum would rank settings alike
    that differ in the other parts. An output that is slow to write would hide that one of two threads has no task."""
    return np.asarray(sum(s**NORM for s in seconds), np.float64) ** (1 / NORM)
