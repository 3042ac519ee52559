"""Tests marked ``cuda`` need an NVIDIA device; they are skipped, with the reason, where there is none."""

import gc
import os
from functools import cache
from pathlib import Path

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


LONGEST = """
contracts/test_executors service/test_ray_cluster service/test_fleet_faults contracts/test_sketches api/test_every_page
api/test_fuzz service/test_task_workers service/test_jobs cli/test_running_service service/test_kill
workers/test_ray_cluster db/test_queue db/test_leases workers/test_heartbeat service/test_pauses workers/test_ray
db/test_old_database cli/test_cli api/test_live db/test_json_lines db/test_attempts graph/test_partition test_vocabulary
workers/test_planted cli/test_fleet contracts/test_strategies db/test_claims_at_once db/test_sharing test_site
contracts/test_operators api/test_dashboard api/test_malformed api/test_server service/test_log_ids
search/test_recording service/test_further_units db/test_model_jobs service/test_export workers/test_lease_guard
contracts/test_stores db/test_partitions workers/test_local ir/test_simplify service/test_list_costs
service/test_losses workers/test_compilation_pool contracts/test_reducers contracts/test_backends
""".split()
"""The files that take over five seconds, the longest first (``--durations=0`` says what takes long)."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that take longest. With ``--dist loadfile --no-loadscope-reorder`` workers take file after
    file in this order, so that no long one is left alone in the end while the other processors idle."""
    folder = Path(__file__).parent
    places = {folder / f"{name}.py": place for place, name in enumerate(LONGEST)}
    if missing := [str(path) for path in places if not path.exists()]:
        raise pytest.UsageError(f"LONGEST in tests/conftest.py names files that are not there: {', '.join(missing)}")
    items.sort(key=lambda item: places.get(item.path, len(places)))


COLLECT_AFTER = 20_000
"""After so many new objects, not Python's 700, the garbage collector looks through the youngest ones: expressions and
kernels hold no cycles, and a twentieth of the tests' time went to looking for some."""


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
