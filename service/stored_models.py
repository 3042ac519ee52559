"""Shows how good the stored cost models are: their metrics over time, what they go by, and where they are wrong.

A model predicts a relative speed: 1 for the best of a task, 0 for a failure. What was measured after a model was
trained, it has not seen: there its predictions are compared with what was measured.
"""

from collections import defaultdict
from collections.abc import Sequence
from math import isfinite

import numpy as np

from ..core.errors import InvalidParameter, InvalidWorkload, NotFound
from ..core.record import Record
from ..core.target import DeviceInfo
from ..cost_model.dataset import Experience, experience_data, says_of_schedule
from ..cost_model.metrics import rank_correlation, top_score
from ..cost_model.model import FEATURE_VERSION, CostModel
from ..db.rows import ModelSummary
from ..db.store import RecordStore
from ..te.json import workload_from_json
from . import wiring
from .analysis_views import HeldOutRecord, HeldOutTask, ImportanceView, StoredModels

MOST_MODELS = 200
MOST_RECORDS = 1000
"""So many records that a model has not seen are predicted."""
MOST_COLUMNS = 20
TOP = 8


def stored_models(store: RecordStore, model_id: int | None) -> StoredModels:
    """Return all models with what is known of one: the given one, or the newest that has not seen some records, or the
    newest. Raises NotFound."""
    models = store.analysis.models(limit=MOST_MODELS)
    shown = _chosen(store, models, model_id)
    if shown is None:
        return StoredModels(models, None, (), (), (), "no model has been trained yet")
    data = store.analysis.model_data(shown.id)
    if shown.feature_version != FEATURE_VERSION or data is None:
        return StoredModels(models, shown, (), (), (), f"its features have version {shown.feature_version}")
    try:
        model = wiring.restored_model(shown.kind, data)
    except (ValueError, InvalidParameter) as error:
        return StoredModels(models, shown, (), (), (), f"it cannot be loaded: {error}")
    records = _unseen(store, shown, MOST_RECORDS)
    tasks, points = _held_out(store, model, records)
    why = "" if points else "nothing has been measured since it was trained that it could predict"
    return StoredModels(models, shown, _importance(model), tasks, points, why)


def _chosen(store: RecordStore, models: Sequence[ModelSummary], model_id: int | None) -> ModelSummary | None:
    if model_id is not None:
        found = next((model for model in models if model.id == model_id), None)
        if found is None:
            raise NotFound(f"there is no cost model {model_id}", field="model_id")
        return found
    with_unseen = next((model for model in models[:8] if _unseen(store, model, 1)), None)
    return with_unseen or (models[0] if models else None)


def _unseen(store: RecordStore, model: ModelSummary, limit: int) -> tuple[Record, ...]:
    """Return records that a model has not seen; none where it does not say what it has seen."""
    until, device = model.metrics.get("until_record"), _device(store, model.device_key)
    if until is None or device is None:
        return ()
    return store.analysis.records_after(device.target.kind, int(until), limit=limit)


def _device(store: RecordStore, key: str | None) -> DeviceInfo | None:
    return next((info for info in store.devices(imported=True) if info.key == key), None)


def _importance(model: CostModel) -> tuple[ImportanceView, ...]:
    from ..cost_model.features import COLUMNS  # loads all sketches, for their columns

    shares = model.importance()
    order = [i for i in np.argsort(-shares, kind="stable")[:MOST_COLUMNS] if shares[i] > 0]
    return tuple(ImportanceView(COLUMNS[i].name, COLUMNS[i].unit, COLUMNS[i].meaning, float(shares[i])) for i in order)


def _held_out(
    store: RecordStore, model: CostModel, records: Sequence[Record]
) -> tuple[tuple[HeldOutTask, ...], tuple[HeldOutRecord, ...]]:
    """Predict records, task by task: speeds are relative to the best of a task."""
    by_task = defaultdict[tuple[str, int], list[Record]](list)
    for record in records:
        by_task[record.job_id, record.task].append(record)
    devices = {info.key: info for info in store.devices(imported=True)}
    tasks, points = list[HeldOutTask](), list[HeldOutRecord]()
    for (job_id, task), own in by_task.items():
        found = _predicted(store, model, own, devices)
        if not found:
            continue
        points += found
        predicted = np.array([point.predicted for point in found], np.float32)
        measured = np.array([point.measured for point in found], np.float32)
        origin = store.origin(own[0].identity.workload_key)
        tasks.append(
            HeldOutTask(
                job_id=job_id,
                task=task,
                workload_key=own[0].identity.workload_key,
                operator=None if origin is None else origin[0],
                records=len(found),
                rank_correlation=_finite(rank_correlation(predicted, measured)),
                mean_absolute_error=float(np.abs(predicted - measured).mean()),
                top_score=_finite(top_score(predicted, measured, TOP)),
            )
        )
    points.sort(key=lambda point: -abs(point.predicted - point.measured))
    return tuple(tasks), tuple(points)


def _predicted(
    store: RecordStore, model: CostModel, records: Sequence[Record], devices: dict[str, DeviceInfo]
) -> list[HeldOutRecord]:
    """Return the predictions of one task's records; none where a schedule has no features any more."""
    identity = records[0].identity
    data = store.workload(identity.workload_key)
    try:
        workload = None if data is None else workload_from_json(data)
    except InvalidWorkload:
        workload = None
    if workload is None or identity.device_key not in devices:
        return []
    told = [record for record in records if says_of_schedule(record.trial.outcome)]
    ordered = sorted(told, key=lambda record: record.trial.schedule.sketch)  # as experience_data orders its rows
    results = [(record.trial.schedule, record.trial.outcome) for record in ordered]
    features, measured = experience_data([Experience(workload, devices[identity.device_key], results)])
    if len(features) != len(ordered):
        return []
    predicted = model.predict(features)
    return [
        HeldOutRecord(
            record.id, record.job_id, record.task, record.trial.schedule.sketch, float(predicted[i]), float(measured[i])
        )
        for i, record in enumerate(ordered)
    ]


def _finite(value: float) -> float | None:
    return value if isfinite(value) else None
