"""Defines the models of what clients send about models that they run."""

from typing import Annotated

from pydantic import ConfigDict, Field, StringConstraints

from . import limits
from .requests import BudgetIn, ExpressionIn, Key, Name, RequestModel, TargetName

ModelName = Annotated[str, StringConstraints(min_length=1, max_length=128, pattern=r"^[^\x00-\x1f\x7f]+$")]
OperatorText = Annotated[str, StringConstraints(min_length=1, max_length=128, pattern=r"^[!-~]+$")]
Count = Annotated[int, Field(ge=1, le=1_000_000)]


class ModelWorkloadIn(ExpressionIn):
    """A workload of a model, and how often it occurs."""

    count: Count = Field(default=1, description="How many kernels of the model compute it.")
    label: str = Field(default="", max_length=256, description="What it is, for people.")


class ModelIn(RequestModel):
    """A model is its workloads: data, never code or weights."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "name": "two layers",
                    "workloads": [{"operator": "linear", "parameters": {"m": 64, "n": 64, "k": 64}, "count": 2}],
                }
            ]
        }
    )

    name: ModelName
    workloads: list[ModelWorkloadIn] = Field(min_length=1, max_length=limits.MAX_MODEL_WORKLOADS)
    foreign_calls: dict[OperatorText, Count] = Field(
        default_factory=dict,
        max_length=limits.MAX_MODEL_WORKLOADS,
        description="Operators that the model's own library computes, and how often each occurs.",
    )


class ModelJobIn(RequestModel):
    """Says how a model is tuned: one job, whose budget its workloads share."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"budget": {"trials": 512}}]})

    budget: BudgetIn = Field(
        default_factory=lambda: BudgetIn(trials=512, stall=None),
        description="Trials and seconds are those of all workloads together; stall ends a workload.",
    )
    runs: float | None = Field(
        default=None,
        ge=1,
        le=1e18,
        description="How often the model is to run: measuring ends where it takes longer than what it is expected to "
        "save in so many runs; null: no time is too long.",
    )
    target: TargetName = Field(default="llvm", description="A class of devices, as of a job.")
    strategy: Name = Field(
        default="model",
        description="Search strategy: model, warm, portfolio, evolution, annealing, exhaustive, random.",
    )
    seed: int = Field(default=0, ge=0, le=limits.MAX_ID)
    executor: Name = Field(default="local", description="Who compiles and measures: local or ray.")
    tenant: Name | None = Field(
        default=None, description="Whose the job is, and who its device time is charged to; null: the key's own."
    )
    priority: int = Field(default=0, ge=-100, le=100)


class ModelTimingIn(RequestModel):
    """Holds the time of whole runs of a model on a device."""

    device_key: Key
    seconds: float = Field(ge=1e-9, le=1e6, description="The median time of a run with the schedules that are known.")
    baseline: Name = Field(description="What it is compared with, such as default-schedules.")
    baseline_seconds: float = Field(ge=1e-9, le=1e6, description="Its median time, measured in the same run.")
    tuned_kernels: int = Field(ge=0, le=1_000_000, description="How many kernels had a schedule that was tuned.")
