"""How many threads work on large arrays. NumPy computes outside of the interpreter's lock."""

import os

MOST_THREADS = 16
"""More threads do not help, since memory is the limit."""


def available_threads() -> int:
    """How many processors this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
