"""The frozen values that the service takes and answers with about models that users run."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from .views import BestView, TaskSpec


@dataclass(frozen=True, slots=True)
class ModelWorkload:
    """Shows a workload of a model. ``count`` says how often it occurs, and ``label`` says for people what it is."""

    task: TaskSpec
    count: int = 1
    label: str = ""


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A model as a user describes it: data, never code or weights. ``foreign_calls`` maps operators that the model's
    own library computes to how often each occurs."""

    name: str
    workloads: tuple[ModelWorkload, ...]
    foreign_calls: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ModelKernelView:
    """Shows a workload of a model. ``best`` is what a look-up for the device of the view finds, on whatever device it
    was measured; ``seconds`` is what all occurrences take with it, and None unless it was measured on that device.
    ``share`` is the share in the time of all kernels that have one."""

    workload_key: str
    label: str
    expression: str
    flops: int
    minimum_bytes: int
    count: int
    best: BestView | None
    seconds: float | None
    share: float | None


@dataclass(frozen=True, slots=True)
class ModelExpectation:
    """Shows what a job of a model is expected to win before it spends. Of its ``workloads``, ``known`` have times on
    the device: one run takes ``seconds`` for them, and the job is expected to lower that by ``saving_seconds``, where
    its trials are dealt out equally. Nothing is expected of the others, which nobody has timed there.

    ``search_seconds`` is what the trials take by earlier tasks, None where no task has ended on such a device.
    ``runs`` is after how many runs of the model the search has paid, None where nothing is known of one of the two."""

    workloads: int
    known: int
    seconds: float
    saving_seconds: float
    search_seconds: float | None

    @property
    def runs(self) -> float | None:
        """After how many runs the search has paid."""
        if self.search_seconds is None or self.saving_seconds <= 0:
            return None
        return self.search_seconds / self.saving_seconds


@dataclass(frozen=True, slots=True)
class ModelTimingView:
    """Shows the time of whole runs on a device, with the schedules that were known then, of which ``tuned_kernels``
    calls had been tuned, and that of the ``baseline`` beside it."""

    device_key: str
    seconds: float
    baseline: str
    baseline_seconds: float
    tuned_kernels: int
    created_at: str


@dataclass(frozen=True, slots=True)
class ModelView:
    """Shows a model on a device: None as ``device_key`` where there is none. ``kernel_seconds`` is the time of its
    kernels one after the other, as far as it is known. ``jobs`` are the ids of its jobs, newest first."""

    key: str
    name: str
    created_at: str
    device_key: str | None
    kernels: tuple[ModelKernelView, ...]
    foreign_calls: Mapping[str, int]
    kernel_seconds: float
    jobs: tuple[str, ...]
    timings: tuple[ModelTimingView, ...]

    @property
    def tuned(self) -> int:
        """How many of its workloads have a schedule that was tuned on the device."""
        return sum(kernel.seconds is not None for kernel in self.kernels)
