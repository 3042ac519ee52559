"""Renders the dashboard's pages of the fleet: its devices and its queue."""

from fastapi import APIRouter
from fastapi.responses import Response

from ..dashboard_responses import OverviewOut
from ..dependencies import ServiceDependency
from ..rendering import render
from ..strict_route import StrictRoute
from .devices import list_devices

router = APIRouter(include_in_schema=False, route_class=StrictRoute)
TASKS_ON_A_PAGE = 200


@router.get("/devices")
def devices_page(service: ServiceDependency) -> Response:
    """Show the units of the fleet with what they do, and all devices with their measured peaks."""
    return render(
        "devices.html",
        units=service.fleet.units(),
        unserved=service.fleet.unserved(),
        devices=list_devices(service).devices,
        seen=OverviewOut.model_validate(service.dashboard.overview()),
    )


@router.get("/devices/table")
def devices_fragment(service: ServiceDependency) -> Response:
    """Show the table of units alone."""
    return render("devices_table.html", units=service.fleet.units(), unserved=service.fleet.unserved())


@router.get("/queue")
def queue_page(service: ServiceDependency) -> Response:
    """Show the tasks that run or wait, and the tenants."""
    tasks, tenants = service.fleet.queue(limit=TASKS_ON_A_PAGE), service.fleet.tenants()
    return render("queue.html", tasks=tasks, tenants=tenants, limit=TASKS_ON_A_PAGE)


@router.get("/queue/table")
def queue_fragment(service: ServiceDependency) -> Response:
    """Show the tables of the queue alone."""
    tasks, tenants = service.fleet.queue(limit=TASKS_ON_A_PAGE), service.fleet.tenants()
    return render("queue_table.html", tasks=tasks, tenants=tenants, limit=TASKS_ON_A_PAGE)
