"""Joins the concrete parts: operators, sketches, code generation, devices, executors, search. No other file does."""

import json
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ..codegen.export import DESCRIPTION_FILE
from ..codegen.lowering import sketch_of
from ..core.budget import Budget, StopReason
from ..core.errors import IllegalSchedule, InvalidParameter, UnsupportedTarget
from ..core.fleet import Unit
from ..core.policy import SpacePolicy
from ..core.schedule import Schedule
from ..core.target import DeviceInfo, Target
from ..core.trial import Timed, Trial
from ..cost_model.dataset import Experience
from ..cost_model.model import CostModel
from ..cost_model.models import new_model
from ..db.rows import JobRow
from ..runtime.devices import device_infos
from ..schedule.sketches import ALL_SKETCHES, sketches_for
from ..schedule.space.columns import completed as all_knobs
from ..search.drift import drift_corrected, noise
from ..search.pool import CandidatePool
from ..search.remeasurement import MOST_REPETITIONS, is_disturbed, ranked, rounds_for, worth_remeasuring
from ..search.strategies import STRATEGIES
from ..search.strategy import ExpectsImprovement, SearchProblem, Strategy
from ..search.tuner import BATCH, Finished, tune
from ..search.winners import Winner, winning_candidates
from ..te.operators import OPERATORS
from ..te.operators.operator import Operator
from ..te.workload import Workload
from ..workers.compilation_pool import CompilationPool
from ..workers.executors import EXECUTORS
from ..workers.executors import open_executor as _open_executor
from ..workers.joint_executor import UnitExecutor
from ..workers.reference_data import available_bytes, needed_bytes
from ..workers.settings import Deadlines, ExecutorSettings, settings_for
from .settings import Settings
from .targets import profile_of

if TYPE_CHECKING:
    from ..cost_model.training import TrainedModel

STRATEGY_NAMES: tuple[str, ...] = tuple(STRATEGIES)
EXECUTOR_NAMES: tuple[str, ...] = tuple(EXECUTORS)
CACHES = ("warm", "cold")
"""A profile can ask for these cache states."""


def operators() -> Mapping[str, Operator]:
    """Return the operator library by name."""
    return OPERATORS


def operator_named(name: str, field: str = "operator") -> Operator:
    """Return an operator. Raises InvalidParameter that names the operators there are."""
    found = OPERATORS.get(name)
    if found is None:
        raise InvalidParameter(f"{name[:80]!r} is no operator; allowed: {', '.join(OPERATORS)}", field=field)
    return found


def present_devices() -> tuple[DeviceInfo, ...]:
    """Return the devices attached to this machine."""
    return device_infos()


def open_executor(
    name: str, unit: Unit, cache: str, settings: Settings, *, fence: int, builders: int | None
) -> UnitExecutor:
    """Start an executor for a unit, under the lease with this fence. ``builders`` says how many children build; None:
    what is usual for the device. The caller closes it.

    Raises InvalidParameter (not installed), UnsupportedTarget (no such device), WorkerLost (it does not start).
    """
    target = unit.device.target
    deadlines = Deadlines(compile=settings.compile_seconds, check=settings.check_seconds, time=settings.time_seconds)
    usual = settings_for(target.kind, deadlines)
    return _open_executor(
        name,
        target,
        profile=profile_of(target.kind, cache),
        settings=replace(
            usual,
            builders=builders or usual.builders,
            lock_folder=settings.lock_folder,
            ray_address=settings.ray_address,
            accept_code=settings.accept_code,
        ),
        unit=unit,
        fence=fence,
    )


def open_compilations(settings: Settings) -> CompilationPool:
    """Return the pool of children that compile schedules for people. The caller closes it."""
    return CompilationPool(ExecutorSettings(deadlines=Deadlines(compile=settings.compile_seconds)))


def sketch_versions() -> Mapping[str, int]:
    """Return every sketch with its version."""
    return {name: sketch.version for name, sketch in ALL_SKETCHES.items()}


