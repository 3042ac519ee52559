"""Renders the dashboard's pages in one Jinja environment, which escapes by itself and refuses missing values."""

from pathlib import Path
from typing import Any

from fastapi import Request
from fastapi.responses import HTMLResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from .. import __version__
from ..service.callers import present_caller
from .assets import assets_present
from .formatting import FILTERS, FUNCTIONS

NAVIGATION = (
    ("/", "Overview"),
    ("/jobs", "Jobs"),
    ("/queue", "Queue"),
    ("/workloads", "Workloads"),
    ("/models", "Models"),
    ("/releases", "Releases"),
    ("/compare", "Compare"),
    ("/devices", "Devices"),
    ("/cost-models", "Cost models"),
    ("/data", "Data"),
)
"""The entries of the navigation: address and name. A page marks its own by ``{% set section = "Jobs" %}``."""
_environment = Environment(
    loader=FileSystemLoader(Path(__file__).parent / "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_environment.filters.update(FILTERS)
_environment.globals.update(FUNCTIONS)
_environment.globals["version"] = __version__
_environment.globals["NAVIGATION"] = NAVIGATION
API_PATHS = ("/v1/", "/static/", "/healthz", "/readyz", "/metrics", "/version", "/openapi.json")


def render(template: str, status: int = 200, **values: Any) -> HTMLResponse:
    """Return the page or fragment ``template`` filled with ``values``. Whoever signed in can sign out on every page."""
    text = _environment.get_template(template).render(
        assets=assets_present(), signed_in_as=present_caller().name, **values
    )
    return HTMLResponse(text, status, {"Cache-Control": "no-cache"})


def wants_page(request: Request) -> bool:
    """Return whether a failure should be shown as a page, because a browser asks for an address of the dashboard."""
    return "text/html" in request.headers.get("accept", "") and not request.url.path.startswith(API_PATHS)
