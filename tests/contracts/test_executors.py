"""What every executor must do: measure good kernels, report each bad one as what it is, go on, leave nothing behind.

The bad kernels are real machine code (see ``tests/workers/faulty_kernels.py``).
"""

import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import psutil
import pytest

from tilewright.core.errors import InvalidParameter, WorkerLost
from tilewright.core.schedule import Schedule
from tilewright.core.streams import stream
from tilewright.core.target import Profile, Target
from tilewright.core.trial import Failed, Reason, Timed, Trial, TrialStage
from tilewright.runtime.devices import host_target
from tilewright.schedule.sketches import sketches_for
from tilewright.te.operators import OPERATORS
from tilewright.tests.workers.any_noise import ANY_NOISE, FEW_ROUNDS
from tilewright.tests.workers.faulty_kernels import BUILDERS, PROLOGUES, SIZE, add_one, schedule
from tilewright.workers.executor import Executor
from tilewright.workers.executors import EXECUTORS, open_executor
from tilewright.workers.joint_executor import JointExecutor
from tilewright.workers.settings import Deadlines, ExecutorSettings

FAULTY = ExecutorSettings(
    builder="tilewright.tests.workers.faulty_kernels:build",
    deadlines=Deadlines(compile=8.0, load=8.0, check=3.0, time=3.0),
    timing=ANY_NOISE,
    final=FEW_ROUNDS,
    batch=4,
)

FAULTS = {
    "loops_for_ever": (TrialStage.CHECK, Reason.TIMEOUT, "check took over 3 s"),
    "spins_for_ever": (TrialStage.CHECK, Reason.TIMEOUT, "check took over 3 s"),
    "hangs_after_many_launches": (TrialStage.TIME, Reason.TIMEOUT, "time took over 3 s"),
    "segfaults": (TrialStage.CHECK, Reason.ILLEGAL_ACCESS, "SIGSEGV"),
    "illegal_instruction": (TrialStage.CHECK, Reason.ILLEGAL_ACCESS, "SIGILL"),
    "divides_by_zero": (TrialStage.CHECK, Reason.ILLEGAL_ACCESS, "SIGFPE"),
    "one_past_the_end": (TrialStage.CHECK, Reason.OUT_OF_BOUNDS, "output C was written past its end"),
    "one_before_the_start": (TrialStage.CHECK, Reason.OUT_OF_BOUNDS, "output C was written before its start"),
    "writes_its_input": (TrialStage.CHECK, Reason.OUT_OF_BOUNDS, "input A was written"),
    "one_unwritten": (TrialStage.CHECK, Reason.UNWRITTEN, f"1 of {SIZE} elements of output C"),
    "wrong": (TrialStage.CHECK, Reason.WRONG_RESULT, "C[0] is"),
    "nan": (TrialStage.CHECK, Reason.WRONG_RESULT, "C[0] is nan"),
    "wrong_after_many_launches": (TrialStage.TIME, Reason.WRONG_RESULT, "right once"),
    "stray_parameter": (TrialStage.CHECK, Reason.LAUNCH_ERROR, "the workload has no such buffer"),
    "builder_hangs": (TrialStage.COMPILE, Reason.TIMEOUT, "compile took over 8 s"),
    "builder_segfaults": (TrialStage.COMPILE, Reason.COMPILE_ERROR, "SIGSEGV"),
    "builder_aborts": (TrialStage.COMPILE, Reason.COMPILE_ERROR, "SIGABRT"),
    "builder_exits": (TrialStage.COMPILE, Reason.COMPILE_ERROR, "status 3"),
    "builder_is_killed": (TrialStage.COMPILE, Reason.WORKER_LOST, "SIGKILL"),
    "builder_exhausts_memory": (TrialStage.COMPILE, Reason.RESOURCES, "memory"),
    "builder_has_a_bug": (TrialStage.COMPILE, Reason.COMPILE_ERROR, "ZeroDivisionError: in a sketch"),
    "schedule_is_illegal": (TrialStage.LOWER, Reason.ILLEGAL_SCHEDULE, "factor: factor 7 of 10"),
    "kernel_is_invalid": (TrialStage.LOWER, Reason.COMPILE_ERROR, "a store to an input"),
    "compiler_refuses": (TrialStage.COMPILE, Reason.COMPILE_ERROR, "no such instruction"),
}

REAL: dict[str, dict[str, object]] = {
    "matmul": {"m": 37, "n": 64, "k": 50},
    "linear": {"rows": 37, "inputs": 150, "outputs": 64, "constant_weights": True},
    "softmax": {"rows": 33, "columns": 65},
    "elementwise": {"shape": [17, 129], "functions": ["relu", "exp"]},
}

