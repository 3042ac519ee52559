"""Defines the models of what the service answers about shape families."""

from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from ..service.family_views import FamilyView
from .responses import ResponseModel, ScheduleOut, plain

Parameters = Annotated[dict[str, Any], BeforeValidator(plain)]


class DimensionOut(ResponseModel):
    """Shows a parameter that varies."""

    name: str
    low: int
    high: int
    step: int


class MeasuredShapeOut(ResponseModel):
    """Shows a shape with times, and the place of the schedule that is best there."""

    shape: tuple[int, ...]
    schedule: int


class RegretOut(ResponseModel):
    """Says how much slower dispatched schedules are than the best that were timed, at shapes that were held out: 0.02
    is 2 %."""

    shapes: int
    mean: float
    p95: float
    most: float


class FamilyOut(ResponseModel):
    """Shows a shape family. In ``tree`` a leaf is ``{schedule}``, a place in ``schedules`` or null where the nearest
    shape of ``measured`` decides; a node is ``{dimension, at_most, below, above}``, its dimension by place."""

    name: str
    operator: str
    parameters: Parameters
    device_key: str
    toolchain_key: str
    profile: str
    target_regret: float
    created_at: str
    dimensions: tuple[DimensionOut, ...]
    schedules: tuple[ScheduleOut, ...]
    tree: dict[str, Any]
    measured: tuple[MeasuredShapeOut, ...]
    regret: RegretOut | None = Field(description="Null where too few shapes have times to hold some out.")

    @classmethod
    def of(cls, view: FamilyView) -> "FamilyOut":
        made = view.family.to_json()
        about = {name: getattr(view, name) for name in cls.model_fields if name not in made}
        return cls.model_validate({**about, **made})


class FamilyPage(ResponseModel):
    """This is a part of the list of families, newest first. ``next_page_token`` is empty at the end, and only there."""

    families: tuple[FamilyOut, ...]
    next_page_token: str


class FamilyChoiceOut(ResponseModel):
    """Shows the schedule of a family for one shape: its place in the family, and the operator's parameters."""

    parameters: Parameters
    place: int
    schedule: ScheduleOut
