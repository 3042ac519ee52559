"""The use cases of models that users run: add, list, show, tune as a whole, keep the times of whole runs."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate

from ..core.allocation import FASTEST, TaskProgress, expected_gain
from ..core.budget import Budget
from ..core.errors import InvalidParameter
from ..core.keys import content_key
from ..db.encode import now
from ..db.rows import ModelTimingRow, ModelWorkloadRow, NewTunedModel, TunedModelRow
from ..db.store import RecordStore
from ..db.task import task_of
from ..te.check import check
from ..te.json import workload_from_json
from .callers import tenant_for
from .convert import answer_view
from .lookup import CONDITIONS, Answer, Conditions, Miss
from .model_views import ModelExpectation, ModelKernelView, ModelSpec, ModelTimingView, ModelView
from .page_token import page_size as checked_size
from .page_token import read_token, write_token
from .pagination import valid_key
from .submit import MAX_TASKS
from .views import JobSpec, JobView, Page, TaskSpec

MAX_COUNT = 1_000_000
"""How often a workload, or a foreign operator, may occur in a model."""
MAX_NAME, MAX_LABEL = 128, 256
LISTING = ("models",)
MOST_LISTED_KERNELS = 200
"""A page of models has so many kernels at most: each has its best schedule beside it."""
"""What page tokens say they are of."""


class TunedModels:
    """Every method raises StoreError when the database cannot serve. ``conditions`` and ``find`` are those of look-ups,
    and ``submit`` stores a job that was put together here."""

    def __init__(
        self,
        store: RecordStore,
        conditions: Callable[..., Conditions],
        find: Callable[[Sequence[str], Conditions], Sequence[Answer | Miss]],
        submit: Callable[[JobSpec], tuple[JobView, bool]],
    ) -> None:
        self._store = store
        self._conditions = conditions
        self._find = find
        self._submit = submit

    def add(self, spec: ModelSpec) -> tuple[ModelView, bool]:
        """Store a model; return (model, whether it is new). Equal workloads with equal counts are one model, whose name
        is the one that was given last. Raises InvalidParameter and InvalidWorkload."""
        row, created = self._store.add_tuned_model(replace(_checked(spec), tenant=tenant_for(None)))
        return self._view(row, None), created

    def get(self, key: str, target: str | None = None) -> ModelView:
        """Return a model with what is known of its workloads on ``target``; by default on the device of its newest job,
        else of this machine. Raises NotFound, UnsupportedTarget."""
        return self._view(self._store.tuned_model(valid_key(key, "model_key")), target)

    def list(self, *, page_size: int = 50, token: str = "") -> Page[ModelView]:
        """Return models, newest first; fewer than asked for where they have more than MOST_LISTED_KERNELS kernels
        together. Raises InvalidParameter for a bad page size or token."""
        size, cursor = checked_size(page_size), read_token(token, LISTING, (int,))
        before = None if cursor is None else int(cursor[0])
        rows = self._store.tuned_models(before=before, limit=size + 1, most_workloads=MOST_LISTED_KERNELS)
        kernels = accumulate(len(row.workloads) for row in rows)
        size = min(size, max(1, sum(count <= MOST_LISTED_KERNELS for count in kernels)))
        following = write_token(LISTING, [rows[size - 1].number]) if len(rows) > size else ""
        return Page(tuple(self._view(row, None) for row in rows[:size]), following)

    def tune(self, key: str, spec: JobSpec) -> tuple[JobView, bool]:
        """Submit the one job of a model: its tasks are the workloads, and share the budget of ``spec``. Return (job,
        whether it is new): a job of the model for the same target that is under way is the answer instead. Raises what
        ``Service.submit`` raises, and NotFound."""
        model = self._store.tuned_model(valid_key(key, "model_key"))
        tasks = tuple(self._task(workload) for workload in model.workloads)
        return self._submit(replace(spec, tasks=tasks, model_key=model.key))

    def expect(self, key: str, budget: Budget, target: str) -> ModelExpectation:
        """Return what a job with this budget is expected to win on a target, by the times that are known. Raises
        NotFound, UnsupportedTarget."""
        model = self._store.tuned_model(valid_key(key, "model_key"))
        wanted = self._conditions(target=target)
        keys = [workload.workload_key for workload in model.workloads]
        known = self._store.fastest(keys, wanted.device_key, wanted.profile, FASTEST)
        share = max(1, budget.trials // len(keys))
        seconds = saving = 0.0
        for workload in model.workloads:
            if workload.workload_key in known:
                trials, fastest = known[workload.workload_key]
                progress = TaskProgress(workload.count, trials, fastest)
                seconds += workload.count * fastest[0]
                saving += workload.count * expected_gain(progress, share)
        costs = [self._store.analysis.trial_cost(target.partition(":")[0], key, None) for key in keys]
        search = None if None in costs else share * sum(cost.seconds for cost in costs if cost is not None)
        if search is not None and budget.seconds is not None:
            search = min(search, budget.seconds)
        return ModelExpectation(len(keys), len(known), seconds, saving, search)

    def keep_timing(
        self, key: str, *, device_key: str, seconds: float, baseline: str, baseline_seconds: float, tuned_kernels: int
    ) -> ModelView:
        """Keep the time of whole runs; return the model. Raises NotFound, and InvalidParameter for a time that is out
        of bounds."""
        for name, value in (("seconds", seconds), ("baseline_seconds", baseline_seconds)):
            if not 1e-9 <= value <= 1e6:
                raise InvalidParameter(f"{name} is {value}; allowed: 1e-9 to 1e6", field=name)
        if not 1 <= len(baseline) <= 64:
            raise InvalidParameter("a baseline has a name of 1 to 64 characters", field="baseline")
        timing = ModelTimingRow(
            valid_key(device_key, "device_key"), seconds, baseline, baseline_seconds, tuned_kernels, now()
        )
        return self._view(self._store.add_model_timing(valid_key(key, "model_key"), timing), None)

    def _task(self, row: ModelWorkloadRow) -> TaskSpec:
        data = self._store.workload(row.workload_key)
        assert data is not None  # a foreign key guarantees it
        return TaskSpec(workload_from_json(data), weight=float(row.count))

    def _view(self, row: TunedModelRow, target: str | None) -> ModelView:
        device = None if target is not None or not row.jobs else self._store.device_of_job(row.jobs[0])
        wanted = self._conditions(device_key=device, target=target, relax=CONDITIONS)
        found = self._find([workload.workload_key for workload in row.workloads], wanted)
        kernels = [_kernel(part, answer) for part, answer in zip(row.workloads, found, strict=True)]
        total = sum(kernel.seconds or 0.0 for kernel in kernels)
        return ModelView(
            key=row.key,
            name=row.name,
            created_at=row.created_at,
            device_key=wanted.device_key or None,
            kernels=tuple(k if k.seconds is None else replace(k, share=k.seconds / total) for k in kernels),
            foreign_calls=row.foreign_calls,
            kernel_seconds=total,
            jobs=row.jobs,
            timings=tuple(
                ModelTimingView(t.device_key, t.seconds, t.baseline, t.baseline_seconds, t.tuned_kernels, t.created_at)
                for t in row.timings
            ),
        )


def _kernel(row: ModelWorkloadRow, answer: Answer | Miss) -> ModelKernelView:
    best = None if isinstance(answer, Miss) else answer_view(answer)
    return ModelKernelView(
        workload_key=row.workload_key,
        label=row.label,
        expression=row.expression,
        flops=row.flops,
        minimum_bytes=row.minimum_bytes,
        count=row.count,
        best=best,
        seconds=None if best is None or "device" in best.match else best.seconds * row.count,
        share=None,
    )


def _checked(spec: ModelSpec) -> NewTunedModel:
    """Return the model to store. Equal workloads are joined."""
    if not 1 <= len(spec.name) <= MAX_NAME or not spec.name.isprintable():
        raise InvalidParameter(f"a model's name has 1 to {MAX_NAME} printable characters", field="name")
    if not 1 <= len(spec.workloads) <= MAX_TASKS:
        raise InvalidParameter(f"{len(spec.workloads)} workloads; allowed: 1 to {MAX_TASKS}", field="workloads")
    for count in (*spec.foreign_calls.values(), *(w.count for w in spec.workloads)):
        if not 1 <= count <= MAX_COUNT:
            raise InvalidParameter(f"a count of {count}; allowed: 1 to {MAX_COUNT}", field="count")
    joined: dict[str, tuple[int, int]] = {}
    tasks = []
    for position, part in enumerate(spec.workloads):
        check(part.task.workload)
        field = f"/workloads/{position}/workload"
        task = task_of(part.task.workload, part.task.operator, part.task.parameters, field=field)
        first, count = joined.get(task.workload_key, (position, 0))
        joined[task.workload_key] = first, count + part.count
        tasks.append(task)
    key = content_key(
        {
            "workloads": {name: count for name, (_, count) in sorted(joined.items())},
            "foreign_calls": dict(sorted(spec.foreign_calls.items())),
        }
    )
    parts = tuple((tasks[at], spec.workloads[at].label[:MAX_LABEL], count) for at, count in joined.values())
    return NewTunedModel(key, spec.name, parts, dict(spec.foreign_calls))
