"""Turns the expression in a request into a task, and the schedule in a request into a Schedule."""

from ..core.errors import TilewrightError
from ..core.schedule import Schedule
from ..service.service import Service
from ..service.views import JobSpec, TaskSpec
from ..te.json import workload_from_json
from ..te.parse import parse_workload
from .problem_handlers import within
from .requests import ExpressionIn, JobIn, ScheduleIn


def task_of(service: Service, given: ExpressionIn, pointer: str = "") -> TaskSpec:
    """Return the task that ``given`` describes. ``pointer`` is where it stands in the body, for the errors' ``field``.

    Raises InvalidWorkload, InvalidParameter, NotFound (no such operator) or CodeNotAccepted.
    """
    if given.workload is not None:
        try:
            workload = workload_from_json(given.workload)
            service.check_code(workload)
            return TaskSpec(workload)
        except TilewrightError as error:
            raise within(error, f"{pointer}/workload") from None
    if given.text is not None:
        try:
            return TaskSpec(parse_workload(given.text))
        except TilewrightError as error:
            error.field = f"{pointer}/text"
            raise
    try:
        return service.operator_workload(given.operator or "", given.parameters or {})
    except TilewrightError as error:
        part = "/operator" if error.field in ("operator", "name") or error.code == "NOT_FOUND" else "/parameters"
        if part == "/operator":
            error.field = ""
        raise within(error, pointer + part) from None


def spec_of(service: Service, given: JobIn) -> JobSpec:
    """Return the job that ``given`` describes. Every expression in it is checked."""
    return JobSpec(
        tasks=tuple(task_of(service, task, f"/tasks/{index}") for index, task in enumerate(given.tasks)),
        budget=given.budget.budget(),
        strategy=given.strategy,
        seed=given.seed,
        target=given.target,
        executor=given.executor,
        cache=given.cache,
        policy=given.policy(),
        tenant=given.tenant,
        priority=given.priority,
        deadline_seconds=given.deadline_seconds,
        fresh=given.fresh,
        units=given.units,
        tags=tuple(given.tags),
        notes=given.notes,
    )


def schedule_of(given: ScheduleIn) -> Schedule:
    """Return the schedule that ``given`` describes, under today's names."""
    return Schedule.from_json({"sketch": given.sketch, "version": given.version, "knobs": dict(given.knobs)})
