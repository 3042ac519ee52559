"""Renders the dashboard's pages of models that users run."""

from urllib.parse import urlencode

from fastapi import APIRouter
from fastapi.responses import Response

from ...service.service import Service
from ..dependencies import PageToken, ServiceDependency
from ..rendering import render
from ..strict_route import StrictRoute
from .models import ModelKey, Target

router = APIRouter(include_in_schema=False, route_class=StrictRoute)
MODELS_ON_A_PAGE = 20


@router.get("/models")
def models_page(service: ServiceDependency, page_token: PageToken = "") -> Response:
    """Show all models, newest first."""
    page = service.models.list(page_size=MODELS_ON_A_PAGE, token=page_token)
    query = urlencode({"page_size": MODELS_ON_A_PAGE, "page_token": page_token})
    return render("models.html", page=page, page_token=page_token, api=f"/v1/models?{query}")


@router.get("/models/{model_key}")
def model_page(model_key: ModelKey, service: ServiceDependency, target: Target = None) -> Response:
    """Show one model: its kernels with their shares of the time, what is tuned, default or foreign, and its jobs."""
    return _render("model.html", service, model_key, target)


@router.get("/models/{model_key}/kernels")
def model_fragment(model_key: ModelKey, service: ServiceDependency, target: Target = None) -> Response:
    """Show the figures and the table of kernels alone."""
    return _render("model_kernels.html", service, model_key, target)


def _render(template: str, service: Service, model_key: str, target: str | None) -> Response:
    model = service.models.get(model_key, target)
    jobs = [service.job(job_id) for job_id in model.jobs[:1]]
    kernels = sorted(model.kernels, key=lambda kernel: kernel.share or 0.0, reverse=True)
    devices = {device.key: device.info.name for device in service.devices()}
    query = "" if target is None else f"?{urlencode({'target': target})}"
    return render(
        template,
        model=model,
        kernels=kernels,
        jobs=jobs,
        target=target,
        api=f"/v1/models/{model.key}{query}",
        devices=devices,
        device=None if model.device_key is None else devices.get(model.device_key),
    )
