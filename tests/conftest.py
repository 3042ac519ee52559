"""Tests marked ``cuda`` need an NVIDIA device; they are skipped, with the reason, where there is none."""

import gc
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from threadpoolctl import threadpool_limits

from tests.order import long_files_first
from tilewright.core.errors import UnsupportedTarget
from tilewright.runtime.devices import host_target

if TYPE_CHECKING:
    from tilewright.tests.db.postgres import PostgresServer


@pytest.fixture(scope="session")
def postgres() -> Iterator["PostgresServer"]:
    """A server for databases of tests that leave it running."""
    from tilewright.tests.db.postgres import server  # it loads SQLAlchemy, which most tests do without

    with server() as running:
        yield running


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


COLLECT_AFTER = 100_000
"""After so many new objects, not Python's 700, the garbage collector looks through the youngest ones: expressions and
kernels hold no cycles, and a twentieth of the tests' time went to looking for some. After 20,000 it was still 1.6 %."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Where xdist runs the tests, long files come first. All of its processes find the same order."""
    processes = getattr(config, "workerinput", {}).get("workercount", 1)
    if processes > 1:
        tests = Path(__file__).parent
        files = [item.path.relative_to(tests).as_posix() for item in items]
        items[:] = [items[position] for position in long_files_first(files, processes)]


def pytest_collection_finish() -> None:
    """What was imported and collected stays: the garbage collector need not go through it."""
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER, *gc.get_threshold()[1:])
    gc.enable()


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("cuda") is not None:
        reason = _missing("cuda")
        if reason is not None:
            pytest.skip(reason)
