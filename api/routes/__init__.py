"""REST routes, a file for each noun. To add one: write the file, and add its line to the table."""

from fastapi import APIRouter

from . import devices, events, health, jobs, operators, pages, schedules, trials

ROUTES: dict[str, APIRouter] = {
    "schedules": schedules.router,  # first, for the look-up is the route that is asked most
    "jobs": jobs.router,
    "events": events.router,
    "trials": trials.router,
    "operators": operators.router,
    "devices": devices.router,
    "health": health.router,
    "pages": pages.router,
}
