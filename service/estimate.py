"""Estimates what a job costs before it is submitted: trials, seconds and memory."""

from collections.abc import Callable

from ..core.budget import Budget
from ..db.store import RecordStore
from ..db.task import task_of
from ..ir.buffer import Buffer
from ..te.workload import Workload
from . import wiring
from .analysis_views import JobEstimate, TaskEstimate, TensorView
from .views import BestView, JobSpec, TaskSpec
from .waiting import serving, usable, why_no_unit

KnownBest = Callable[[str], BestView | None]
"""Returns the best record of a workload on any device of the same code; None where there is none."""


def estimate(store: RecordStore, spec: JobSpec, target_kind: str, known: KnownBest) -> JobEstimate:
    """Return what a job that was checked would cost on devices of ``target_kind``.

    Seconds are the budget's trials times what a trial took in earlier tasks, and at most the budget's seconds. They
    are None where no task has ended on such a device yet. Raises InvalidWorkload where operations are too many to
    count.
    """
    tasks = tuple(_task(store, spec, n, task, target_kind, known) for n, task in enumerate(spec.tasks))
    units, now = store.fleet.units(), store.fleet.now()
    ready = sum(usable(row, now) for row in serving(spec.target, spec.executor, units))
    seconds = [task.seconds for task in tasks]
    device_seconds = None if None in seconds else sum(s for s in seconds if s is not None)
    warning = why_no_unit(spec.target, spec.executor, units, now) if units else None
    return JobEstimate(
        tasks=tasks,
        trials=sum(task.trials for task in tasks),
        device_seconds=device_seconds,
        wall_seconds=None if device_seconds is None else device_seconds / max(1, min(ready, len(tasks))),
        units=ready,
        waiting=store.fleet.waiting().get((spec.target, spec.executor), 0),
        warnings=tuple(filter(None, (warning, *(_memory_warning(task) for task in tasks)))),
    )


def _task(
    store: RecordStore, spec: JobSpec, position: int, task: TaskSpec, kind: str, known: KnownBest
) -> TaskEstimate:
    new = task_of(task.workload, task.operator, task.parameters, field=f"/tasks/{position}/workload")
    cost = store.analysis.trial_cost(kind, new.workload_key, task.operator)
    host_bytes, device_bytes, available = wiring.checking_bytes(task.workload)
    return TaskEstimate(
        workload_key=new.workload_key,
        operator=task.operator,
        expression=new.expression,
        tensors=_tensors(task.workload),
        flops=new.flops,
        minimum_bytes=new.minimum_bytes,
        trials=spec.budget.trials,
        seconds=None if cost is None else _seconds(spec.budget, cost.seconds),
        least_seconds=None if cost is None else _seconds(spec.budget, cost.least),
        most_seconds=None if cost is None else _seconds(spec.budget, cost.most),
        basis=None if cost is None else cost.basis,
        basis_tasks=0 if cost is None else cost.tasks,
        host_bytes=host_bytes,
        device_bytes=device_bytes,
        available_bytes=available,
        known=known(new.workload_key),
    )


def _seconds(budget: Budget, of_trial: float) -> float:
    return min(budget.trials * of_trial, budget.seconds or float("inf"))


def _memory_warning(task: TaskEstimate) -> str | None:
    if task.available_bytes is None or task.host_bytes <= task.available_bytes:
        return None
    need, have = task.host_bytes / (1 << 30), task.available_bytes / (1 << 30)
    return f"inputs and reference take {need:,.1f} GiB, and the host of this service has {have:,.1f} GiB free"


def _tensors(workload: Workload) -> tuple[TensorView, ...]:
    def view(tensor: Buffer, role: str) -> TensorView:
        return TensorView(tensor.name, role, tensor.dtype.name, tensor.shape, tensor.bytes)

    inputs = [view(t, "constant input" if t.name in workload.constants else "input") for t in workload.inputs]
    stages = [view(s.tensor, "output" if s.name in workload.outputs else "stage") for s in workload.stages]
    return (*inputs, *stages)
