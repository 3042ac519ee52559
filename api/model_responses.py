"""Defines the models of what the service answers about models that users run. They are made from the frozen values of
``service.model_views``."""

from typing import Annotated

from pydantic import BeforeValidator, Field

from .responses import BestOut, ResponseModel, plain


class ModelKernelOut(ResponseModel):
    """Shows a workload of a model."""

    workload_key: str
    label: str
    expression: str
    flops: int
    minimum_bytes: int
    count: int = Field(description="How many kernels of the model compute it.")
    best: BestOut | None = Field(description="The best schedule known; its match says how it fits.")
    seconds: float | None = Field(
        description="What all its kernels take; null where nothing was tuned on the device: they run by default."
    )
    share: float | None = Field(description="Its share in the time of all kernels that have one.")


class ModelTimingOut(ResponseModel):
    """Shows the time of whole runs of a model on a device."""

    device_key: str
    seconds: float
    baseline: str
    baseline_seconds: float
    tuned_kernels: int
    created_at: str


class ModelOut(ResponseModel):
    """Shows a model with what is known of its workloads on a device."""

    key: str
    name: str
    created_at: str
    device_key: str | None
    kernels: tuple[ModelKernelOut, ...]
    tuned: int = Field(description="How many of its workloads have a schedule that was tuned on the device.")
    foreign_calls: Annotated[dict[str, int], BeforeValidator(plain)] = Field(
        description="Operators that the model's own library computes, and how often each occurs."
    )
    kernel_seconds: float = Field(description="The time of its kernels one after the other, as far as it is known.")
    jobs: tuple[str, ...] = Field(description="The ids of its jobs, newest first.")
    timings: tuple[ModelTimingOut, ...] = Field(description="Whole runs that were timed, newest first.")


class ModelExpectationOut(ResponseModel):
    """Says what a job of a model is expected to win before it spends, by the times that are known."""

    workloads: int
    known: int = Field(description="How many of the workloads have times on the device; of the others nothing is said.")
    seconds: float = Field(description="What one run takes for those with times.")
    saving_seconds: float = Field(description="What the job is expected to save of that.")
    search_seconds: float | None = Field(description="What its trials take, by earlier tasks; null: not known.")
    runs: float | None = Field(description="After how many runs of the model the search has paid; null: not known.")


class ModelPage(ResponseModel):
    """This is a part of the list of models, newest first. ``next_page_token`` is empty at the end, and only there."""

    models: tuple[ModelOut, ...]
    next_page_token: str
