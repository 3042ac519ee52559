"""The REST routes and the dashboard's pages, one file for each noun.

A route takes a request, calls one method of the service, and returns a model of ``responses`` or a rendered page. To
add a noun, write its file and add its line to the table.
"""

from fastapi import APIRouter

from . import (
    descent,
    devices,
    events,
    fleet,
    fleet_pages,
    health,
    jobs,
    operators,
    pages,
    records,
    schedules,
    sign_in,
    trials,
)

ROUTES: dict[str, APIRouter] = {
    "schedules": schedules.router,  # this stands first, for the look-up is the most frequent request
    "jobs": jobs.router,
    "events": events.router,
    "trials": trials.router,
    "records": records.router,
    "operators": operators.router,
    "devices": devices.router,
    "fleet": fleet.router,
    "health": health.router,
    "pages": pages.router,
    "descent": descent.router,
    "fleet_pages": fleet_pages.router,
    "sign_in": sign_in.router,
}
