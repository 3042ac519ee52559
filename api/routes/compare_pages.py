"""Renders the page that compares schedules."""

from collections.abc import Collection, Sequence
from typing import Any
from urllib.parse import urlencode

from fastapi import APIRouter, Request
from fastapi.responses import Response

from ...core.errors import InvalidParameter, TilewrightError
from ...service.analysis_views import BestTaskView
from ...service.comparison import ComparedJob, ComparedRecord
from ...service.service import Service
from ..analysis_responses import ComparedOut, ComparisonOut
from ..chart_table import ChartColumn, ChartTable
from ..comparing import counts, difference, item_text, items_of
from ..compilations import compiles, explain_record
from ..dependencies import ServiceDependency
from ..problem_handlers import RequestRefused
from ..rendering import render
from ..strict_route import GuardedRoute
from .job_pages import task_view

router = APIRouter(include_in_schema=False, route_class=GuardedRoute)
"""The names ``job`` and ``record`` may be repeated, which ``StrictRoute`` refuses."""
MOST_RECENT, MOST_ALIKE = 60, 20
"""So many tasks are offered at most: the newest, and before them the newest of the same workloads."""
ACROSS = ("trials", "seconds")
NAMES = ("job", "record", "across", "layer", "left", "right")
CURVES = {
    "trials": ChartColumn("trials", "Trials", "count"),
    "seconds": ChartColumn("elapsed_seconds", "Search time", "duration"),
}
SAMPLES = (
    ChartColumn("label", "Schedule", "text"),
    ChartColumn("seconds", "Sample", "seconds"),
)


@router.get("/compare")
@compiles
def compare_page(request: Request, service: ServiceDependency) -> Response:
    """Compare two to eight schedules (``job=ID`` or ``job=ID:TASK``, ``record=ID``), or offer some to choose from.

    ``across`` is what the curves run over. ``layer`` with ``left`` and ``right`` shows how two sources differ.
    """
    query = request.query_params
    for name in query:
        if name not in NAMES:
            raise RequestRefused(
                422, "UNKNOWN_PARAMETER", f"unknown query parameter; allowed: {', '.join(NAMES)}", name
            )
    given = [f"{name}:{value}" for name, value in query.multi_items() if name in ("job", "record") and value]
    asked = items_of(given)
    if len(asked) < 2:
        keys = {_workload(service, one) for one in asked}
        return render(
            "compare.html", comparison=None, rows=_choices(service, keys), chosen={item_text(one) for one in asked}
        )
    found = ComparisonOut.model_validate(service.analysis.compare(asked))
    across = query.get("across", ACROSS[0])
    if across not in ACROSS:
        raise InvalidParameter(f"{across[:20]!r} is nothing to draw curves over; allowed: {', '.join(ACROSS)}")
    api = f"/v1/comparisons?{urlencode({'items': ','.join(map(item_text, asked))}, safe=':,')}"
    names = [(text.partition(":")[0], text.partition(":")[2]) for text in map(item_text, asked)]
    curve = (ChartColumn("label", "Schedule", "text"), CURVES[across], ChartColumn("seconds", "Best so far", "seconds"))
    return render(
        "compare.html",
        comparison=found,
        rows=_choices(service, {item.workload_key for item in found.items}),
        chosen={item_text(one) for one in asked},
        api=api,
        curves=ChartTable.of(api, "/curves", curve, found.curves),
        samples=ChartTable.of(api, "/samples", SAMPLES, found.samples),
        across=across,
        address=lambda **more: f"/compare?{urlencode([*names, *({'across': across} | more).items()], safe=':')}",
        names=names,
        without=lambda n: f"/compare?{urlencode([name for i, name in enumerate(names) if i != n], safe=':')}",
        **_sources(service, found.items, dict(query)),
    )


def _workload(service: Service, asked: ComparedJob | ComparedRecord) -> str:
    """Return the key of what is to be compared. Raises NotFound."""
    if isinstance(asked, ComparedJob):
        job, task = service.job(asked.job_id), asked.task
    else:
        trial = service.trial(asked.record_id)
        job, task = service.job(trial.job_id), trial.task
    return task_view(job, task).workload_key


def _choices(service: Service, keys: Collection[str]) -> list[BestTaskView]:
    """Return the tasks to choose from: those of the workloads with these keys first."""
    alike = service.analysis.newest_bests(MOST_ALIKE, workload_keys=sorted(keys)) if keys else ()
    rows = {(row.job_id, row.task): row for row in (*alike, *service.analysis.newest_bests(MOST_RECENT))}
    return sorted(rows.values(), key=lambda row: row.workload_key not in keys)


def _sources(service: Service, items: Sequence[ComparedOut], query: dict[str, str]) -> dict[str, Any]:
    """Return how the sources of two of the schedules differ, where that is asked for: it takes two compilations."""
    by_label = {item.label: item for item in items}
    left, right = query.get("left", items[0].label), query.get("right", items[1].label)
    for name, label in (("left", left), ("right", right)):
        if label not in by_label:
            raise InvalidParameter(f"there is no schedule {label[:20]!r}; allowed: {', '.join(by_label)}", field=name)
    shown: dict[str, Any] = {"left": left, "right": right, "layer": "", "layers": (), "lines": None, "problem": ""}
    if "layer" not in query:
        return shown
    try:
        texts = [
            {section.title: section.text for section in explain_record(service, by_label[label].record_id).sections}
            for label in (left, right)
        ]
    except TilewrightError as error:
        return {**shown, "problem": error.message}
    layers = [title for title in texts[0] if title in texts[1]]
    layer = query["layer"] if query["layer"] in layers else "source"
    lines = difference(texts[0].get(layer, ""), texts[1].get(layer, ""))
    return {**shown, "layer": layer, "layers": layers, "lines": lines, "counts": counts(lines)}
