"""A launch in which a thread, a warp or a block computes each output of a stage."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from ....ir.build import Writer
from ....ir.expr import WARP_LANES, Expr, index, minimum
from ....ir.rewrite import map_loads, substitute
from ....ir.stmt import HardwareAxis, LoopKind
from ....te.functions import equal
from ....te.workload import Axis
from ...space.columns import Size
from ...tile.delinearize import delinearize
from ...tile.ranges import range_of, write_range
from ..block_reduce import ThreadGroup
from .accumulators import ThreadAccumulators
from .launches import LoopLaunch


@dataclass(frozen=True, slots=True)
class PointSizes:
    """The knobs of such a launch; columns for a space, plain ints for one setting.

    ``threads``: threads of a block. ``threads_per_output``: how many of them compute one output together (1, a warp, or
    the block). ``items``: how many outputs they compute, one after the other, or side by side (``interleaved``): in one
    loop over the reduction, so that what does not differ among them is loaded once.
    """

    threads: Size = 128
    items: Size = 1
    threads_per_output: Size = 1
    interleaved: Size = 0

    def blocks(self, points: int) -> Size:
        """Return how many blocks compute ``points`` outputs."""
        return -(-points // (self.threads // self.threads_per_output * self.items))


def write_points(w: Writer, launch: LoopLaunch, sizes: PointSizes, prefix: str) -> None:
    """Write ``launch``; its names begin with ``prefix``."""
    groups = sizes.threads // sizes.threads_per_output
    blocks = sizes.blocks(launch.points)
    warps = sizes.threads_per_output == WARP_LANES  # axes of their own, so that lanes of a warp are seen to be uniform
    threads = [(f"{prefix}warp", groups, HardwareAxis.WARP), (f"{prefix}lane", WARP_LANES, HardwareAxis.LANE)]
    if not warps:
        threads = [(f"{prefix}thread", sizes.threads, HardwareAxis.THREAD)]
    with w.launch(f"{prefix}points", [(f"{prefix}block", blocks, HardwareAxis.GRID_X), *threads]) as (block, *at):
        thread_group = ThreadGroup(at[0] * WARP_LANES + at[1] if warps else at[0], sizes.threads_per_output, groups)
        group, lane = (at[0], at[1]) if warps else (thread_group.group_rank, thread_group.thread_rank)
        if sizes.interleaved:
            points = [(block * sizes.items + item) * groups + group for item in range(sizes.items)]
            _write_interleaved(w, launch, points, lane, thread_group, prefix)
            return
        kind = LoopKind.UNROLLED if sizes.threads_per_output == 1 else LoopKind.SERIAL
        with w.loop(f"{prefix}item", sizes.items, kind) as item:
            point = (block * sizes.items + item) * groups + group
            exact = blocks * groups * sizes.items == launch.points
            with w.when(None if exact else point < launch.points):
                _write_point(w, launch, point, lane, thread_group, prefix)


def _write_point(
    w: Writer, launch: LoopLaunch, point: Expr, lane: Expr, thread_group: ThreadGroup, prefix: str
) -> None:
    """Compute and store the output with the flat index ``point``; ``lane`` numbers the threads that share it."""
    stage = launch.stage
    at = delinearize(point, [a.extent for a in stage.axes])
    values = {a.name: e for a, e in zip(stage.axes, at, strict=True)}
    if stage.reducer is None:
        w.store(stage.tensor, at, substitute(stage.body, values))
        return
    acc = ThreadAccumulators(w, stage, (), f"{prefix}sum")
    acc.initialise(())

    found = range_of(stage)
    body = stage.body if found is None else found.body

    def accumulate(reduced: Mapping[str, Expr]) -> None:
        here = {**values, **reduced}
        acc.accumulate((), substitute(body, here), here)

    if found is None:
        _reduce(w, launch, lane, thread_group, prefix, accumulate)
    else:
        write_range(w, found, values, lane, thread_group.threads, prefix, accumulate)
    if thread_group.threads > 1:
        acc.reduce_across(thread_group)
    with w.when(None if thread_group.threads == 1 else equal(lane, 0)):
        w.store(launch.stored.tensor, at, with_epilogue(launch, at, acc.value(())))


def _write_interleaved(
    w: Writer, launch: LoopLaunch, points: Sequence[Expr], lane: Expr, thread_group: ThreadGroup, prefix: str
) -> None:
    """Compute and store the outputs with the flat indices ``points`` side by side. Those behind the last one compute
    that, too, and store nothing."""
    stage = launch.stage
    inside = [minimum(point, index(launch.points - 1)) for point in points]
    places = [delinearize(point, [a.extent for a in stage.axes]) for point in inside]
    sums = [ThreadAccumulators(w, stage, (), f"{prefix}sum_{n}") for n in range(len(points))]
    for acc in sums:
        acc.initialise(())

    def accumulate(reduced: Mapping[str, Expr]) -> None:
        for acc, at in zip(sums, places, strict=True):
            here = {**{a.name: e for a, e in zip(stage.axes, at, strict=True)}, **reduced}
            acc.accumulate((), substitute(stage.body, here), here)

    _reduce(w, launch, lane, thread_group, prefix, accumulate)
    for acc, point, at in zip(sums, points, places, strict=True):
        if thread_group.threads > 1:
            acc.reduce_across(thread_group)
        with w.when(point < launch.points, None if thread_group.threads == 1 else equal(lane, 0)):
            w.store(launch.stored.tensor, at, with_epilogue(launch, at, acc.value(())))


def _reduce(
    w: Writer,
    launch: LoopLaunch,
    lane: Expr,
    thread_group: ThreadGroup,
    prefix: str,
    accumulate: Callable[[Mapping[str, Expr]], None],
) -> None:
    """The share of a thread of the points of the reduction, around what ``accumulate`` writes for the indices of its
    axes."""
    axes = launch.stage.reduce_axes
    if thread_group.threads == 1:
        _reduce_serially(w, axes, {}, prefix, accumulate)
        return
    with w.shared_out(f"{prefix}step", prod(a.extent for a in axes), thread_group.threads, lane) as number:
        at = delinearize(number, [a.extent for a in axes])
        accumulate({a.name: e for a, e in zip(axes, at, strict=True)})


def _reduce_serially(
    w: Writer,
    axes: Sequence[Axis],
    values: Mapping[str, Expr],
    prefix: str,
    accumulate: Callable[[Mapping[str, Expr]], None],
) -> None:
    """Loops over ``axes``, the first outermost, around what ``accumulate`` writes for the indices of all axes."""
    if not axes:
        accumulate(values)
        return
    with w.loop(f"{prefix}over_{axes[0].name}", axes[0].extent) as k:
        _reduce_serially(w, axes[1:], {**values, axes[0].name: k}, prefix, accumulate)


def with_epilogue(launch: LoopLaunch, at: Sequence[Expr], value: Expr) -> Expr:
    """Return what the launch stores at the indices ``at``, where the reduction has the value ``value``."""
    if launch.epilogue is None:
        return value
    body = substitute(launch.epilogue.body, {a.name: e for a, e in zip(launch.epilogue.axes, at, strict=True)})
    name = launch.stage.name
    return map_loads(body, lambda load: value if load.buffer.name == name else load)
