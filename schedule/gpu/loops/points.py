"""A thread, or a warp, for every point of a stage."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from ....ir.build import Writer
from ....ir.expr import WARP_LANES, Compare, CompareOp, Expr, index
from ....ir.rewrite import map_loads, substitute
from ....ir.stmt import HardwareAxis, LoopKind
from ....te.workload import Axis
from ..block_reduce import ThreadGroup
from .accumulators import Results
from .launches import Group


@dataclass(frozen=True, slots=True)
class PointSetting:
    """``lanes``: how many threads work on one point (1, a warp, or all of a block); ``items``: points that they do one
    after the other."""

    threads: int = 128
    items: int = 1
    lanes: int = 1


def write_points(w: Writer, group: Group, setting: PointSetting, prefix: str) -> None:
    """The launch of ``group``; its names begin with ``prefix``."""
    workers = setting.threads // setting.lanes
    blocks = -(-group.points // (workers * setting.items))
    warps = setting.lanes == WARP_LANES  # counted apart, so that it is plain that the lanes of a warp stay together
    threads = [(f"{prefix}warp", workers, HardwareAxis.WARP), (f"{prefix}lane", WARP_LANES, HardwareAxis.LANE)]
    if not warps:
        threads = [(f"{prefix}thread", setting.threads, HardwareAxis.THREAD)]
    with w.launch(f"{prefix}points", [(f"{prefix}block", blocks, HardwareAxis.GRID_X), *threads]) as (block, *place):
        team = ThreadGroup(place[0] * WARP_LANES + place[1] if warps else place[0], setting.lanes, workers)
        seat = (place[0], place[1]) if warps else (team.group_rank, team.thread_rank)
        kind = LoopKind.UNROLLED if setting.lanes == 1 else LoopKind.SERIAL
        with w.loop(f"{prefix}item", setting.items, kind) as item:
            point = (block * setting.items + item) * workers + seat[0]
            exact = blocks * workers * setting.items == group.points
            with w.when(None if exact else point < group.points):
                _write_point(w, group, point, seat[1], team, prefix)


def _write_point(w: Writer, group: Group, point: Expr, lane: Expr, team: ThreadGroup, prefix: str) -> None:
    stage = group.stage
    at = decoded(point, [a.extent for a in stage.axes])
    values = {a.name: e for a, e in zip(stage.axes, at, strict=True)}
    if stage.reducer is None:
        w.store(stage.tensor, at, substitute(stage.body, values))
        return
    result = Results(w, stage, (), f"{prefix}sum")
    result.start(())
    if team.threads == 1:
        _reduce_serially(w, stage.reduce_axes, values, prefix, lambda v: result.add((), substitute(stage.body, v), v))
    else:
        total = prod(a.extent for a in stage.reduce_axes)
        with w.loop(f"{prefix}step", -(-total // team.threads)) as step:
            number = step * team.threads + lane
            with w.when(None if total % team.threads == 0 else number < total):
                at_k = decoded(number, [a.extent for a in stage.reduce_axes])
                values = {**values, **{a.name: e for a, e in zip(stage.reduce_axes, at_k, strict=True)}}
                result.add((), substitute(stage.body, values), values)
        result.across(team)
    with w.when(None if team.threads == 1 else Compare(CompareOp.EQ, lane, index(0))):
        w.store(group.stored.tensor, at, finished(group, at, result.value(())))


def _reduce_serially(
    w: Writer, axes: Sequence[Axis], values: Mapping[str, Expr], prefix: str, add: Callable[[Mapping[str, Expr]], None]
) -> None:
    """Loops over ``axes``, the first outermost, around what ``add`` writes for the values of all axes."""
    if not axes:
        add(values)
        return
    with w.loop(f"{prefix}over_{axes[0].name}", axes[0].extent) as k:
        _reduce_serially(w, axes[1:], {**values, axes[0].name: k}, prefix, add)


def finished(group: Group, at: Sequence[Expr], value: Expr) -> Expr:
    """What the launch stores at ``at``, given the value of the reduction there."""
    if group.finish is None:
        return value
    body = substitute(group.finish.body, {a.name: e for a, e in zip(group.finish.axes, at, strict=True)})
    name = group.stage.name
    return map_loads(body, lambda load: value if load.buffer.name == name else load)


def decoded(number: Expr, extents: Sequence[int]) -> tuple[Expr, ...]:
    """The indices of the element with flat number ``number``; the leading one is not reduced modulo its extent."""
    found: list[Expr] = []
    for extent in reversed(extents[1:]):
        found.append(number % extent)
        number = number // extent
    return tuple(reversed([*found, number]))[: len(extents)] if extents else ()
