"""Defines the models of a record's relatives (``service.relatives``) on the wire."""

from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from .responses import ResponseModel, plain


class NeighbourOut(ResponseModel):
    """A timed record to compare with: a fast one of the same task, or the best of another task of the same device."""

    record_id: int
    job_id: str
    task: int
    same_task: bool
    operator: str | None
    parameters: Annotated[dict[str, Any] | None, BeforeValidator(plain)]
    flops: int
    minimum_bytes: int
    seconds: float


class ScheduleUseOut(ResponseModel):
    """A timed record of the same workload with the same schedule."""

    record_id: int
    job_id: str
    task: int
    sequence: int
    device_key: str
    seconds: float
    created_at: str
    adopted_from: int | None = Field(description="The record that it is a copy of; null where it was measured.")


class ModelUseOut(ResponseModel):
    """A model that users run and that has the record's workload."""

    key: str
    name: str
    count: int = Field(description="How many kernels of the model compute it.")


class ReleaseUseOut(ResponseModel):
    """A release that holds the record's schedule for its workload."""

    name: str
    record_id: int = Field(description="The record of this schedule that it holds.")
    created_at: str


class RelativesOut(ResponseModel):
    """Says what a record can be compared with, which records have its schedule, itself among them, which models have
    its workload, and which releases hold its schedule."""

    record_id: int
    neighbours: tuple[NeighbourOut, ...]
    uses: tuple[ScheduleUseOut, ...]
    models: tuple[ModelUseOut, ...]
    releases: tuple[ReleaseUseOut, ...]
