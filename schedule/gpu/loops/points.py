"""A launch in which a thread, a warp or a block computes each output of a stage."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from ....ir.build import Writer
from ....ir.expr import WARP_LANES, Expr
from ....ir.rewrite import map_loads, substitute
from ....ir.stmt import HardwareAxis, LoopKind
from ....te.functions import equal
from ....te.workload import Axis
from ...space.columns import Size
from ...tile.delinearize import delinearize
from ..block_reduce import ThreadGroup
from .accumulators import ThreadAccumulators
from .launches import LoopLaunch


@dataclass(frozen=True, slots=True)
class PointSizes:
    """The knobs of such a launch; columns for a space, plain ints for one setting.

    ``threads``: threads of a block. ``threads_per_output``: how many of them compute one output together (1, a warp, or
    the block). ``items``: how many outputs they compute one after the other.
    """

    threads: Size = 128
    items: Size = 1
    threads_per_output: Size = 1

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
    if thread_group.threads == 1:
        _reduce_serially(
            w, stage.reduce_axes, values, prefix, lambda v: acc.accumulate((), substitute(stage.body, v), v)
        )
    else:
        total = prod(a.extent for a in stage.reduce_axes)
        with w.shared_out(f"{prefix}step", total, thread_group.threads, lane) as number:
            at_k = delinearize(number, [a.extent for a in stage.reduce_axes])
            values = {**values, **{a.name: e for a, e in zip(stage.reduce_axes, at_k, strict=True)}}
            acc.accumulate((), substitute(stage.body, values), values)
        acc.reduce_across(thread_group)
    with w.when(None if thread_group.threads == 1 else equal(lane, 0)):
        w.store(launch.stored.tensor, at, with_epilogue(launch, at, acc.value(())))


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
