"""The REST routes and the dashboard's pages, one file for each noun.

A route takes a request, calls one method of the service, and returns a model of ``responses`` or a rendered page. To
add a noun, write its file and add its line to the table.
"""

from fastapi import APIRouter

from . import (
    compare_pages,
    cost_model_pages,
    dashboard,
    data_pages,
    descent,
    devices,
    estimates,
    events,
    families,
    fleet,
    fleet_pages,
    health,
    job_pages,
    jobs,
    keys,
    model_pages,
    models,
    operators,
    pages,
    records,
    release_pages,
    releases,
    retunes,
    schedules,
    sign_in,
    submit_pages,
    trials,
    workload_pages,
    workloads,
)

ROUTES: dict[str, APIRouter] = {
    "schedules": schedules.router,  # this stands first, for the look-up is the most frequent request
    "jobs": jobs.router,
    "retunes": retunes.router,
    "models": models.router,
    "estimates": estimates.router,
    "events": events.router,
    "families": families.router,
    "trials": trials.router,
    "dashboard": dashboard.router,
    "searches": data_pages.router,
    "records": records.router,
    "releases": releases.router,
    "operators": operators.router,
    "workloads": workloads.router,
    "devices": devices.router,
    "fleet": fleet.router,
    "keys": keys.router,
    "health": health.router,
    "pages": pages.router,
    "job_pages": job_pages.router,
    "data_pages": data_pages.pages,
    "descent": descent.router,
    "fleet_pages": fleet_pages.router,
    "model_pages": model_pages.router,
    "release_pages": release_pages.router,
    "workload_pages": workload_pages.router,
    "compare_pages": compare_pages.router,
    "cost_model_pages": cost_model_pages.router,
    "submit_pages": submit_pages.router,
    "submit_checks": submit_pages.checks,
    "sign_in": sign_in.router,
}
