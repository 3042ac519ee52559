"""From the expression in a request to a task: the workload's own JSON, or an operator with parameters."""

from ..core.errors import TilewrightError
from ..core.schedule import Schedule
from ..service.service import Service
from ..service.views import JobSpec, TaskSpec
from ..te.json import workload_from_json
from .problems import within
from .requests import ExpressionIn, JobIn, ScheduleIn


def task_of(service: Service, given: ExpressionIn, pointer: str = "") -> TaskSpec:
    """The task that ``given`` describes. ``pointer``: where it stands in the body, for the errors' ``field``.

    Raises InvalidWorkload, InvalidParameter or NotFound (no such operator).
    """
    if given.workload is not None:
        try:
            return TaskSpec(workload_from_json(given.workload))
        except TilewrightError as error:
            raise within(error, f"{pointer}/workload") from None
    try:
        return service.operator_workload(given.operator or "", given.parameters or {})
    except TilewrightError as error:
        part = "/operator" if error.field in ("operator", "name") or error.code == "NOT_FOUND" else "/parameters"
        if part == "/operator":
            error.field = ""
        raise within(error, pointer + part) from None


def spec_of(service: Service, given: JobIn) -> JobSpec:
    """The job that ``given`` describes; every expression in it is checked."""
    return JobSpec(
        tasks=tuple(task_of(service, task, f"/tasks/{index}") for index, task in enumerate(given.tasks)),
        budget=given.budget.budget(),
        strategy=given.strategy,
        seed=given.seed,
        target=given.target,
        executor=given.executor,
        cache=given.cache,
    )


def schedule_of(given: ScheduleIn) -> Schedule:
    """The schedule that ``given`` describes."""
    return Schedule.of(given.sketch, given.version, dict(given.knobs))
