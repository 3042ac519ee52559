"""REST routes, a file for each noun. To add one: write the file, and add its line to the table."""

from fastapi import APIRouter

from . import devices, events, health, jobs, operators, pages, schedules, trials

ROUTES: dict[str, APIRouter] = {
    "jobs": jobs.router,
    "events": events.router,
    "trials": trials.router,
    "schedules": schedules.router,
    "operators": operators.router,
    "devices": devices.router,
    "health": health.router,
    "pages": pages.router,
}
