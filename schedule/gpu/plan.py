"""What the plans of kernels for GPUs share."""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...core.schedule import KnobValue
from ...core.target import Target
from ..space.columns import Bools, Columns, columns_of_setting, row_of_record
from ..space.constraint import Constraint
from ..tile_sketch import Plan
from .occupancy import MOST_BLOCKS, GpuLimits, limits_of


class GpuPlan(Plan):
    """A plan for kernels on ``target`` that says what settings imply in a record of derived sizes."""

    target: Target

    @abstractmethod
    def sizes(self, columns: Columns) -> Any:
        """Return the derived sizes of the settings: a dataclass with a column, int64[n], in each field."""

    def sizes_of(self, setting: Mapping[str, KnobValue]) -> Any:
        """Return the derived sizes of one setting (knob -> value): ``sizes`` with an int in each field."""
        return row_of_record(self.sizes(columns_of_setting(self.knobs, setting, self.defaults)), 0)

    def rule(self, meaning: str, knobs: Sequence[str] | None, holds: Callable[[Any], Bools]) -> Constraint:
        """Return a constraint on the derived sizes that follow from ``knobs`` (their names) alone; None: from all."""
        names = [knob.name for knob in self.knobs] if knobs is None else knobs
        return Constraint(meaning, tuple(names), lambda columns: holds(self.sizes(columns)))

    def launch_rules(self, most_shared_bytes: int, knobs: Sequence[str] | None = None) -> tuple[Constraint, Constraint]:
        """Return that a multiprocessor has room for a block, which takes at most so much shared memory, and a launch
        for all blocks. The sizes have fields ``blocks``, ``shared_bytes`` and ``resident``, the blocks that run on a
        multiprocessor at once."""
        return (
            self.rule(
                "a multiprocessor has room for the threads, the registers and the shared memory of a block, which is "
                f"at most {most_shared_bytes >> 10} KiB",
                knobs,
                lambda s: (s.resident >= 1) & (s.shared_bytes <= most_shared_bytes),
            ),
            self.rule("a launch has at most 2^31 - 1 blocks", knobs, lambda s: s.blocks <= MOST_BLOCKS),
        )

    @property
    def limits(self) -> GpuLimits:
        """What a multiprocessor of the target has room for."""
        return limits_of(self.target)
