"""Stores trained cost models as bytes, with what they were trained on."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, Select, insert, select

from .encode import now
from .rows import ModelRow
from .tables import devices, models

MODEL: Select[Any] = select(models, devices.c.key.label("device_key")).outerjoin(
    devices, devices.c.id == models.c.device
)


def insert_model(
    connection: Connection,
    kind: str,
    feature_version: int,
    data: bytes,
    records: int,
    metrics: Mapping[str, float],
    device: int | None,
) -> ModelRow:
    """Add a model that was trained on ``records`` records."""
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


def newest_model(connection: Connection, kind: str, feature_version: int) -> ModelRow | None:
    """Return the model of a kind that was trained last on features of a version; None when there is none."""
    query = MODEL.where(models.c.kind == kind, models.c.feature_version == feature_version)
    row = connection.execute(query.order_by(models.c.id.desc()).limit(1)).mappings().first()
    return None if row is None else ModelRow(**{name: row[name] for name in ModelRow.__dataclass_fields__})
