"""What the plans of kernels for GPUs share."""

from collections.abc import Sequence

from ...core.target import Target
from ..space.constraint import Constraint
from ..tile_sketch import SizedPlan
from .occupancy import MOST_BLOCKS, GpuLimits, limits_of


class GpuPlan(SizedPlan):
    """A plan for kernels on ``target``."""

    target: Target

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
