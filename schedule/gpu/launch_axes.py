"""The axes of a launch whose blocks are made of warps."""

from ...ir.expr import WARP_LANES
from ...ir.stmt import HardwareAxis


def warp_axes(
    blocks: int, warps: int, cluster: int = 1, *, block: str = "block", rank: str = "rank"
) -> list[tuple[str, int, HardwareAxis]]:
    """Return the axes (name, extent, axis) over thread blocks, or over clusters and the blocks of one where it has
    several, over the warps of a block, and over lanes."""
    ranks = [(rank, cluster, HardwareAxis.CLUSTER)] if cluster > 1 else []
    warp, lane = ("warp", warps, HardwareAxis.WARP), ("lane", WARP_LANES, HardwareAxis.LANE)
    return [(block, blocks, HardwareAxis.GRID_X), *ranks, warp, lane]
