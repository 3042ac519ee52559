"""Renders the page that shows one kernel at every layer, from the expression to the machine instructions."""

import json
from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import Response

from ...core.errors import TilewrightError
from ...core.trial import Timed
from ...service.views import Explanation
from ..compilations import compiles, explain_record
from ..dependencies import RecordId, ServiceDependency
from ..descent import MOST_SHOWN, LinkedLayers, matrix_steps
from ..descent_plots import roofline_plot, sample_plot
from ..rendering import render
from ..strict_route import StrictRoute

router = APIRouter(include_in_schema=False, route_class=StrictRoute)
ShownLayer = Annotated[int | None, Query(ge=-1, le=100, description="A layer that is shown; -1: none here.")]
LineQuery = Annotated[
    str, Query(pattern=r"^(\d{1,3}:\d{1,6})?$", description="The line that is followed: its layer and its number.")
]


@router.get("/trials/{record_id}/layers")
@compiles
def layers_page(
    record_id: RecordId,
    service: ServiceDependency,
    a: ShownLayer = None,
    b: ShownLayer = None,
    c: ShownLayer = None,
    line: LineQuery = "",
) -> Response:
    """Show the layers ``a``, ``b`` and ``c`` side by side, and where ``line`` is found at every layer."""
    trial = service.trial(record_id)
    job = service.job(trial.job_id)
    explanation: Explanation | None = None
    problem = ""
    try:
        explanation = explain_record(service, record_id)
    except TilewrightError as error:  # a schedule that cannot be lowered any more still has its evidence
        problem = error.message
    linked = LinkedLayers(() if explanation is None else explanation.sections)
    shown = _shown(linked, (a, b, c))
    chosen = _chosen(linked, line)
    relatives = service.relatives(record_id)
    outcome = trial.outcome
    fields = (("samples", "samples"), ("measured again", "final_samples")) if isinstance(outcome, Timed) else ()
    runs = [(name, field, getattr(outcome, field)) for name, field in fields if getattr(outcome, field)]
    return render(
        "descent.html",
        job=job,
        task=job.tasks[trial.task],
        trial=trial,
        explanation=explanation,
        problem=problem,
        linked=linked,
        shown=shown,
        columns=MOST_SHOWN,
        chosen=chosen,
        related=None if chosen is None else linked.related(*chosen),
        trace=() if chosen is None else linked.trace(*chosen),
        data=json.dumps(linked.to_json(shown)),
        matrix=() if explanation is None else matrix_steps(explanation),
        relatives=relatives,
        roofline=None if explanation is None else roofline_plot(explanation, record_id, relatives.neighbours),
        runs=runs,
        samples=sample_plot([(name, found) for name, _, found in runs]) if runs else None,
        devices={d.key: d.info.name for d in service.devices()},
    )


def _shown(linked: LinkedLayers, asked: tuple[int | None, ...]) -> tuple[int, ...]:
    """Return the layers to show, each once: those asked for that exist, else the usual ones."""
    if not linked.layers:
        return ()
    usual = linked.default_shown()
    wanted = [usual[place] if n is None and place < len(usual) else n for place, n in enumerate(asked)]
    exist = dict.fromkeys(n for n in wanted if n is not None and 0 <= n < len(linked.layers))
    return tuple(exist) or usual


def _chosen(linked: LinkedLayers, line: str) -> tuple[int, int] | None:
    """Return (layer, line) that is followed: the one asked for, or a telling one; None where there are no layers."""
    if not linked.layers:
        return None
    layer, number = map(int, line.split(":")) if line else linked.default_line()
    exists = layer < len(linked.layers) and 1 <= number <= len(linked.lines[layer])
    return (layer, number) if exists else linked.default_line()