JOINT = "joint"
"""An executor over several units, of which there is one."""
NAMES = [pytest.param(name, marks=pytest.mark.ray) if name == "ray" else name for name in (*EXECUTORS, JOINT)]
AnyExecutor = Executor | JointExecutor


def opened(
    name: str,
    target: Target,
    *,
    profile: Profile | None = None,
    seed: int = 0,
    settings: ExecutorSettings | None = None,
) -> AnyExecutor:
    """Open the executor of this name."""
    if name != JOINT:
        return open_executor(name, target, profile=profile, seed=seed, settings=settings)
    first = open_executor("local", target, profile=profile, seed=seed, settings=settings)
    return JointExecutor(first, "the unit", ahead=None if settings is None else settings.batch)


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """One Ray for the whole module: it takes seconds to start."""
    ray = pytest.importorskip("ray")
    assert import_module("tilewright.workers.ray").connect("")
    yield
    ray.shutdown()


@pytest.fixture(params=NAMES, scope="module")
def name(request: pytest.FixtureRequest) -> str:
    if request.param == "ray":
        request.getfixturevalue("cluster")
    return str(request.param)


@pytest.fixture(scope="module")
def executor(name: str) -> Iterator[AnyExecutor]:
    with opened(name, host_target(), seed=7, settings=FAULTY) as executor:
        yield executor


def measured(executor: AnyExecutor, *faults: str, dtype: str = "float32") -> list[Trial]:
    """The trials of these hand-made kernels, in the order given."""
    found = dict(executor.measure(add_one(dtype), [schedule(f) for f in faults]))
    assert sorted(found) == list(range(len(faults)))
    return [found[n] for n in range(len(faults))]


def children_of(marker: Path) -> list[psutil.Process]:
    """Processes anywhere whose module path has ``marker`` in it: the children of executors that were given it."""
    found = []
    for process in psutil.process_iter():
        try:
            if str(marker) in process.environ().get("PYTHONPATH", ""):
                found.append(process)
        except psutil.Error:
            continue
    return found


def marked(marker: Path) -> ExecutorSettings:
    return replace(FAULTY, python_path=(*FAULTY.python_path, str(marker)))


def alone(settings: ExecutorSettings) -> ExecutorSettings:
    """The same with one builder, for executors that measure one candidate: a second would start for nothing."""
    return replace(settings, builders=1)


def test_the_table_of_faults_is_complete() -> None:
    assert set(FAULTS) >= set(PROLOGUES) - {"slow"} | set(BUILDERS)


ON_RAY = ("loops_for_ever", "segfaults", "one_past_the_end", "builder_exits", "schedule_is_illegal", "compiler_refuses")
"""Other executors have the same children as the local one: one fault of each kind shows what they make of it."""


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_reported_as_what_it_is_and_the_next_candidate_measures(
    executor: AnyExecutor, name: str, fault: str
) -> None:
    if name != "local" and fault not in ON_RAY:
        pytest.skip("the local executor shows it")
    stage, reason, detail = FAULTS[fault]
    bad, good = measured(executor, fault, "good")
    assert isinstance(bad.outcome, Failed), bad.outcome
    assert (bad.outcome.stage, bad.outcome.reason) == (stage, reason), bad.outcome
    assert detail in bad.outcome.detail
    assert isinstance(good.outcome, Timed), good.outcome


@pytest.mark.parametrize("dtype", ["float64", "int32", "int8"])
def test_small_elements_hide_no_fault(executor: AnyExecutor, dtype: str) -> None:
    faults = ["good", "one_past_the_end", "one_before_the_start", "one_unwritten", "wrong", "good"]
    first, past, before, unwritten, wrong, last = [t.outcome for t in measured(executor, *faults, dtype=dtype)]
    assert isinstance(first, Timed) and isinstance(last, Timed)
    assert isinstance(past, Failed) and past.reason is Reason.OUT_OF_BOUNDS
    assert isinstance(before, Failed) and before.reason is Reason.OUT_OF_BOUNDS
    assert isinstance(unwritten, Failed) and unwritten.reason is Reason.UNWRITTEN
    assert isinstance(wrong, Failed) and wrong.reason is Reason.WRONG_RESULT


