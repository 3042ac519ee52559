"""Defines the models of what the service answers with about many jobs at once: estimates, workloads over time."""

from .responses import BestOut, ResponseModel


class TensorOut(ResponseModel):
    """Describes a tensor of a workload. ``role`` is ``input``, ``constant input``, ``stage`` or ``output``."""

    name: str
    role: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int


class TaskEstimateOut(ResponseModel):
    """Says what a task would cost. ``seconds`` comes from ``basis_tasks`` ended tasks of the same ``basis`` (workload,
    operator or target), with the quickest and the slowest of them beside it; null where no task has ended."""

    workload_key: str
    operator: str | None
    expression: str
    tensors: tuple[TensorOut, ...]
    flops: int
    minimum_bytes: int
    trials: int
    seconds: float | None
    least_seconds: float | None
    most_seconds: float | None
    basis: str | None
    basis_tasks: int
    host_bytes: int
    device_bytes: int
    available_bytes: int | None
    known: BestOut | None


class JobEstimateOut(ResponseModel):
    """Says what a job would cost: device seconds of all its tasks, and wall seconds on the units that are ready."""

    tasks: tuple[TaskEstimateOut, ...]
    trials: int
    device_seconds: float | None
    wall_seconds: float | None
    units: int
    waiting: int
    warnings: tuple[str, ...]
