"""The children of the local executor die with it, however it dies."""

import subprocess
import sys
import textwrap
from pathlib import Path

import psutil
import pytest

from tilewright.core.errors import InvalidParameter
from tilewright.runtime.devices import host_target
from tilewright.workers.executors import open_executor

SCRIPT = textwrap.dedent(
    """
    import sys, threading
    from dataclasses import replace
    from tilewright.runtime.devices import host_target
    from tilewright.tests.workers.faulty_kernels import add_one, schedule
    from tilewright.workers.local import LocalExecutor
    from tilewright.workers.settings import ExecutorSettings

    executor = LocalExecutor(
        host_target(),
        settings=ExecutorSettings(builder="tilewright.tests.workers.faulty_kernels:build"),
    )
    next(executor.measure(add_one(), [schedule("good")]))
    if sys.argv[1] == "idle":
        print("ready", flush=True)
        sys.stdin.read()
    elif sys.argv[1] == "ends":
        print("ready", flush=True)
    else:
        timer = threading.Timer(0.3, print, ["ready"], {"flush": True})
        timer.start()
        next(executor.measure(add_one(), [schedule(sys.argv[1])]))
    """
)


def start(state: str) -> tuple[subprocess.Popen[str], list[psutil.Process]]:
    """A program with a local executor in ``state``, and the executor's children."""
    program = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, state], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert program.stdout is not None and program.stdout.readline() == "ready\n"
    return program, psutil.Process(program.pid).children(recursive=True)


@pytest.mark.parametrize("state", ["idle", "loops_for_ever", "builder_hangs"])
def test_nothing_survives_a_killed_parent(state: str) -> None:
    program, children = start(state)
    assert len(children) == host_target().threads + 2  # builders, the runner and the one that computes its data
    program.kill()
    program.communicate()
    _, alive = psutil.wait_procs(children, timeout=20)
    assert not alive


def test_a_program_that_forgets_to_close_ends_and_takes_its_children_along() -> None:
    program, children = start("ends")
    assert program.wait(timeout=60) == 0
    program.communicate()
    _, alive = psutil.wait_procs(children, timeout=20)
    assert not alive


def test_children_are_session_leaders_without_core_files_and_first_to_go_when_memory_is_short() -> None:
    program, children = start("idle")
    for child in children:
        limits = (Path("/proc") / str(child.pid) / "limits").read_text()
        assert "Max core file size        0 " in limits
        assert (Path("/proc") / str(child.pid) / "oom_score_adj").read_text().strip() == "500"
        assert (Path("/proc") / str(child.pid) / "stat").read_text().rpartition(")")[2].split()[3] == str(child.pid)
    program.kill()
    program.communicate()


def test_an_executor_that_is_not_installed_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "tilewright.workers.ray", raising=False)
    with pytest.raises(InvalidParameter, match=r"pip install 'tilewright\[ray\]'") as caught:
        open_executor("ray", host_target())
    assert caught.value.field == "executor"