def test_a_good_trial_brings_its_evidence(executor: AnyExecutor) -> None:
    (trial,) = measured(executor, "good")
    assert trial.schedule == schedule("good")
    assert isinstance(trial.outcome, Timed)
    assert len(trial.outcome.samples) >= 3 and all(1e-9 < s < 1e-2 for s in trial.outcome.samples)
    clocks, evidence = trial.clocks, trial.evidence
    assert clocks.search == 0.0 and min(clocks.compile, clocks.check, clocks.time) > 0.0 <= clocks.overhead
    assert evidence.input_seed == 7
    assert evidence.max_error is not None and 0.0 <= evidence.max_error <= 1.0
    assert evidence.guard_bands_intact is True and evidence.outputs_written is True
    assert evidence.absolute_tolerance is not None and evidence.relative_tolerance is not None
    assert evidence.anchor_seconds is not None and 1e-7 < evidence.anchor_seconds < 1.0
    assert evidence.binary_key is not None and len(evidence.binary_key) == 64 and evidence.binary_bytes
    assert set(evidence.environment) == {
        *("load_average_1min", "processors", "waiting_seconds", "stolen_seconds", "preemptions"),
        *("disturbed", "disturbed_samples", "stopped_early", "argument_sets", "timed_launches", "launched_seconds"),
    }


def test_a_hopeless_candidate_is_stopped_early(executor: AnyExecutor) -> None:
    good, slow = [t.outcome for t in measured(executor, "good", "slow")]
    assert isinstance(good, Timed) and isinstance(slow, Timed)
    assert slow.seconds > 10 * good.seconds
    assert len(slow.samples) <= 3  # one, where the machine did not disturb it


def test_finalists_are_timed_again_and_one_that_fails_now_is_left_out(executor: AnyExecutor) -> None:
    work, chosen = add_one(), [schedule(f) for f in ("good", "hangs_after_many_launches", "slow", "segfaults", "good")]
    samples = executor.remeasure(work, chosen)
    good, _, slow, *_ = samples
    assert [bool(s) for s in samples] == [True, False, True, False, True]
    assert len(good) >= 3 and len(slow) >= 3 and min(slow) > 10 * max(good)
    assert [bool(s) for s in executor.remeasure(work, chosen[2:])] == [True, False, True]
    assert isinstance(measured(executor, "good")[0].outcome, Timed)


def test_equal_binaries_are_measured_once(executor: AnyExecutor) -> None:
    first, equal, again = measured(executor, "good", "good_too", "good")
    assert equal.outcome == first.outcome and equal.evidence.environment["equal_binary"] == 1.0
    assert equal.clocks.time == equal.clocks.check == 0 < first.clocks.time
    assert again.clocks.time > 0 and "equal_binary" not in again.evidence.environment  # one that is asked for twice
    samples = executor.remeasure(add_one(), [schedule(f) for f in ("good_too", "slow", "good")])
    assert samples[0] == samples[2] != samples[1]


def test_what_is_prefetched_is_measured_as_ever(executor: AnyExecutor) -> None:
    executor.prefetch(add_one("int32"), [schedule("good"), schedule("builder_segfaults")])
    executor.prefetch(add_one("float64"))
    good, bad = measured(executor, "good", "builder_segfaults", dtype="int32")
    assert isinstance(good.outcome, Timed) and isinstance(bad.outcome, Failed)
    assert isinstance(measured(executor, "good", dtype="float64")[0].outcome, Timed)


def test_schedules_are_drawn_as_they_are_wanted(executor: AnyExecutor) -> None:
    drawn: list[int] = []

    def source() -> Iterator[Schedule]:
        for n in range(3 * FAULTY.batch):
            drawn.append(n)
            yield schedule("good")

    results = executor.measure(add_one(), source())
    next(results)
    assert len(drawn) == FAULTY.batch
    assert len(list(results)) == 3 * FAULTY.batch - 1 and len(drawn) == 3 * FAULTY.batch


def test_results_come_one_by_one_and_an_early_close_abandons_the_rest(executor: AnyExecutor) -> None:
    results = executor.measure(add_one(), [schedule("good"), *[schedule("loops_for_ever")] * 3])
    position, trial = next(results)
    assert position == 0 and isinstance(trial.outcome, Timed)
    results.close()  # type: ignore[attr-defined]
    assert isinstance(measured(executor, "good")[0].outcome, Timed)


def test_where_and_how_is_told(executor: AnyExecutor) -> None:
    on = executor.measured_on
    assert on.device.target == host_target() and on.profile == Profile("warm", 1)
    assert on.device.hardware["threads"] == host_target().threads
    assert {"llvm", "codegen"} <= set(on.toolchain.components)


def test_the_baseline_is_timed_on_the_same_terms(executor: AnyExecutor) -> None:
    small = executor.baseline("matmul", {"m": 32, "n": 32, "k": 32})
    large = executor.baseline("matmul", {"m": 512, "n": 512, "k": 512})
    assert small is not None and large is not None
    assert min(*small.samples, *large.samples) > 0.0


