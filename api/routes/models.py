"""Adds, lists and shows models that users run, and tunes each as a whole."""

from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Path, Query, Response

from ...core.errors import TilewrightError
from ...service.model_views import ModelSpec, ModelWorkload
from ...service.views import JobSpec
from ..dependencies import PageSize, PageToken, ServiceDependency
from ..expressions import task_of
from ..limits import KEY_PATTERN, TARGET_PATTERN
from ..model_requests import ModelIn, ModelJobIn, ModelTimingIn
from ..model_responses import ModelExpectationOut, ModelOut, ModelPage
from ..problem_handlers import within
from ..problem_responses import COMPUTES, CREATES, EDITS, FINDS, READS
from ..responses import JobOut
from ..strict_route import StrictRoute
from .jobs import etag_of

router = APIRouter(prefix="/v1/models", tags=["models"], route_class=StrictRoute)
ModelKey = Annotated[str, Path(pattern=KEY_PATTERN, description="The model's key.")]
Target = Annotated[
    str | None,
    Query(pattern=TARGET_PATTERN, description="The device that is meant; absent: that of the newest job, or this one."),
]


@router.post(
    "",
    operation_id="addModel",
    status_code=201,
    response_model=ModelOut,
    responses={200: {"model": ModelOut, "description": "The model was there; it has the name now."}, **CREATES},
)
def add(body: ModelIn, service: ServiceDependency) -> Response:
    """Store a model: its workloads and how often each occurs. The same workloads with the same counts are one model,
    however often it is sent."""
    workloads = tuple(
        ModelWorkload(task_of(service, one, f"/workloads/{n}"), one.count, one.label)
        for n, one in enumerate(body.workloads)
    )
    try:
        model, created = service.models.add(ModelSpec(body.name, workloads, body.foreign_calls))
    except TilewrightError as error:
        raise (within(error, "") if error.field else error) from None
    headers = {"Location": f"/v1/models/{model.key}"}
    text = ModelOut.model_validate(model).model_dump_json()
    return Response(text, 201 if created else 200, headers, "application/json")


@router.get("", operation_id="listModels", responses=READS)
def list_models(service: ServiceDependency, page_size: PageSize = 20, page_token: PageToken = "") -> ModelPage:
    """List models, newest first. A page has no more models than have 200 kernels together, but one at least: only an
    empty `next_page_token` is the end."""
    page = service.models.list(page_size=page_size, token=page_token)
    return ModelPage(models=tuple(ModelOut.model_validate(m) for m in page.items), next_page_token=page.next_token)


@router.get("/{model_key}", operation_id="getModel", responses=FINDS)
def get_model(model_key: ModelKey, service: ServiceDependency, target: Target = None) -> ModelOut:
    """Show a model: its workloads with the best schedule known of each, its jobs, and whole runs that were timed."""
    return ModelOut.model_validate(service.models.get(model_key, target))


@router.post(
    "/{model_key}/jobs",
    operation_id="tuneModel",
    status_code=201,
    response_model=JobOut,
    responses={200: {"model": JobOut, "description": "The job of this model that is under way."}, **CREATES},
)
def tune(model_key: ModelKey, body: ModelJobIn, service: ServiceDependency) -> Response:
    """Tune a model by one job: its workloads share the budget, and trials go where they are expected to save most.
    While a job of the model for the same target is under way, that job is the answer."""
    spec = JobSpec(
        tasks=(),
        budget=replace(body.budget.budget(), runs=body.runs),
        strategy=body.strategy,
        seed=body.seed,
        target=body.target,
        executor=body.executor,
        tenant=body.tenant,
        priority=body.priority,
    )
    try:
        job, created = service.models.tune(model_key, spec)
    except TilewrightError as error:
        at = "/budget" if error.field == "trials" else ""
        raise (within(error, at) if error.field else error) from None
    headers = {"Location": f"/v1/jobs/{job.id}", "ETag": etag_of(job)}
    return Response(JobOut.model_validate(job).model_dump_json(), 201 if created else 200, headers, "application/json")


@router.post("/{model_key}/jobs/estimate", operation_id="estimateModelJob", responses=COMPUTES)
def expect(model_key: ModelKey, body: ModelJobIn, service: ServiceDependency) -> ModelExpectationOut:
    """Say what a job of a model is expected to save of one run, and what it would cost. It creates nothing."""
    found = service.models.expect(model_key, body.budget.budget(), body.target)
    return ModelExpectationOut.model_validate(found)


@router.post("/{model_key}/timings", operation_id="keepModelTiming", responses=EDITS)
def keep_timing(model_key: ModelKey, body: ModelTimingIn, service: ServiceDependency) -> ModelOut:
    """Keep the time of whole runs of a model on a device."""
    view = service.models.keep_timing(
        model_key,
        device_key=body.device_key,
        seconds=body.seconds,
        baseline=body.baseline,
        baseline_seconds=body.baseline_seconds,
        tuned_kernels=body.tuned_kernels,
    )
    return ModelOut.model_validate(view)
