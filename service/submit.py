"""Checks a job before it is stored."""

import re
import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from ..core.errors import InvalidParameter
from ..core.fleet import MOST_PRIORITY, MOST_UNITS
from ..core.policy import SpacePolicy
from ..core.target import DeviceInfo
from ..te.check import check
from ..te.workload import Workload
from . import wiring
from .callers import tenant_for
from .settings import Settings
from .targets import default_cache, kind_of
from .views import JobSpec, JobView, TaskSpec
from .workload_cost import check_code, check_cost

MOST_TRIALS = 1_000_000
MAX_TASKS = 256
"""How many tasks a job may have."""
MOST_DEADLINE_SECONDS = 365 * 86_400.0
TENANT = re.compile(r"[A-Za-z0-9._-]{1,64}")
MOST_TAGS = 16
MOST_NOTES = 10_000
TAG = re.compile(r"[A-Za-z0-9._-]{1,48}")
KEY = re.compile(r"[\x21-\x7e]{1,64}")
"""An idempotency key has 1 to 64 visible ASCII characters."""


def checked(spec: JobSpec, known: Callable[[], Iterable[DeviceInfo]], settings: Settings, *, one_host: bool) -> JobSpec:
    """Return ``spec`` with its defaults filled in; ``known`` and ``one_host`` are those of ``targets.kind_of``. Raises
    InvalidParameter, InvalidWorkload, UnsupportedTarget or Forbidden, with the field, when it cannot be run here."""
    if not 1 <= len(spec.tasks) <= MAX_TASKS:
        raise InvalidParameter(f"a job of {len(spec.tasks)} tasks; allowed: 1 to {MAX_TASKS}", field="tasks")
    if spec.model_key is not None and spec.budget.trials < len(spec.tasks):
        raise InvalidParameter(
            f"{spec.budget.trials} trials for {len(spec.tasks)} workloads of a model; needed: at least one for each",
            field="trials",
        )
    if spec.retuning is not None and spec.budget.trials <= spec.retuning.runners_up:
        needed = f"one for the winner and {spec.retuning.runners_up} for the runners-up"
        raise InvalidParameter(f"{spec.budget.trials} trials; needed: {needed}", field="trials")
    _one_of("strategy", spec.strategy, wiring.STRATEGY_NAMES)
    _one_of("executor", spec.executor, wiring.EXECUTOR_NAMES)
    kind = kind_of(spec.target, known, one_host=one_host)
    cache = default_cache(kind) if spec.cache is None else spec.cache
    _one_of("cache", cache, wiring.CACHES)
    if not 0 <= spec.seed < 1 << 63:
        raise InvalidParameter(f"seed {spec.seed}; allowed: 0 to 2^63 - 1", field="seed")
    if not -MOST_PRIORITY <= spec.priority <= MOST_PRIORITY:
        allowed = f"{-MOST_PRIORITY} to {MOST_PRIORITY}"
        raise InvalidParameter(f"priority {spec.priority}; allowed: {allowed}", field="priority")
    if not 1 <= spec.units <= MOST_UNITS:
        raise InvalidParameter(f"{spec.units} units for a task; allowed: 1 to {MOST_UNITS}", field="units")
    tenant = checked_tenant(tenant_for(spec.tenant), "tenant")
    check_annotations(spec.tags, spec.notes)
    if spec.deadline_seconds is not None and not 0 < spec.deadline_seconds <= MOST_DEADLINE_SECONDS:
        raise InvalidParameter(
            f"a deadline in {spec.deadline_seconds:g} seconds; allowed: over 0, at most {MOST_DEADLINE_SECONDS:g}",
            field="deadline_seconds",
        )
    for number, task in enumerate(spec.tasks):
        check_code(task.workload, settings, f"/tasks/{number}")
        check_cost(check(task.workload), settings, f"/tasks/{number}")
    return replace(spec, cache=cache, tenant=tenant)


def check_annotations(tags: Sequence[str], notes: str) -> None:
    """Raises InvalidParameter for tags and notes of a job that are too many or too long."""
    if len(tags) > MOST_TAGS or len(set(tags)) != len(tags):
        raise InvalidParameter(f"{len(tags)} tags; allowed: at most {MOST_TAGS}, all different", field="tags")
    for tag in tags:
        if not TAG.fullmatch(tag):
            raise InvalidParameter(f"tag {tag[:80]!r}; allowed: 1 to 48 letters, digits, . _ -", field="tags")
    if len(notes) > MOST_NOTES or "\x00" in notes:
        raise InvalidParameter(f"notes of {len(notes)} characters; allowed: at most {MOST_NOTES}", field="notes")


def checked_tenant(name: str, field: str) -> str:
    """Return ``name`` if it may be a tenant's. Raises InvalidParameter."""
    if not TENANT.fullmatch(name):
        raise InvalidParameter(f"tenant {name[:80]!r}; allowed: 1 to 64 letters, digits, . _ -", field=field)
    return name


def checked_key(key: str) -> str:
    """Return ``key`` if it may be an idempotency key. Raises InvalidParameter."""
    if not KEY.fullmatch(key):
        raise InvalidParameter("an idempotency key is 1 to 64 visible ASCII characters", field="Idempotency-Key")
    return key


def new_id() -> str:
    """Return a name that no other job has: 64 random bits."""
    return secrets.token_hex(8)


def _one_of(field: str, given: str, allowed: tuple[str, ...]) -> None:
    if given not in allowed:
        raise InvalidParameter(f"{given[:80]!r} is no {field}; allowed: {', '.join(allowed)}", field=field)


def continued(job: JobView, workload_of: Callable[[str], Workload]) -> JobSpec:
    """Return the submission of a job again with twice the trials: it adopts what was measured for that job.
    ``workload_of`` finds a workload by its key."""
    trials = min(2 * job.budget.trials, MOST_TRIALS)
    return JobSpec(
        tuple(TaskSpec(workload_of(task.workload_key), task.operator, task.parameters) for task in job.tasks),
        replace(job.budget, trials=trials),
        job.strategy,
        job.seed,
        job.target,
        job.executor,
        job.cache,
        SpacePolicy(job.prune, job.prior),
        job.tenant,
        job.priority,
    )
