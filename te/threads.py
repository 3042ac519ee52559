"""How many threads work on large arrays. NumPy computes outside of the interpreter's lock."""

from ..core.cgroups import processor_count

MOST_THREADS = 16
"""More threads do not help, since memory is the limit."""


def thread_count(threads: int | None) -> int:
    """``threads``; of None, as many as this process may use processors, and at most ``MOST_THREADS``. Ask for it where
    there is much to do: the limits of this process are read from files."""
    return min(MOST_THREADS, processor_count()) if threads is None else threads
