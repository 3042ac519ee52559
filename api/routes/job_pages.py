"""Renders the pages of one job. They show all numbers without scripts, and fragments keep them current."""

from typing import Annotated, Any

from fastapi import APIRouter, Query
from fastapi.responses import RedirectResponse, Response

from ...core.errors import Conflict, NotFound, TilewrightError
from ...service.views import Explanation, JobView, TaskView, TrialOrder, TrialView
from ..chart_table import ChartTable
from ..compilations import compiles, explain_record
from ..dependencies import JobId, PageToken, RecordId, ServiceDependency
from ..job_charts import job_charts, knob_importance
from ..rendering import render
from ..strict_route import StrictRoute
from .dashboard import KnobName

router = APIRouter(include_in_schema=False, route_class=StrictRoute)
TRIALS_ON_A_PAGE = 25
Order = Annotated[TrialOrder, Query()]
TaskQuery = Annotated[int, Query(ge=0, le=1_000)]
Layer = Annotated[int, Query(ge=0, le=100)]


def task_view(job: JobView, index: int) -> TaskView:
    """Return a task of a job. Raises NotFound."""
    if index >= len(job.tasks):
        raise NotFound(f"job {job.id} has {len(job.tasks)} tasks, none with index {index}", field="task")
    return job.tasks[index]


@router.get("/jobs/{job_id}")
def job_page(
    job_id: JobId,
    service: ServiceDependency,
    task: TaskQuery = 0,
    order: Order = TrialOrder.BEST,
    page_token: PageToken = "",
    x: KnobName = None,
    y: KnobName = None,
    across: Annotated[str, Query(pattern="trials|seconds|device")] = "trials",
    scale: Annotated[str, Query(pattern="log|linear")] = "log",
) -> Response:
    """Show one job: figures, charts, failures, trials, the best schedule."""
    job = service.job(job_id)
    view = task_view(job, task)
    page = service.trials(job_id, task=task, page_size=TRIALS_ON_A_PAGE, token=page_token, order=order)
    best = service.trial(view.best.record_id) if view.best else None
    charts = job_charts(service, job_id, task, x, y)
    return render(
        "job.html",
        job=job,
        task=view,
        page=page,
        order=order,
        page_token=page_token,
        page_size=TRIALS_ON_A_PAGE,
        failures=service.failures(job_id, task=task),
        trial=best,
        explanation=None,
        layer=0,
        problem="",
        follows_best=True,
        figures=charts,
        why=charts.importance,
        across=across,
        scale=scale,
    )


@router.get("/jobs/{job_id}/summary")
def summary(job_id: JobId, service: ServiceDependency, task: TaskQuery = 0) -> Response:
    """Show state and figures of a job."""
    job = service.job(job_id)
    return render("summary.html", job=job, task=task_view(job, task))


@router.get("/jobs/{job_id}/figures")
def figures(
    job_id: JobId, service: ServiceDependency, task: TaskQuery = 0, x: KnobName = None, y: KnobName = None
) -> Response:
    """Show the charts of a task with the tables behind them."""
    job = service.job(job_id)
    return render("figures.html", job=job, task=task_view(job, task), figures=job_charts(service, job_id, task, x, y))


@router.get("/jobs/{job_id}/failures")
def failures(job_id: JobId, service: ServiceDependency, task: TaskQuery = 0) -> Response:
    """Show the failures of a task by stage."""
    job = service.job(job_id)
    return render("failures.html", job=job, task=task_view(job, task), failures=service.failures(job_id, task=task))


@router.get("/jobs/{job_id}/trials")
def trials(
    job_id: JobId,
    service: ServiceDependency,
    task: TaskQuery = 0,
    order: Order = TrialOrder.BEST,
    page_token: PageToken = "",
) -> Response:
    """Show a page of the trials of a task."""
    job = service.job(job_id)
    page = service.trials(job_id, task=task, page_size=TRIALS_ON_A_PAGE, token=page_token, order=order)
    values: dict[str, Any] = {"order": order, "page_token": page_token, "page_size": TRIALS_ON_A_PAGE}
    return render("trials.html", job=job, task=task_view(job, task), page=page, **values)


@router.get("/jobs/{job_id}/best")
def best_panel(job_id: JobId, service: ServiceDependency, task: TaskQuery = 0) -> Response:
    """Show the best schedule of a task so far."""
    job = service.job(job_id)
    view = task_view(job, task)
    trial = service.trial(view.best.record_id) if view.best else None
    why = knob_importance(service, job_id, task)
    return _panel("panel.html", job, view, trial, None, "", 0, why=why)


@router.get("/jobs/{job_id}/trials/{record_id}")
@compiles
def trial_page(job_id: JobId, record_id: RecordId, service: ServiceDependency, layer: Layer = 0) -> Response:
    """Show one trial: knobs, evidence, samples and every layer of its source."""
    return _trial("trial.html", service, job_id, record_id, layer)


@router.get("/jobs/{job_id}/trials/{record_id}/panel")
@compiles
def trial_panel(job_id: JobId, record_id: RecordId, service: ServiceDependency, layer: Layer = 0) -> Response:
    """Show the same as a part of the job's page."""
    return _trial("panel.html", service, job_id, record_id, layer)


@router.post("/jobs/{job_id}/cancel")
def cancel(job_id: JobId, service: ServiceDependency) -> Response:
    """Cancel a job without scripts, and go back to its page, which shows the state."""
    try:
        service.cancel(job_id)
    except Conflict:
        pass  # it has ended in the meantime, and the page says how
    return RedirectResponse(f"/jobs/{job_id}", 303)


@router.post("/jobs/{job_id}/tune-further")
def tune_further(job_id: JobId, service: ServiceDependency) -> Response:
    """Submit the job again with twice the trials, and go to the page of the new one."""
    return RedirectResponse(f"/jobs/{service.tune_further(job_id).id}", 303)


def _trial(template: str, service: ServiceDependency, job_id: str, record_id: int, layer: int) -> Response:
    trial = service.trial(record_id)
    if trial.job_id != job_id:
        raise NotFound(f"job {job_id} has no record {record_id}", field="record_id")
    job = service.job(job_id)
    explanation, problem = None, ""
    try:
        explanation = explain_record(service, record_id)
    except TilewrightError as error:  # a schedule that cannot be lowered any more still has its knobs and evidence
        problem = error.message
    return _panel(template, job, task_view(job, trial.task), trial, explanation, problem, layer)


def _panel(
    template: str,
    job: JobView,
    task: TaskView,
    trial: TrialView | None,
    explanation: Explanation | None,
    problem: str,
    layer: int,
    why: ChartTable | None = None,
) -> Response:
    """``why`` is given for the best schedule, which the panel then follows: the knobs that matter."""
    return render(
        template,
        job=job,
        task=task,
        trial=trial,
        explanation=explanation,
        problem=problem,
        layer=layer,
        follows_best=why is not None,
        why=why,
    )
