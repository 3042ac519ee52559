"""How many threads work on large arrays. NumPy computes outside of the interpreter's lock."""

from ..core.cgroups import processor_count

MOST_THREADS = 16
"""More threads do not help, since memory is the limit."""


def available_threads() -> int:
    """How many processors this process may use."""
    return processor_count()
