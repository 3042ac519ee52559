"""Measuring on an NVIDIA device: each fault costs its candidate and nothing else, and programs take turns."""

import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tilewright.codegen.backend import CompiledKernel
from tilewright.core.errors import OutOfMemory, UnsupportedTarget
from tilewright.core.target import Profile, Target
from tilewright.core.trial import Failed, Timed
from tilewright.runtime.devices import host_target
from tilewright.te.build import compute, placeholder, workload
from tilewright.tests.workers.faulty_cuda import BODIES, HANGS, ILLEGAL, SIZE, VERDICTS, add_one, build, schedule
from tilewright.workers.executor import Executor
from tilewright.workers.executors import open_executor
from tilewright.workers.settings import Deadlines, ExecutorSettings, settings_for

DEADLINES = Deadlines(load=10.0, check=2.0, time=2.0)
SETTINGS = ExecutorSettings(
    "tilewright.tests.workers.faulty_cuda:build", DEADLINES, settings_for("cuda", DEADLINES).timing, builders=4
)


@pytest.fixture(scope="module")
def executor() -> Iterator[Executor]:
    with open_executor("local", host_target("cuda"), profile=Profile("cold"), settings=SETTINGS) as opened:
        yield opened


def outcome(executor: Executor, fault: str, number: int = 0) -> Timed | Failed:
    ((_, trial),) = executor.measure(add_one(), [schedule(fault, number)])
    return trial.outcome


def test_every_kernel_but_the_good_ones_has_a_verdict() -> None:
    assert set(BODIES) == set(VERDICTS) | {"good", "slow"} and set(ILLEGAL) | set(HANGS) < set(VERDICTS)


@pytest.mark.parametrize("fault", BODIES)
def test_the_faulty_kernels_compile(fault: str) -> None:
    binary = build(add_one(), Target("cuda", "sm_90a", (), 132, 16), schedule(fault))
    assert isinstance(binary, CompiledKernel) and binary.code.startswith(b"\x7fELF")


def test_a_device_that_is_not_there_is_one_clear_error() -> None:
    with pytest.raises(UnsupportedTarget, match=r"cuda device|NVIDIA"):
        host_target("cuda", 4711)


@pytest.mark.cuda
@pytest.mark.parametrize("fault", VERDICTS)
def test_a_fault_is_reported_as_what_it_is_and_the_next_candidate_times_as_before(
    executor: Executor, fault: str
) -> None:
    before = outcome(executor, "good")
    bad = outcome(executor, fault)
    after = outcome(executor, "good", 1)
    assert isinstance(bad, Failed), bad
    assert (bad.stage, bad.reason) == VERDICTS[fault], bad
    assert isinstance(before, Timed) and isinstance(after, Timed)
    assert after.seconds == pytest.approx(before.seconds, rel=0.05)


@pytest.mark.cuda
def test_a_good_trial_brings_the_devices_evidence(executor: Executor) -> None:
    ((_, trial),) = executor.measure(add_one(), [schedule("good")])
    assert isinstance(trial.outcome, Timed) and trial.outcome.spread < 0.1
    found = trial.evidence.environment
    assert found["argument_sets"] * 2 * SIZE * 4 >= 2 * executor.measured_on.device.hardware["l2_bytes"]
    assert found["registers"] > 0 and found["spill_bytes"] == 0 and found["timed_launches"] > 100
    assert found["sm_clock_mhz"] > 0 and found["power_watts"] > 0 and found["temperature_celsius"] > 0
    assert trial.evidence.anchor_seconds is not None and 1e-7 < trial.evidence.anchor_seconds < 1e-2
    assert trial.evidence.max_error is not None and trial.evidence.outputs_written


@pytest.mark.cuda
def test_finalists_meet_on_the_device(executor: Executor) -> None:
    good, late, slow = executor.remeasure(
        add_one(), [schedule("good"), schedule("faults_after_many_launches"), schedule("slow")]
    )
    assert len(good) >= 5 and late == () and min(slow) > 5 * max(good)


@pytest.mark.cuda
def test_a_workload_that_does_not_fit_is_one_clear_error_and_nothing_is_lost(executor: Executor) -> None:
    a = placeholder((1 << 20, 1 << 19), "float32", name="A")
    large = workload(compute((1 << 20, 1 << 19), lambda i, j: a[i, j] + 1, name="C"))
    with pytest.raises(OutOfMemory, match="memory"):
        list(executor.measure(large, [schedule("good")]))
    assert isinstance(outcome(executor, "good"), Timed)


@pytest.mark.cuda
def test_two_programs_take_turns_on_a_device(tmp_path: Path) -> None:
    script = textwrap.dedent(
        """
        from tilewright.core.target import Profile
        from tilewright.runtime.devices import host_target
        from tilewright.tests.workers.faulty_cuda import add_one, schedule
        from tilewright.tests.workers.test_cuda import SETTINGS
        from tilewright.workers.local import LocalExecutor

        with LocalExecutor(host_target("cuda"), profile=Profile("cold"), settings=SETTINGS) as executor:
            schedules = [schedule("good", n) for n in range(12)]
            for _, trial in executor.measure(add_one(), schedules):
                print(trial.outcome.seconds, flush=True)
        """
    )
    programs = [
        subprocess.Popen(
            [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=(tmp_path / f"{n}").open("w"), text=True
        )
        for n in range(2)
    ]
    times = [[float(line) for line in program.communicate(timeout=120)[0].split()] for program in programs]
    assert [len(t) for t in times] == [12, 12]
    both = sorted(times[0] + times[1])
    assert both[-3] < 1.1 * both[3]
    assert "another program is timing on it" in "".join((tmp_path / f"{n}").read_text() for n in range(2))


@pytest.mark.cuda
def test_closing_in_a_hang_leaves_no_process_behind() -> None:
    others = {process.pid for process in psutil.Process().children(recursive=True)}
    executor = open_executor("local", host_target("cuda"), settings=SETTINGS)
    assert isinstance(outcome(executor, "good"), Timed)
    results = executor.measure(add_one(), [schedule("good", 5), schedule("loops_for_ever")])
    next(results)
    family = [process for process in psutil.Process().children(recursive=True) if process.pid not in others]
    assert len(family) >= 3
    executor.close()
    _, alive = psutil.wait_procs(family, timeout=20)
    assert not alive
