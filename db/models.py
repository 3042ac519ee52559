"""Stores trained cost models as bytes, with what they were trained on."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, Select, delete, insert, select

from .encode import now
from .rows import ModelRow, ModelSummary
from .tables import devices, models

MODEL: Select[Any] = select(models, devices.c.key.label("device_key")).outerjoin(
    devices, devices.c.id == models.c.device
)

KEPT = 20
"""So many models of a kind are kept."""


def insert_model(
    connection: Connection,
    kind: str,
    feature_version: int,
    data: bytes,
    records: int,
    metrics: Mapping[str, float],
    device: int | None,
) -> ModelRow:
    """Add a model that was trained on ``records`` records. Those that nobody can load any more are deleted: models of
    earlier versions of the features, and all but the newest ``KEPT`` of a kind."""
    connection.execute(delete(models).where(models.c.feature_version < feature_version))
    of_kind = select(models.c.id).where(models.c.kind == kind).order_by(models.c.id.desc()).offset(KEPT - 1).limit(1)
    oldest = connection.execute(of_kind).scalar()
    if oldest is not None:
        connection.execute(delete(models).where(models.c.kind == kind, models.c.id <= oldest))
    inserted = connection.execute(
        insert(models).values(
            kind=kind,
            feature_version=feature_version,
            device=device,
            records=records,
            data=data,
            metrics=dict(metrics),
            created_at=now(),
        )
    ).inserted_primary_key
    assert inserted is not None
    row = connection.execute(MODEL.where(models.c.id == inserted[0])).mappings().one()
    return ModelRow(**{name: row[name] for name in ModelRow.__dataclass_fields__})


def newest_model(connection: Connection, kind: str, feature_version: int, until: int | None) -> ModelRow | None:
    """Return the model of a kind that was trained last on features of a version, from records with ids up to ``until``;
    None when there is none. A model says in its metrics (``until_record``) which records it was trained on."""
    query = MODEL.where(models.c.kind == kind, models.c.feature_version == feature_version)
    for row in connection.execute(query.order_by(models.c.id.desc()).limit(KEPT)).mappings():
        if until is None or row["metrics"].get("until_record", 0) <= until:
            return ModelRow(**{name: row[name] for name in ModelRow.__dataclass_fields__})
    return None


def newest_models(connection: Connection, limit: int) -> tuple[ModelSummary, ...]:
    """Return the newest models without their bytes, newest first."""
    columns = [models.c[name] for name in ("id", "kind", "feature_version", "records", "metrics", "created_at")]
    query = (
        select(*columns, devices.c.key.label("device_key"), devices.c.name.label("device_name"))
        .outerjoin(devices, devices.c.id == models.c.device)
        .order_by(models.c.id.desc())
        .limit(limit)
    )
    rows = connection.execute(query).mappings()
    return tuple(ModelSummary(**{name: row[name] for name in ModelSummary.__dataclass_fields__}) for row in rows)


def load_model_data(connection: Connection, model_id: int) -> bytes | None:
    """Return the bytes of a model; None where there is no such model."""
    found = connection.execute(select(models.c.data).where(models.c.id == model_id)).scalar()
    return None if found is None else bytes(found)
