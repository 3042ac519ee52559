"""The charts of one task's page, made from the models that the API answers with."""

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlencode

from ..service.service import Service
from .chart_table import ChartColumn, ChartTable
from .dashboard_responses import DeviceHealthOut, KnobsOut, ModelQualityOut, SliceOut, WorkerList
from .formatting import digits

UNITS = {"seconds": "s", "mhz": "MHz", "watts": "W", "celsius": "°C", "bytes": "B"}
"""The last word of a reading's name -> the unit that it means."""
STEADY = ("load", "sm_clock_mhz", "power_watts", "temperature_celsius", "waiting_seconds", "stolen_seconds")
"""Readings of a device or host that are drawn, where they are there; so are all that begin with ``throttled``."""


@dataclass(frozen=True, slots=True)
class JobCharts:
    """Tables of a task, one for each chart. ``slice_of`` names the two knobs of the slice, and ``knobs`` all that
    vary."""

    settings: ChartTable
    importance: ChartTable
    importance_note: str
    slice: ChartTable
    slice_of: SliceOut | None
    knobs: Sequence[str]
    rounds: ChartTable
    rounds_note: str
    predicted: ChartTable
    workers: ChartTable
    health: ChartTable


def job_charts(service: Service, job_id: str, task: int, x: str | None, y: str | None) -> JobCharts:
    """Return the charts of a task with the slice of two knobs. Raises NotFound."""
    here, query = f"/v1/jobs/{job_id}", {"task": task}
    dashboard = service.dashboard
    knobs = KnobsOut.model_validate(dashboard.knobs(job_id, task=task, x=x, y=y))
    chosen = {"x": knobs.slice.x, "y": knobs.slice.y} if knobs.slice else {}
    of_knobs = f"{here}/knobs?{urlencode({**query, **chosen})}"
    quality = ModelQualityOut.model_validate(dashboard.model(job_id, task=task))
    of_model = f"{here}/model-quality?{urlencode(query)}"
    workers = WorkerList.model_validate(dashboard.workers(job_id, task=task))
    health = DeviceHealthOut.model_validate(dashboard.health(job_id, task=task))
    return JobCharts(
        _settings(of_knobs, job_id, knobs),
        _importance(of_knobs, knobs),
        f"{knobs.method}: how unlike the fastest {knobs.top} of {knobs.timed:,} timed trials are to all of them.",
        _slice(of_knobs, knobs.slice),
        knobs.slice,
        [knob.name for knob in knobs.knobs],
        ChartTable.of(of_model, "/rounds", _ROUNDS, quality.rounds),
        _rounds_note(quality),
        ChartTable.of(of_model, "/points", _PREDICTED, quality.points),
        ChartTable.of(f"{here}/workers?{urlencode(query)}", "/workers", _WORKERS, workers.workers),
        _health(f"{here}/device-health?{urlencode(query)}", health),
    )


def knob_importance(service: Service, job_id: str, task: int) -> ChartTable:
    """Return the knobs of a task that vary, the most important one first. Raises NotFound."""
    knobs = KnobsOut.model_validate(service.dashboard.knobs(job_id, task=task))
    return _importance(f"/v1/jobs/{job_id}/knobs?{urlencode({'task': task})}", knobs)


def _settings(api: str, job_id: str, knobs: KnobsOut) -> ChartTable:
    columns = [
        ChartColumn("sequence", "Trial", "id", href=f"/jobs/{job_id}/trials/{{record_id}}"),
        ChartColumn("seconds", "Time, as ranked", "seconds"),
    ]
    columns += [_knob(knob.name, [setting.knobs.get(knob.name) for setting in knobs.settings]) for knob in knobs.knobs]
    return ChartTable.of(api, "/settings", columns, knobs.settings if knobs.knobs else ())


def _knob(name: str, values: Sequence[int | str | None]) -> ChartColumn:
    return ChartColumn(f"knobs/{name}", name, "number" if all(isinstance(value, int) for value in values) else "text")


def _importance(api: str, knobs: KnobsOut) -> ChartTable:
    rows = knobs.knobs if any(knob.importance is not None for knob in knobs.knobs) else ()
    return ChartTable.of(api, "/knobs", _IMPORTANCE, rows)


def _slice(api: str, slice_of: SliceOut | None) -> ChartTable:
    if slice_of is None:
        return ChartTable.of(api, "/slice/cells", (), ())
    columns = (
        ChartColumn("x", slice_of.x, "text"),
        ChartColumn("y", slice_of.y, "text"),
        ChartColumn("seconds", "Best time", "seconds"),
        ChartColumn("trials", "Trials", "count"),
    )
    return ChartTable.of(api, "/slice/cells", columns, slice_of.cells)


def _rounds_note(quality: ModelQualityOut) -> str:
    overall = quality.rank_correlation
    said = "" if overall is None else f" Over all {quality.timed:,} trials it is {digits(overall, 2)}."
    return f"Spearman's rank correlation of what the model foretold with what was measured; 1 is perfect.{said}"


def _health(api: str, health: DeviceHealthOut) -> ChartTable:
    drawn = [name for name in health.readings if name in STEADY or name.startswith("throttled")]
    columns = [
        ChartColumn("sequence", "Trial", "count"),
        ChartColumn("anchor_seconds", "Anchor kernel", "seconds"),
        *(ChartColumn(f"readings/{name}", *_reading(name)) for name in drawn),
    ]
    return ChartTable.of(api, "/rows", columns, health.rows)


def _reading(name: str) -> tuple[str, str, str]:
    """Return (title, form, unit) of a reading: ``sm_clock_mhz`` -> SM clock in MHz."""
    words = name.split("_")
    unit = UNITS.get(words[-1], "")
    title = " ".join(words[:-1] if unit else words).replace("sm ", "SM ")
    return title[0].upper() + title[1:], "number", unit


_IMPORTANCE = (
    ChartColumn("name", "Knob", "text"),
    ChartColumn("importance", "Importance", "percent"),
    ChartColumn("values", "Values tried", "count"),
    ChartColumn("best_value", "Value of the fastest trial", "text"),
)
_ROUNDS = (
    ChartColumn("learned_from", "Results the model had learned from", "count"),
    ChartColumn("rank_correlation", "Rank correlation", "number"),
    ChartColumn("predicted", "Mean predicted score", "percent"),
    ChartColumn("measured", "Mean measured score", "percent"),
    ChartColumn("timed", "Timed", "count"),
    ChartColumn("trials", "Trials", "count"),
)
_PREDICTED = (
    ChartColumn("predicted", "Predicted score", "percent"),
    ChartColumn("measured", "Measured score", "percent"),
    ChartColumn("sequence", "Trial", "count"),
    ChartColumn("learned_from", "Learned from", "count"),
)
_WORKERS = (
    ChartColumn("unit", "Unit", "text", none="unit not recorded"),
    ChartColumn("search", "Search", "duration"),
    ChartColumn("compile", "Compile", "duration"),
    ChartColumn("check", "Check", "duration"),
    ChartColumn("time", "Time", "duration"),
    ChartColumn("overhead", "Other", "duration"),
    ChartColumn("trials", "Trials", "count"),
    ChartColumn("failed", "Failed", "count"),
)