def test_the_ceilings_are_measured(executor: AnyExecutor) -> None:
    peaks = executor.peaks()
    assert {"peak_float32_flops_per_second", "copy_bytes_per_second", "launch_seconds"} <= set(peaks)
    assert min(peaks.values()) > 0.0


def test_an_unknown_operator_has_no_baseline(executor: AnyExecutor) -> None:
    with pytest.raises(InvalidParameter, match="no_such_operator") as unknown:
        executor.baseline("no_such_operator", {})
    assert unknown.value.field == "operator"
    with pytest.raises(InvalidParameter) as missing:
        executor.baseline("matmul", {"m": 8, "n": 8})
    assert missing.value.field == "k"


def test_a_cold_profile_rotates_its_arguments_and_a_warm_one_does_not(executor: AnyExecutor, name: str) -> None:
    (warm,) = measured(executor, "good")
    with opened(name, host_target(), profile=Profile("cold", 1), settings=alone(FAULTY)) as other:
        (cold,) = measured(other, "good")
    assert isinstance(warm.outcome, Timed) and isinstance(cold.outcome, Timed)
    assert warm.evidence.environment["argument_sets"] == 1
    assert cold.evidence.environment["argument_sets"] > 1


def test_children_killed_from_outside_while_idle_cost_nothing(name: str, tmp_path: Path) -> None:
    with opened(name, host_target(), settings=alone(marked(tmp_path))) as executor:
        assert isinstance(measured(executor, "good")[0].outcome, Timed)
        for process in children_of(tmp_path):
            process.send_signal(signal.SIGKILL)
        assert isinstance(measured(executor, "good")[0].outcome, Timed)


def test_closing_leaves_no_process_behind(name: str, tmp_path: Path) -> None:
    executor = opened(name, host_target(), settings=marked(tmp_path))
    with ThreadPoolExecutor(1) as background:
        assert isinstance(measured(executor, "good")[0].outcome, Timed)
        before = children_of(tmp_path)
        assert len(before) >= 2  # the runner and at least the builder that was used
        hanging = background.submit(measured, executor, "loops_for_ever")
        executor.close()
        assert isinstance(hanging.exception(), WorkerLost)
    executor.close()
    _, alive = psutil.wait_procs(before, timeout=20)
    assert not alive and not children_of(tmp_path)
    with pytest.raises(WorkerLost, match="closed"):
        measured(executor, "good")


def test_a_builder_that_does_not_exist_is_told_at_once(name: str) -> None:
    settings = alone(replace(FAULTY, builder="tilewright.no_such_module:build"))
    with opened(name, host_target(), settings=settings) as executor:
        with pytest.raises(WorkerLost, match="no_such_module"):
            measured(executor, "good")


def test_unknown_executors_and_settings_are_refused() -> None:
    with pytest.raises(InvalidParameter, match="allowed: local, ray"):
        open_executor("slurm", host_target())
    with pytest.raises(InvalidParameter, match="module:function"):
        ExecutorSettings(builder="build")
    with pytest.raises(InvalidParameter, match="1 to 10000"):
        ExecutorSettings(batch=0)


def test_schedules_of_the_real_sketches_measure(name: str) -> None:
    """The product's own road, from a schedule to a time, for operators of every shape of loop nest."""
    target, settings = host_target(), ExecutorSettings(timing=ANY_NOISE)
    with opened(name, target, settings=settings) as executor:
        for operator, parameters in REAL.items():
            work = OPERATORS[operator].workload(parameters)
            chosen = []
            for sketch in sketches_for(work, target):
                space = sketch.space(work, target)
                rows = stream(0, operator, sketch.name).choice(len(space), min(3, len(space)), replace=False)
                chosen += [space.schedule(int(row)) for row in rows]
            trials = dict(executor.measure(work, chosen))
            assert chosen and len(trials) == len(chosen)
            for position, trial in trials.items():
                assert trial.schedule == chosen[position]
                assert isinstance(trial.outcome, Timed), (operator, trial.schedule, trial.outcome)
                assert trial.evidence.max_error is not None and trial.evidence.max_error <= 1.0
                assert ("prologue_seconds" in trial.evidence.environment) == bool(work.constants)
            unknown = Schedule.of("no_such_sketch", 1, {})
            ((_, refused),) = executor.measure(work, [unknown])
            assert isinstance(refused.outcome, Failed) and refused.outcome.reason is Reason.ILLEGAL_SCHEDULE
