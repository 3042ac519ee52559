"""Schedules are compiled for people in children: with a deadline, once, and whatever the compiler does."""

import os
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import pytest

from tilewright.core.errors import CompileError, IllegalSchedule, ResourcesExceeded, WorkerLost
from tilewright.workers.compilation_pool import CompilationPool
from tilewright.workers.frames import Frame
from tilewright.workers.pool import WorkerPool
from tilewright.workers.sandbox import NICENESS
from tilewright.workers.settings import Deadlines, ExecutorSettings


def compiler(question: Mapping[str, Any]) -> Frame:
    """What a child answers with here."""
    what = question["ask"]
    if what == "abort":
        os.abort()
    if what == "hang":
        time.sleep(3600)
    if what == "refuse":
        raise IllegalSchedule("tile 7 of 10", field="tile")
    if what == "fail":
        raise ZeroDivisionError("in a pass")
    if what == "exhaust":
        bytearray(1 << 40)
    return Frame({"answer": {"child": os.getpid(), "niceness": os.nice(0), "time": time.monotonic()}}, (b"files",))


@pytest.fixture(scope="module")
def pool() -> Iterator[CompilationPool]:
    made = CompilationPool(ExecutorSettings(deadlines=Deadlines(compile=5.0)), compiler=f"{__name__}:compiler")
    yield made
    made.close()
    with pytest.raises(WorkerLost, match="stopping"):
        made.ask({"ask": "late"})


def test_a_question_is_answered_once_in_a_child(pool: CompilationPool) -> None:
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(pool.ask, [{"ask": "x"}] * 8))
    assert all(answer == answers[0] for answer in answers)
    (answer, blobs) = answers[0]
    assert answer["child"] != os.getpid() and blobs == (b"files",)
    assert answer["niceness"] == min(19, os.nice(0) + NICENESS)  # it gives way to those who ask
    assert pool.ask({"ask": "x"})[0] == answer and pool.ask({"ask": "y"})[0] != answer


@pytest.mark.timeout(60)
def test_an_answer_that_is_there_before_the_asker_has_finished_blocks_nobody(
    pool: CompilationPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit = WorkerPool.submit

    def slow(workers: Any, work: Any) -> Any:
        """Submit, and come back once there is an answer, as on a busy machine."""
        future = submit(workers, work)
        wait([future])
        return future

    monkeypatch.setattr(WorkerPool, "submit", slow)
    assert pool.ask({"ask": "quick"}) == pool.ask({"ask": "quick"})


@pytest.mark.parametrize(
    ("what", "kind", "words"),
    [
        ("abort", CompileError, "killed by SIGABRT in compile"),
        ("hang", CompileError, "compile took over 5 s and was killed"),
        ("refuse", IllegalSchedule, "tile 7 of 10"),
        ("fail", CompileError, "ZeroDivisionError: in a pass"),
        ("exhaust", ResourcesExceeded, "ran out of memory"),
    ],
)
def test_what_goes_wrong_is_told(pool: CompilationPool, what: str, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        pool.ask({"ask": what})
    assert pool.ask({"ask": f"after {what}"})[1] == (b"files",)
