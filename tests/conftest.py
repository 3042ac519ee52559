"""Tests marked ``cuda`` need an NVIDIA device; they are skipped, with the reason, where there is none."""

import gc
import os
from functools import cache
from itertools import islice

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
    wait for each other in busy loops, which takes hundreds of times as long as the small products of the tests."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    threadpool_limits(int(os.environ["OPENBLAS_NUM_THREADS"]), user_api="blas")  # NumPy may be loaded already


WAITING = ("tests/service", "tests/cli", "tests/api", "tests/workers", "tests/contracts/test_executors.py")
"""These tests wait for servers and children, some of them for a minute."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Deal out the files of tests that wait to the processes of a run, each of which begins with its own. Processors
    then work on other tests meanwhile, and nothing long is left in the end. xdist gives each process as many tests,
    in this order, and lets one that has ended take over what others have not begun."""
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    files: dict[str, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.nodeid.partition("::")[0], []).append(item)
    waiting = [file for name, file in files.items() if name.startswith(WAITING)]
    others = iter([item for name, file in files.items() if not name.startswith(WAITING) for item in file])
    shares = [[item for file in waiting[n::workers] for item in file] for n in range(workers)]
    for share in shares:
        share += islice(others, max(0, len(items) // workers - len(share)))
    items[:] = [*(item for share in shares for item in share), *others]


def pytest_collection_finish() -> None:
    """What was imported and collected stays: the garbage collector need not go through it again and again."""
    gc.freeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("cuda") is not None:
        reason = _missing("cuda")
        if reason is not None:
            pytest.skip(reason)
