"""The garbage collector while modules are loaded: it finds nothing, and takes a sixth of the time."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_resting() -> Iterator[None]:
    """Switch the collector off in the block, if it was on."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@contextmanager
def program_loading() -> Iterator[None]:
    """``collector_resting`` for a process of our own: the collector never goes through what the block has loaded."""
    with collector_resting():
        yield
        gc.freeze()
