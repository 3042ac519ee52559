"""Tests marked ``cuda`` need an NVIDIA device; they are skipped, with the reason, where there is none."""

import gc
import os
from functools import cache
from itertools import chain, groupby

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


WAITING = ("tests/service", "tests/cli", "tests/api", "tests/workers", "tests/contracts/test_executors.py")
"""These tests wait for servers and children, some of them for a minute."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """One half of xdist's processes begins with the tests that wait, the other with those that compute, so that the
    processors are busy all the time. xdist gives each process an equal part of the list; one that has done its part
    takes tests from the end of another's."""
    processes: int = getattr(config, "workerinput", {}).get("workercount", 1)
    computing = [item for item in items if not item.nodeid.startswith(WAITING)]
    files = groupby((item for item in items if item.nodeid.startswith(WAITING)), key=lambda item: item.path)
    parts: list[list[pytest.Item]] = [[] for _ in range(max(1, processes // 2))]
    for number, (_, found) in enumerate(files):
        parts[number % len(parts)] += found
    for part in parts:
        room = max(0, len(items) // processes - len(part))
        part += computing[:room]
        del computing[:room]
    items[:] = [*chain.from_iterable(parts), *computing]


def pytest_collection_finish() -> None:
    """What was imported and collected stays: the garbage collector need not go through it."""
    gc.freeze()
    gc.enable()


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("cuda") is not None:
        reason = _missing("cuda")
        if reason is not None:
            pytest.skip(reason)
