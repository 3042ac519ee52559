"""What the plans of kernels for GPUs share."""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

from ...core.schedule import KnobValue
from ...core.target import Target
from ..space.columns import Columns, columns_of_setting, row_of_record
from ..tile_sketch import Plan
from .occupancy import GpuLimits, limits_of


class GpuPlan(Plan):
    """A plan for kernels on ``target`` that says what settings imply in a record of derived sizes."""

    target: Target

    @abstractmethod
    def sizes(self, columns: Columns) -> Any:
        """Return the derived sizes of the settings: a dataclass with a column, int64[n], in each field."""

    def sizes_of(self, setting: Mapping[str, KnobValue]) -> Any:
        """Return the derived sizes of one setting (knob -> value): ``sizes`` with an int in each field."""
        return row_of_record(self.sizes(columns_of_setting(self.knobs, setting, self.defaults)), 0)

    @property
    def limits(self) -> GpuLimits:
        """What a multiprocessor of the target has room for."""
        return limits_of(self.target)