def pool_of(
    workload: Workload, device: DeviceInfo, seed: int, policy: SpacePolicy, model: CostModel | None = None
) -> CandidatePool:
    """Return every candidate for a task that ``policy`` keeps. The priors are made from what was measured on
    ``device``, and ``model`` corrects them. Raises UnsupportedTarget when no sketch fits."""
    if not sketches_for(workload, device.target):
        raise UnsupportedTarget(f"no sketch can write this workload for {device.target}", field="target")
    return CandidatePool.of(workload, device, seed=seed, policy=policy, model=model)


def tuning(
    pool: CandidatePool,
    strategy: Strategy,
    executor: UnitExecutor,
    budget: Budget,
    *,
    resumed: Sequence[Trial],
    elapsed_seconds: float,
    cancelled: Callable[[], bool],
    first: Sequence[int] = (),
) -> Generator[Finished, None, StopReason]:
    """Return the tuning loop of a task (see ``search.tuner.tune``)."""
    workload = pool.workload
    assert workload is not None
    return tune(
        pool,
        strategy,
        lambda schedules: executor.measure(workload, schedules),
        budget,
        resumed=resumed,
        elapsed_seconds=elapsed_seconds,
        cancelled=cancelled,
        first=first,
    )


def as_of_now(workload: Workload, target: Target, trials: Sequence[Trial]) -> tuple[list[Trial], list[Schedule]]:
    """Return earlier trials with their schedules as the sketches write them now, and those of these schedules that are
    legal. A schedule of a sketch in another version has its knobs in the present one."""
    found, legal = list[Trial](), list[Schedule]()
    for trial in trials:
        sketch = ALL_SKETCHES.get(trial.schedule.sketch)
        schedule = trial.schedule if sketch is None else replace(trial.schedule, version=sketch.version)
        found.append(replace(trial, schedule=schedule))
        if is_legal(workload, target, schedule):
            legal.append(schedule)
    return found, legal


def first_schedules(pool: CandidatePool, strategy: Strategy, budget: Budget, first: Sequence[int]) -> list[Schedule]:
    """Return the schedules that ``tuning`` begins with, for a strategy that knows no trials yet."""
    count = min(BATCH, budget.trials)
    begun = first[:count]
    return [pool.schedule(candidate) for candidate in (*begun, *strategy.ask(count - len(begun), begun))]


def winners_elsewhere(pool: CandidatePool, job: JobRow, position: int) -> list[int]:
    """Return the candidates to measure first: what is best so far for the other tasks of a model's job."""
    if job.model_key is None:
        return []
    winners = [
        Winner(task.best.record.trial.schedule, task.flops, task.minimum_bytes)
        for task in job.tasks
        if task.position != position and task.best is not None
    ]
    this = job.tasks[position]
    return winning_candidates(pool, winners, this.flops, this.minimum_bytes)


def remeasure(workload: Workload, executor: UnitExecutor, trials: Sequence[Trial]) -> dict[int, Timed]:
    """Time the fastest trials of a task again, interleaved; return the outcomes that this changes, by position (see
    ``search.remeasurement``). A repetition that the machine disturbed is made again, and counts only where none was
    quiet."""
    variation = noise(trials)
    positions = worth_remeasuring(list(drift_corrected(trials)), variation)
    if not positions:
        return {}
    left, quiet, disturbed = list(positions), list[_Play](), list[_Play]()
    while left and len(quiet) < rounds_for(variation) and len(quiet) + len(disturbed) < MOST_REPETITIONS:
        found = executor.remeasure(workload, [trials[n].schedule for n in left])
        played = {n: samples for n, samples in zip(left, found, strict=True) if samples}
        (disturbed if is_disturbed(list(played.values())) else quiet).append(played)
        left = [n for n in left if n in played]
    counted = quiet or disturbed
    samples = {n: tuple(s for played in counted for s in played[n]) if n in left else () for n in positions}
    return ranked([trial.outcome for trial in trials], samples)


