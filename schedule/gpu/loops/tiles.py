"""A tile of a reduction for every block: threads keep a small tile of outputs each in registers, and what they load is
staged in shared memory, chunk by chunk of the longest reduction axis."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from ....ir.buffer import Buffer, MemoryScope
from ....ir.build import Writer
from ....ir.expr import Expr, Load, Select, const, index, logical_and
from ....ir.linear_form import LinearForm, affine_form
from ....ir.rewrite import loads_of
from ....ir.stmt import HardwareAxis, LoopKind
from ....te.workload import Axis
from ...tile.stage_body import value_at
from .accumulators import Results
from .launches import Group, TileAxes, spans, tile_axes
from .points import decoded, finished


@dataclass(frozen=True, slots=True)
class TileSetting:
    """Threads of a block along y and x, outputs of a thread along y and x, and ``chunk`` of the reduction staged at a
    time; ``staged``: whether loads go through shared memory."""

    threads_y: int = 16
    threads_x: int = 16
    items_y: int = 4
    items_x: int = 4
    chunk: int = 8
    staged: bool = True

    @property
    def tile_y(self) -> int:
        return self.threads_y * self.items_y

    @property
    def tile_x(self) -> int:
        return self.threads_x * self.items_x

    def ranges(self, axes: TileAxes) -> dict[str, int]:
        """How many values of each tiled axis a block covers at a time."""
        return {axes.y.name: self.tile_y, axes.x.name: self.tile_x, axes.k.name: self.chunk}


@dataclass(frozen=True, slots=True)
class _Tile:
    """The frame of one launch: where its block, thread and chunk stand."""

    group: Group
    axes: TileAxes
    setting: TileSetting
    prefix: str
    thread: Expr
    fixed: Mapping[str, Expr]
    """The axes that do not vary within a chunk of a block."""
    y: Expr
    """First y of the block; likewise x and k."""
    x: Expr
    k: Expr


def write_tiles(w: Writer, group: Group, setting: TileSetting, prefix: str) -> None:
    """The launch of ``group``, which has tile axes; its names begin with ``prefix``."""
    axes = tile_axes(group.stage)
    assert axes is not None
    others = [a for a in group.stage.axes if a not in (axes.y, axes.x)]
    counts = [*(a.extent for a in others), -(-axes.y.extent // setting.tile_y), -(-axes.x.extent // setting.tile_x)]
    threads = setting.threads_y * setting.threads_x
    bounds = [
        (f"{prefix}block", prod(counts), HardwareAxis.GRID_X),
        (f"{prefix}thread", threads, HardwareAxis.THREAD),
    ]
    with w.launch(f"{prefix}tiles", bounds) as (block, thread):
        *rest, by, bx = decoded(block, counts)
        fixed = {a.name: e for a, e in zip(others, rest, strict=True)}
        result = Results(w, group.stage, (setting.items_y, setting.items_x), f"{prefix}sum")
        with (
            w.loop(f"{prefix}start_y", setting.items_y, LoopKind.UNROLLED) as i,
            w.loop(f"{prefix}start_x", setting.items_x, LoopKind.UNROLLED) as j,
        ):
            result.start((i, j))
        outer = [a for a in group.stage.reduce_axes if a != axes.k]
        tile = _Tile(group, axes, setting, prefix, thread, fixed, by * setting.tile_y, bx * setting.tile_x, index(0))
        _write_reduction(w, tile, outer, result)
        with (
            w.loop(f"{prefix}end_y", setting.items_y, LoopKind.UNROLLED) as i,
            w.loop(f"{prefix}end_x", setting.items_x, LoopKind.UNROLLED) as j,
        ):
            y, x = _place(tile, i, j)
            at = tuple({**fixed, axes.y.name: y, axes.x.name: x}[a.name] for a in group.stage.axes)
            with w.when(_inside(tile, y, x, None)):
                w.store(group.stored.tensor, at, finished(group, at, result.value((i, j))))


def _write_reduction(w: Writer, tile: _Tile, outer: list[Axis], result: Results) -> None:
    """Loops over the other reduction axes, then over chunks of k."""
    if outer:
        with w.loop(f"{tile.prefix}over_{outer[0].name}", outer[0].extent) as v:
            fixed = {**tile.fixed, outer[0].name: v}
            _write_reduction(w, _at(tile, fixed, tile.k), outer[1:], result)
        return
    setting = tile.setting
    with w.loop(f"{tile.prefix}chunk", -(-tile.axes.k.extent // setting.chunk)) as chunk:
        here = _at(tile, tile.fixed, chunk * setting.chunk)
        staged = {load: _stage(w, here, load, n) for n, load in enumerate(_staged_loads(here))}
        if staged:
            w.barrier()
        with w.loop(f"{tile.prefix}k", setting.chunk) as step:
            with (
                w.loop(f"{tile.prefix}y", setting.items_y, LoopKind.UNROLLED) as i,
                w.loop(f"{tile.prefix}x", setting.items_x, LoopKind.UNROLLED) as j,
            ):
                y, x = _place(here, i, j)
                k = here.k + step
                values = {**here.fixed, here.axes.y.name: y, here.axes.x.name: x, here.axes.k.name: k}
                with w.when(_inside(here, y, x, k)):
                    result.add((i, j), _body(here, staged, values), values)
        if staged:
            w.barrier()


def _at(tile: _Tile, fixed: Mapping[str, Expr], k: Expr) -> _Tile:
    return _Tile(tile.group, tile.axes, tile.setting, tile.prefix, tile.thread, fixed, tile.y, tile.x, k)


def _place(tile: _Tile, i: Expr, j: Expr) -> tuple[Expr, Expr]:
    """The y and x of an output of this thread: neighbouring threads hold neighbouring outputs."""
    s = tile.setting
    return (
        tile.y + (i * s.threads_y + tile.thread // s.threads_x),
        tile.x + (j * s.threads_x + tile.thread % s.threads_x),
    )


def _inside(tile: _Tile, y: Expr, x: Expr, k: Expr | None) -> Expr | None:
    """The condition that a point lies in the tensor and the reduction, None where tiles fit exactly."""
    s, terms = tile.setting, []
    for value, axis, size in ((y, tile.axes.y, s.tile_y), (x, tile.axes.x, s.tile_x), (k, tile.axes.k, s.chunk)):
        if value is not None and axis.extent % size:
            terms.append(value < axis.extent)
    return logical_and(*terms) if terms else None


def _staged_loads(tile: _Tile) -> list[Load]:
    """The loads that several threads or outputs share, each once, in order."""
    if not tile.setting.staged:
        return []
    ranges = tile.setting.ranges(tile.axes)
    return [load for load in dict.fromkeys(loads_of(tile.group.stage.body)) if prod(spans(load, ranges)) > 1]


def staged_bytes(group: Group, setting: TileSetting) -> int:
    """Shared memory of a block."""
    axes = tile_axes(group.stage)
    if axes is None or not setting.staged:
        return 0
    ranges, total = setting.ranges(axes), 0
    for load in dict.fromkeys(loads_of(group.stage.body)):
        elements = prod(spans(load, ranges))
        total += -(-elements * load.buffer.dtype.bytes // 128) * 128 if elements > 1 else 0
    return total


def _base(tile: _Tile, form: LinearForm) -> Expr:
    """The least index that the block touches during this chunk."""
    ranges = tile.setting.ranges(tile.axes)
    starts = {tile.axes.y.name: tile.y, tile.axes.x.name: tile.x, tile.axes.k.name: tile.k, **tile.fixed}
    total: Expr = index(form.constant + sum(min(0, form.coefficient(n)) * (c - 1) for n, c in ranges.items()))
    for name, coefficient in form.coefficients.items():
        total = total + starts[name] * coefficient
    return total


def _stage(w: Writer, tile: _Tile, load: Load, number: int) -> tuple[Buffer, tuple[Expr, ...]]:
    """Copy what the block reads of ``load`` during this chunk; the shared buffer and where its first element comes
    from. Places outside the tensor get zeros: nothing that counts reads them."""
    shape = spans(load, tile.setting.ranges(tile.axes))
    shared = w.allocate(f"{tile.prefix}staged{number}", shape, load.buffer.dtype, MemoryScope.SHARED)
    base = tuple(_base(tile, _affine(e)) for e in load.indices)
    threads, total = tile.setting.threads_y * tile.setting.threads_x, prod(shape)
    with w.loop(f"{tile.prefix}copy{number}", -(-total // threads)) as turn:
        element = turn * threads + tile.thread
        with w.when(None if total % threads == 0 else element < total):
            local = decoded(element, shape)
            at = tuple(b + e for b, e in zip(base, local, strict=True))
            inside = [
                c for e, extent in zip(at, load.buffer.shape, strict=True) for c in (e >= index(0), e < index(extent))
            ]
            zero = const(0, load.buffer.dtype)
            w.store(shared, local, Select(logical_and(*inside), Load(load.buffer, at), zero))
    return shared, base


def _body(tile: _Tile, staged: Mapping[Load, tuple[Buffer, tuple[Expr, ...]]], values: Mapping[str, Expr]) -> Expr:
    """The stage's body at ``values``, staged loads turned to shared memory."""

    def turned(load: Load) -> Expr:
        if load not in staged:
            return load
        shared, base = staged[load]
        return Load(shared, tuple(e - b for e, b in zip(load.indices, base, strict=True)))

    return value_at(tile.group.stage.body, values, turned)


def _affine(e: Expr) -> LinearForm:
    form = affine_form(e)
    assert form is not None, "only what has spans is staged"
    return form
