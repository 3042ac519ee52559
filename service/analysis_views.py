"""The frozen values that the service answers questions about many jobs with."""

from dataclasses import dataclass

from .views import BestView


@dataclass(frozen=True, slots=True)
class TensorView:
    """Describes a tensor of a workload. ``role`` is ``input``, ``constant input``, ``stage`` or ``output``."""

    name: str
    role: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int


@dataclass(frozen=True, slots=True)
class TaskEstimate:
    """Says what a task would cost. ``trials`` is the most that the budget allows.

    ``seconds`` is how long its search would take by what trials took in ``basis_tasks`` ended tasks of the same
    ``basis`` (workload, operator or target), and ``least_seconds`` and ``most_seconds`` by the quickest and the
    slowest of them; None where no task has ended. ``host_bytes`` is what making its inputs and its reference takes,
    of ``available_bytes``; ``device_bytes`` is what its data take on the device. ``known`` is the best record there
    is of the workload on any device.
    """

    workload_key: str
    operator: str | None
    expression: str
    tensors: tuple[TensorView, ...]
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
    known: BestView | None


@dataclass(frozen=True, slots=True)
class JobEstimate:
    """Says what a job would cost. ``device_seconds`` adds its tasks up, and ``wall_seconds`` deals them out over the
    ``units`` that are ready for them. ``waiting`` tasks for the same target are in the queue before it. ``warnings``
    say why it would not run."""

    tasks: tuple[TaskEstimate, ...]
    trials: int
    device_seconds: float | None
    wall_seconds: float | None
    units: int
    waiting: int
    warnings: tuple[str, ...]
