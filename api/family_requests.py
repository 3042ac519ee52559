"""Defines the models of what clients send about shape families."""

from typing import Annotated, Any

from pydantic import ConfigDict, Field, StringConstraints

from .limits import FUNCTION_PATTERN
from .requests import Key, Name, RequestModel, TargetName

DimensionName = Annotated[str, StringConstraints(pattern=FUNCTION_PATTERN)]
Extent = Annotated[int, Field(ge=1, le=1 << 40)]


class DimensionIn(RequestModel):
    """A parameter that varies: from ``low`` to ``high`` in steps."""

    name: DimensionName
    low: Extent
    high: Extent
    step: Extent = 1


class FamilyIn(RequestModel):
    """Says which shapes a family serves, and how well. It is made from the records that there are."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "name": "projections",
                    "operator": "matmul",
                    "parameters": {"n": 64, "k": 64},
                    "dimensions": [{"name": "m", "low": 1, "high": 128}],
                }
            ]
        }
    )

    name: Name
    operator: Name
    parameters: dict[str, Any] = Field(default_factory=dict, description="Those that stay the same.")
    dimensions: list[DimensionIn] = Field(min_length=1, max_length=3)
    most: int = Field(default=8, ge=1, le=64, description="How many schedules it may have.")
    target_regret: float = Field(default=0.02, ge=0, le=10, description="The mean regret that is good enough.")
    device_key: Key | None = None
    toolchain_key: Key | None = None
    profile: Name | None = Field(default=None, description="Measuring profile, like warm-v1.")
    target: TargetName | None = Field(default=None, description="Supplies the parts that are left out.")