_Play = dict[int, tuple[float, ...]]
"""The samples of one repetition, by position."""


def expectation(strategy: Strategy) -> dict[str, float]:
    """Return the fact by which a model's job compares what further trials are worth; none where nothing is expected."""
    found = strategy.expected_improvement() if isinstance(strategy, ExpectsImprovement) else None
    return {} if found is None else {"improvement": found}


def strategy_named(name: str, pool: CandidatePool, seed: int, history: Sequence[Experience]) -> Strategy:
    """Return a new strategy for a task."""
    return STRATEGIES[name](SearchProblem(pool, seed, history))


LEARNS: tuple[str, ...] = ("model", "warm")
"""These strategies learn from earlier tasks."""
MODEL = "xgboost"
"""The kind of cost model that is stored."""


def kept_kind(family: str, target: Target) -> str:
    """Return under what kind the model of an operator family and a device class, its architecture, is kept."""
    return f"{MODEL}:{family}:{target.arch}"


def train(experiences: Sequence[Experience], seed: int) -> "TrainedModel | None":
    """Train a model that is kept (see ``cost_model.training``)."""
    from ..cost_model.training import train as _train  # no task worker trains one

    return _train(MODEL, experiences, seed)


def restored_model(kind: str, data: bytes) -> CostModel:
    """Return a stored cost model. Raises InvalidParameter for a kind that is no more, ValueError for bad bytes."""
    model = new_model(kind.partition(":")[0])
    model.restore(data)
    return model


def checking_bytes(workload: Workload) -> tuple[int, int, int | None]:
    """Return three numbers of bytes: what the inputs and the reference of a workload take on the host while they are
    made, what its data take on the device of a candidate, and what the host has (None where that is not known)."""
    inputs = sum(tensor.bytes for tensor in workload.inputs)
    outputs = sum(
        b.elements * (b.dtype.bytes + (8 if b.dtype.is_float else b.dtype.bytes)) for b in workload.output_buffers
    )
    return needed_bytes(workload), 2 * inputs + outputs, available_bytes()


def binary_sha256(files: Mapping[str, bytes]) -> str:
    """Return the hash of the machine code in an export, as records have it in their evidence."""
    return str(json.loads(files[DESCRIPTION_FILE])["binary_sha256"])


def fits(workload: Workload, target: Target, schedule: Schedule) -> bool:
    """Return whether the schedule's sketch, as it is now, can write the workload for the target."""
    try:
        return sketch_of(schedule).matches(workload, target)
    except IllegalSchedule:
        return False


def are_legal(workload: Workload, target: Target, schedules: Sequence[Schedule]) -> list[bool]:
    """Return which schedules, of any sketches, their sketches can write the workload for the target with."""
    legal = [False] * len(schedules)
    for name in {schedule.sketch for schedule in schedules}:
        rows = [n for n, schedule in enumerate(schedules) if schedule.sketch == name]
        try:
            own = sketch_of(schedules[rows[0]]).legal(workload, target, [schedules[n] for n in rows])
        except IllegalSchedule:
            continue
        for row, may in zip(rows, own.tolist(), strict=True):
            legal[row] = may
    return legal


def completed(workload: Workload, target: Target, schedule: Schedule) -> Schedule:
    """Return the schedule with all knobs that its sketch has for the workload, in their order; as it is where the
    sketch does not write the workload."""
    try:
        knobs = sketch_of(schedule).knobs(workload, target)
    except IllegalSchedule:
        return schedule
    return Schedule.of(schedule.sketch, schedule.version, all_knobs(knobs, dict(schedule.knobs)))


def is_legal(workload: Workload, target: Target, schedule: Schedule) -> bool:
    """Return whether the schedule's sketch can write the workload for the target with these knobs."""
    return are_legal(workload, target, [schedule])[0]
