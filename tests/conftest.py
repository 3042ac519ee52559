"""Tests marked ``cuda`` need an NVIDIA device; they are skipped, with the reason, where there is none."""

import gc
import os
from functools import cache

import pytest
from threadpoolctl import threadpool_limits

from tilewright.core.errors import UnsupportedTarget
from tilewright.runtime.devices import host_target


@cache
def _missing(kind: str) -> str | None:
    """Why this machine has no device of ``kind``; None where it has one."""
    try:
        host_target(kind)
    except UnsupportedTarget as error:
        return str(error)
    return None


def pytest_configure() -> None:
    """One thread for BLAS, here and in all children that do not choose: the threads of several test processes would
    wait for each other in busy loops, which takes hundreds of times as long as the small products of the tests. The
    garbage collector would go through all modules again and again while they are imported: it has nothing to find."""
    gc.disable()
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    threadpool_limits(int(os.environ["OPENBLAS_NUM_THREADS"]), user_api="blas")  # NumPy may be loaded already


WAITING = (
    "tests/contracts/test_executors.py",
    "tests/service/test_ray_cluster.py",
    "tests/service/test_fleet_faults.py",
    "tests/api/test_every_page.py",
    "tests/api/test_fuzz.py",
    "tests/service/test_kill.py",
    "tests/service",
    "tests/workers",
    "tests/cli",
    "tests/api",
)
"""These tests wait for servers and children, those of the first files for half a minute and more."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the longest tests, so that none of them is left alone in the end while the other processors idle: one
    process goes through those that wait, and the others take the last of them once they have done the rest."""

    def place(item: pytest.Item) -> int:
        return next((n for n, path in enumerate(WAITING) if item.nodeid.startswith(path)), len(WAITING))

    items.sort(key=place)


def pytest_collection_finish() -> None:
    """What was imported and collected stays: the garbage collector need not go through it."""
    gc.freeze()
    gc.enable()


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("cuda") is not None:
        reason = _missing("cuda")
        if reason is not None:
            pytest.skip(reason)
