"""Renders the dashboard's page of cost models."""

from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import Response

from ..analysis_responses import StoredModelsOut
from ..chart_table import ChartColumn, ChartTable
from ..dependencies import ServiceDependency
from ..limits import MAX_ID
from ..rendering import render
from ..strict_route import StrictRoute

router = APIRouter(include_in_schema=False, route_class=StrictRoute)
WORST = 12
METRICS = (
    ChartColumn("id", "Model", "number"),
    ChartColumn("metrics/pairwise_accuracy", "Pairs in the right order", "percent"),
    ChartColumn("metrics/top_8_score", "Best of the 8 ranked highest", "percent"),
    ChartColumn("metrics/rank_correlation", "Rank correlation", "number"),
    ChartColumn("metrics/mean_absolute_error", "Mean absolute error", "number"),
    ChartColumn("records", "Records", "count"),
    ChartColumn("created_at", "Trained", "moment"),
)
IMPORTANCE = (
    ChartColumn("column", "Feature", "text"),
    ChartColumn("share", "Share of the gain", "percent"),
    ChartColumn("unit", "Unit", "text"),
    ChartColumn("meaning", "Meaning", "text"),
)
RECORDS = (
    ChartColumn("predicted", "Predicted speed", "number"),
    ChartColumn("measured", "Measured speed", "number"),
    ChartColumn("record_id", "Record", "count"),
    ChartColumn("job_id", "Job", "text"),
    ChartColumn("sketch", "Sketch", "text"),
)


@router.get("/cost-models")
def cost_models_page(
    service: ServiceDependency, model: Annotated[int | None, Query(ge=1, le=MAX_ID)] = None
) -> Response:
    """Show the stored cost models: metrics over time, importance of features, and where one of them is wrong."""
    found = StoredModelsOut.model_validate(service.analysis.models(model))
    api = "/v1/cost-models" + (f"?model={found.shown.id}" if found.shown else "")
    return render(
        "cost_models.html",
        quality=found,
        api=api,
        metrics=ChartTable.of(api, "/models", METRICS, found.models),
        importance=ChartTable.of(api, "/importance", IMPORTANCE, found.importance),
        records=ChartTable.of(api, "/records", RECORDS, found.records),
        worst=found.records[:WORST],
    )
