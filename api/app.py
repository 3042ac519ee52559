"""Makes the web application over one service: routes, problem documents, guard and dashboard."""

from collections.abc import Collection
from functools import lru_cache
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from fastapi.staticfiles import StaticFiles

from .. import __version__
from ..service.service import Service
from ..service.settings import Settings
from .access import AccessControl
from .exact_lookups import ExactLookups
from .guard import RequestGuard, host_name
from .lookup_batches import LookupBatches
from .open_id_connect import OpenIdConnect
from .openapi import openapi_of
from .problem_handlers import install_problem_handlers
from .readiness import Readiness
from .routes import ROUTES
from .routes.events import EventStreams
from .routes.schedules import BEST_ROUTE

STATIC = Path(__file__).parent / "static"


def allowed_hosts(settings: Settings) -> Collection[str] | None:
    """Return the names that a Host header may carry: those of the settings, and the address that the server listens
    on. None means any name (``*``)."""
    if "*" in settings.allowed_hosts:
        return None
    return {host_name(host) for host in (*settings.allowed_hosts, settings.host)} - {"", "0.0.0.0", "::"}


def create_app(service: Service, settings: Settings) -> FastAPI:
    """Return the web application over an open service. It neither opens nor closes the service."""
    app = FastAPI(
        title="Tilewright",
        version=__version__,
        docs_url=None,  # these pages load scripts from a CDN
        redoc_url=None,
        openapi_url="/openapi.json",
        redirect_slashes=False,
        telemetry={"tracing": False},
    )
    app.state.service = service
    app.state.streams = EventStreams()
    app.state.lookups = LookupBatches(service.look_up)
    app.state.readiness = Readiness(service.health)
    app.state.access = AccessControl(settings, service.users)
    app.state.sign_in = None if settings.oidc_issuer is None else OpenIdConnect(settings)
    app.state.stopping = lambda: False
    install_problem_handlers(app)
    for router in ROUTES.values():
        app.include_router(router)
    app.mount("/static", StaticFiles(directory=STATIC), name="static")
    app.add_middleware(ExactLookups, route=BEST_ROUTE, service=service, batches=app.state.lookups)
    app.add_middleware(
        RequestGuard,
        access=app.state.access,
        allowed_hosts=allowed_hosts(settings),
        requests_per_second=settings.key_requests_per_second,
        shares_records=settings.share_records,
        answered=service.metrics_registry.answered,
    )

    @lru_cache(maxsize=1)
    def document() -> dict[str, Any]:
        return openapi_of(app)

    app.openapi = document  # type: ignore[method-assign]
    return app
