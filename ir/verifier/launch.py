"""The verifier's rules for launches, and for the layouts of shared memory."""

import numpy as np

from ..buffer import Buffer, MemoryScope
from ..expr import WARP_LANES
from ..stmt import HardwareAxis, Kernel, Launch
from .types import RuleBroken

MAX_BLOCK_THREADS = 1024
CLUSTER_SIZES = (2, 4, 8, 16)
MAX_GRID = (2**31 - 1, 65535, 65535)


def check_launch(launch: Launch, kernel: Kernel) -> None:
    """Raise RuleBroken where the axes of a launch are none that a device has."""
    extents = {b.axis: b.extent for b in launch.axes}
    if len(extents) != len(launch.axes):
        raise RuleBroken("launch", f"launch {launch.name} binds an axis twice")
    for binding in launch.axes:
        if binding.extent < 1:
            raise RuleBroken("extent", f"{binding.axis} {binding.var} has extent {binding.extent}")
    warps = {HardwareAxis.WARP, HardwareAxis.LANE} & extents.keys()
    if warps and (HardwareAxis.THREAD in extents or len(warps) == 1):
        raise RuleBroken("launch", f"launch {launch.name} binds {', '.join(extents)}: thread alone, or warp and lane")
    if warps and extents[HardwareAxis.LANE] != WARP_LANES:
        raise RuleBroken("launch", f"launch {launch.name} has {extents[HardwareAxis.LANE]} lanes, not {WARP_LANES}")
    if launch.threads > MAX_BLOCK_THREADS:
        raise RuleBroken(
            "launch", f"launch {launch.name} has {launch.threads} threads a block, {MAX_BLOCK_THREADS} at most"
        )
    cluster = extents.get(HardwareAxis.CLUSTER)
    if cluster is not None and cluster not in CLUSTER_SIZES:
        raise RuleBroken(
            "launch", f"launch {launch.name} has clusters of {cluster}, not of {', '.join(map(str, CLUSTER_SIZES))}"
        )
    for extent, most, axis in zip(launch.blocks, MAX_GRID, "xyz", strict=True):
        if extent > most:
            raise RuleBroken("launch", f"launch {launch.name} has {extent} blocks along {axis}, {most} at most")
    if launch.min_blocks < 0:
        raise RuleBroken("launch", f"launch {launch.name} has min_blocks {launch.min_blocks}")
    for hinted, does in ((launch.evict_first, "evicts {} first"), (launch.prefetch_lines, "prefetches lines of {}")):
        unknown = set(hinted) - {b.name for b in kernel.parameters}
        if unknown:
            named = does.format(", ".join(sorted(unknown)))
            raise RuleBroken("launch", f"launch {launch.name} {named}, which is no parameter of the kernel")


def check_layout(buffer: Buffer) -> None:
    """Raise RuleBroken unless the layout of a buffer gives every element an offset of its own."""
    layout = buffer.layout
    if layout is None:
        return
    if buffer.scope is not MemoryScope.SHARED:
        raise RuleBroken("layout", f"{buffer.name} has a layout and scope {buffer.scope}")
    if len(layout.strides) != len(buffer.shape) or any(stride < 1 for stride in layout.strides):
        raise RuleBroken("layout", f"{buffer.name} of {len(buffer.shape)} dimensions has strides {layout.strides}")
    if layout.swizzle is not None and min(layout.swizzle.bits, layout.swizzle.base, layout.swizzle.shift) < 0:
        raise RuleBroken("layout", f"the swizzle of {buffer.name} is {layout.swizzle}")
    if not _is_nested(buffer) and len(np.unique(_offsets(buffer))) != buffer.elements:
        raise RuleBroken("layout", f"two elements of {buffer.name} lie at one offset")


def _is_nested(buffer: Buffer) -> bool:
    """Return whether each dimension strides over all that those of smaller strides reach, and the swizzle is its own
    inverse: then every element has an offset of its own."""
    swizzle = None if buffer.layout is None else buffer.layout.swizzle
    reach = 0
    for stride, extent in sorted(zip(buffer.strides, buffer.shape, strict=True)):
        if extent > 1 and stride <= reach:
            return False
        reach += stride * (extent - 1)
    return swizzle is None or swizzle.shift >= swizzle.bits


def _offsets(buffer: Buffer) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """Return where every element of a buffer lies, int64[shape], in elements from its start."""
    total = np.zeros(buffer.shape, dtype=np.int64)
    for dimension, stride in enumerate(buffer.strides):
        steps = np.arange(buffer.shape[dimension], dtype=np.int64) * stride
        total += steps.reshape([-1 if d == dimension else 1 for d in range(len(buffer.shape))])
    swizzle = None if buffer.layout is None else buffer.layout.swizzle
    if swizzle is None:
        return total
    mask = (1 << swizzle.bits) - 1
    swizzled: np.ndarray[tuple[int, ...], np.dtype[np.int64]] = total ^ (
        ((total >> (swizzle.base + swizzle.shift)) & mask) << swizzle.base
    )
    return swizzled
