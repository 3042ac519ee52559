"""The native thread pool runs every task exactly once, from any thread, at any load and after a fork; idle threads
sleep."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from ctypes import CFUNCTYPE, POINTER, c_int64, c_void_p, cast
from pathlib import Path

import numpy as np
import pytest

from tilewright.core.errors import InvalidParameter
from tilewright.runtime.thread_pool import MAX_THREADS, native_services, parallel_for_address

BODY = CFUNCTYPE(None, c_void_p, c_int64, c_int64)
PARALLEL_FOR = CFUNCTYPE(None, BODY, c_void_p, c_int64)


def run(threads: int, tasks: int, body: Callable[[int, int, int], None]) -> None:
    PARALLEL_FOR(parallel_for_address(threads))(BODY(body), None, tasks)


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
@pytest.mark.parametrize("tasks", [0, 1, 2, 7, 1000])
def test_every_task_runs_exactly_once(threads: int, tasks: int) -> None:
    counts = np.zeros(tasks + 1, np.int64)
    lock = threading.Lock()

    def body(_: int, begin: int, end: int) -> None:
        assert 0 <= begin < end <= tasks
        with lock:
            counts[begin:end] += 1

    for _ in range(20):
        run(threads, tasks, body)
    assert (counts[:tasks] == 20).all()


def test_the_work_is_spread_over_threads() -> None:
    """Two tasks that wait for each other can only end if two threads run them."""
    barrier = threading.Barrier(2, timeout=60)
    seen: set[int] = set()

    def body(_: int, begin: int, end: int) -> None:
        for _ in range(begin, end):
            barrier.wait()
            seen.add(threading.get_ident())

    run(2, 2, body)
    assert len(seen) == 2


@pytest.mark.parametrize(("threads", "tasks"), [(2, 2), (2, 33), (3, 7)])
def test_each_thread_begins_with_the_same_tasks_in_every_loop(threads: int, tasks: int) -> None:
    """So that it reads what it wrote. Where all threads are there, each begins with its own part of the tasks."""
    first: list[dict[int, int]] = []

    def body(_: int, begin: int, end: int) -> None:
        if threading.get_ident() not in first[-1]:
            first[-1][threading.get_ident()] = begin
            barrier.wait()

    for _ in range(5):
        barrier = threading.Barrier(threads, timeout=60)
        first.append({})
        run(threads, tasks, body)
    assert all(found == first[0] for found in first)
    assert first[0][threading.get_ident()] == 0
    assert sorted(first[0].values()) == [n * tasks // threads for n in range(threads)]


@pytest.mark.parametrize("alone", [False, True])
def test_workers_that_wake_keep_the_processors_that_they_may_run_on(alone: bool) -> None:
    """A worker that wakes on the caller's processor moves to another one. Where there is only one, it stays."""
    allowed = os.sched_getaffinity(0)
    mine = {min(allowed)} if alone else allowed
    done, workers = [0], set[int]()
    barrier = threading.Barrier(2, timeout=60)

    def body(_: int, begin: int, end: int) -> None:
        for _ in range(begin, end):
            barrier.wait()
            done[0] += 1
            workers.add(threading.get_native_id())

    run(2, 2, body)
    (worker,) = workers - {threading.get_native_id()}
    try:
        os.sched_setaffinity(worker, mine)
        os.sched_setaffinity(0, {min(allowed)})
        for _ in range(20):
            while Path(f"/proc/self/task/{worker}/stat").read_text().rpartition(")")[2].split()[0] != "S":
                time.sleep(0.001)
            run(2, 2, body)
        assert done == [42] and os.sched_getaffinity(worker) == mine
    finally:
        os.sched_setaffinity(0, allowed)
        os.sched_setaffinity(worker, allowed)


def test_callers_from_several_threads_take_turns() -> None:
    totals = [0] * 4
    lock = threading.Lock()

    def caller(number: int) -> None:
        def body(_: int, begin: int, end: int) -> None:
            with lock:
                totals[number] += end - begin

        for _ in range(50):
            run(2, 64, body)

    threads = [threading.Thread(target=caller, args=(n,)) for n in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert totals == [50 * 64] * 4


def test_a_loop_inside_a_task_runs_on_its_own_thread() -> None:
    inner_counts = np.zeros(4, np.int64)

    def outer(_: int, begin: int, end: int) -> None:
        for task in range(begin, end):
            here = threading.get_ident()

            def inner(_: int, first: int, last: int, task: int = task, here: int = here) -> None:
                assert threading.get_ident() == here
                inner_counts[task] += last - first

            run(2, 10, inner)

    run(2, 4, outer)
    assert (inner_counts == 10).all()


def test_idle_threads_use_no_processor_time() -> None:
    run(4, 64, lambda *_: None)
    own = time.thread_time()
    before = time.process_time()
    time.sleep(0.5)
    others = (time.process_time() - before) - (time.thread_time() - own)
    assert others < 0.1


def test_a_forked_child_gets_threads_of_its_own() -> None:
    program = (
        "import os\n"
        "from tilewright.tests.runtime.test_thread_pool import test_every_task_runs_exactly_once as check\n"
        "check(3, 1000)\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    check(3, 1000)\n"
        "    os._exit(7)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.returncode) == ("7\n", 0), done.stderr


def test_a_process_ends_while_threads_sleep_or_spin() -> None:
    program = (
        "from tilewright.tests.runtime.test_thread_pool import run\nfor _ in range(100): run(4, 64, lambda *_: None)\n"
    )
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("threads", [0, -1, MAX_THREADS + 1])
def test_the_number_of_threads_is_checked(threads: int) -> None:
    with pytest.raises(InvalidParameter, match="allowed: 1 to"):
        parallel_for_address(threads)


def test_scratch_is_aligned_kept_and_grown() -> None:
    scratch = CFUNCTYPE(c_void_p, c_int64)(native_services().scratch)
    first = scratch(1000)
    assert first is not None and first % 64 == 0
    assert scratch(500) == first
    larger = scratch(1 << 20)
    assert larger is not None and larger % 64 == 0
    block = cast(larger, POINTER(c_int64))
    block[(1 << 17) - 1] = 42
    assert block[(1 << 17) - 1] == 42
    addresses: list[int | None] = []
    other = threading.Thread(target=lambda: addresses.append(scratch(1000)))
    other.start()
    other.join()
    assert addresses[0] not in (None, larger)
