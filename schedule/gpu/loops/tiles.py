"""A launch in which each block computes a tile of a reduction. Threads keep a small tile of accumulators each, and what
the block loads is staged in shared memory, ``block_k`` points of the longest reduction axis at a time."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod

from ....ir.buffer import Buffer, MemoryScope
from ....ir.build import Writer
from ....ir.expr import Expr, Load, Select, conjunction, const, index, logical_and
from ....ir.linear_form import LinearForm, affine_form
from ....ir.rewrite import loads_of
from ....ir.stmt import HardwareAxis
from ....te.workload import Axis
from ...space.columns import Size
from ...tile.delinearize import delinearize
from ...tile.stage_body import scalar_at
from .accumulators import ThreadAccumulators
from .launches import LoopLaunch, TileAxes, footprint, tile_axes
from .points import with_epilogue

SHARED_ALIGNMENT_BYTES = 128


@dataclass(frozen=True, slots=True)
class TileSizes:
    """The knobs of such a launch; columns for a space, plain ints for one setting.

    ``threads_y`` and ``threads_x``: threads of a block along both axes of the tile. ``items_y`` and ``items_x``:
    outputs of a thread along them. ``block_k``: points of the reduction between two barriers. ``staged``: whether loads
    go through shared memory (1) or not (0).
    """

    threads_y: Size = 16
    threads_x: Size = 16
    items_y: Size = 4
    items_x: Size = 4
    block_k: Size = 8
    staged: Size = 1

    @property
    def threads(self) -> Size:
        return self.threads_y * self.threads_x

    @property
    def items(self) -> Size:
        """Outputs of a thread."""
        return self.items_y * self.items_x

    @property
    def tile_y(self) -> Size:
        return self.threads_y * self.items_y

    @property
    def tile_x(self) -> Size:
        return self.threads_x * self.items_x

    def extents(self, axes: TileAxes) -> dict[str, Size]:
        """Return how many values of each tiled axis a block covers between two barriers."""
        return {axes.y.name: self.tile_y, axes.x.name: self.tile_x, axes.k.name: self.block_k}

    def blocks(self, launch: LoopLaunch, axes: TileAxes) -> Size:
        """Return how many blocks the launch has."""
        rest = launch.points // (axes.y.extent * axes.x.extent)
        return rest * -(-axes.y.extent // self.tile_y) * -(-axes.x.extent // self.tile_x)

    def loaded_bytes(self, launch: LoopLaunch, axes: TileAxes) -> Size:
        """Bytes of shared memory that hold what a block loads between two barriers, staged or not."""
        total: Size = 0
        for load in dict.fromkeys(loads_of(launch.stage.body)):
            elements = prod(footprint(load, self.extents(axes)))
            aligned = -(-elements * load.buffer.dtype.bytes // SHARED_ALIGNMENT_BYTES) * SHARED_ALIGNMENT_BYTES
            total = total + aligned * (elements > 1)
        return total

    def shared_bytes(self, launch: LoopLaunch, axes: TileAxes) -> Size:
        """Shared memory of a block."""
        return self.loaded_bytes(launch, axes) * self.staged


@dataclass(frozen=True, slots=True)
class _TileFrame:
    """Where a block is in its launch: ``thread`` is the flat index of the thread. ``fixed``: axis name -> index, for
    the axes that do not vary within a step of a block. ``y``, ``x`` and ``k``: the first index of the step's tile."""

    launch: LoopLaunch
    axes: TileAxes
    sizes: TileSizes
    prefix: str
    thread: Expr
    fixed: Mapping[str, Expr]
    y: Expr
    x: Expr
    k: Expr


def write_tiles(w: Writer, launch: LoopLaunch, sizes: TileSizes, prefix: str) -> None:
    """Write ``launch``, which has tile axes; its names begin with ``prefix``."""
    axes = tile_axes(launch.stage)
    assert axes is not None
    others = [a for a in launch.stage.axes if a not in (axes.y, axes.x)]
    grid = [*(a.extent for a in others), -(-axes.y.extent // sizes.tile_y), -(-axes.x.extent // sizes.tile_x)]
    bounds = [
        (f"{prefix}block", prod(grid), HardwareAxis.GRID_X),
        (f"{prefix}thread", sizes.threads, HardwareAxis.THREAD),
    ]
    with w.launch(f"{prefix}tiles", bounds) as (block, thread):
        *rest, by, bx = delinearize(block, grid)
        fixed = {a.name: e for a, e in zip(others, rest, strict=True)}
        acc = ThreadAccumulators(w, launch.stage, (sizes.items_y, sizes.items_x), f"{prefix}sum")
        with (
            w.unrolled(f"{prefix}start_y", sizes.items_y) as i,
            w.unrolled(f"{prefix}start_x", sizes.items_x) as j,
        ):
            acc.initialise((i, j))
        outer = [a for a in launch.stage.reduce_axes if a != axes.k]
        y, x = by * sizes.tile_y, bx * sizes.tile_x
        frame = _TileFrame(launch, axes, sizes, prefix, thread, fixed, y, x, index(0))
        _write_reduction(w, frame, outer, acc)
        with (
            w.unrolled(f"{prefix}end_y", sizes.items_y) as i,
            w.unrolled(f"{prefix}end_x", sizes.items_x) as j,
        ):
            y, x = _output(frame, i, j)
            at = tuple({**fixed, axes.y.name: y, axes.x.name: x}[a.name] for a in launch.stage.axes)
            with w.when(_inside(frame, y, x, None)):
                w.store(launch.stored.tensor, at, with_epilogue(launch, at, acc.value((i, j))))


def _write_reduction(w: Writer, frame: _TileFrame, outer: list[Axis], acc: ThreadAccumulators) -> None:
    """Loops over the other reduction axes ``outer``, then over steps of ``block_k`` points of k."""
    if outer:
        with w.loop(f"{frame.prefix}over_{outer[0].name}", outer[0].extent) as v:
            _write_reduction(w, replace(frame, fixed={**frame.fixed, outer[0].name: v}), outer[1:], acc)
        return
    sizes = frame.sizes
    with w.loop(f"{frame.prefix}chunk", -(-frame.axes.k.extent // sizes.block_k)) as step:
        here = replace(frame, k=step * sizes.block_k)
        staged = {load: _stage(w, here, load, n) for n, load in enumerate(_staged_loads(here))}
        if staged:
            w.barrier()
        with w.loop(f"{frame.prefix}k", sizes.block_k) as point:
            with (
                w.unrolled(f"{frame.prefix}y", sizes.items_y) as i,
                w.unrolled(f"{frame.prefix}x", sizes.items_x) as j,
            ):
                y, x = _output(here, i, j)
                k = here.k + point
                values = {**here.fixed, here.axes.y.name: y, here.axes.x.name: x, here.axes.k.name: k}
                with w.when(_inside(here, y, x, k)):
                    acc.accumulate((i, j), _body(here, staged, values), values)
        if staged:
            w.barrier()


def _output(frame: _TileFrame, i: Expr, j: Expr) -> tuple[Expr, Expr]:
    """Return the y and x of output (i, j) of this thread. Neighbouring threads have neighbouring outputs."""
    s = frame.sizes
    return (
        frame.y + (i * s.threads_y + frame.thread // s.threads_x),
        frame.x + (j * s.threads_x + frame.thread % s.threads_x),
    )


def _inside(frame: _TileFrame, y: Expr, x: Expr, k: Expr | None) -> Expr | None:
    """Return the condition that a point lies in the tensor and the reduction; None where tiles fit exactly."""
    s, terms = frame.sizes, []
    for value, axis, size in ((y, frame.axes.y, s.tile_y), (x, frame.axes.x, s.tile_x), (k, frame.axes.k, s.block_k)):
        if value is not None and axis.extent % size:
            terms.append(value < axis.extent)
    return conjunction(*terms)


def _staged_loads(frame: _TileFrame) -> list[Load]:
    """Return the loads that several threads or outputs share, each once, in order."""
    if not frame.sizes.staged:
        return []
    extents = frame.sizes.extents(frame.axes)
    return [load for load in dict.fromkeys(loads_of(frame.launch.stage.body)) if prod(footprint(load, extents)) > 1]


def _base(frame: _TileFrame, form: LinearForm) -> Expr:
    """Return the least index that the block touches during this step."""
    extents = frame.sizes.extents(frame.axes)
    starts = {frame.axes.y.name: frame.y, frame.axes.x.name: frame.x, frame.axes.k.name: frame.k, **frame.fixed}
    total: Expr = index(form.constant + sum(min(0, form.coefficient(n)) * (c - 1) for n, c in extents.items()))
    for name, coefficient in form.coefficients.items():
        total = total + starts[name] * coefficient
    return total


def _stage(w: Writer, frame: _TileFrame, load: Load, number: int) -> tuple[Buffer, tuple[Expr, ...]]:
    """Copy what the block reads of ``load`` during this step to shared memory. Returns the shared buffer and the
    indices from which its first element comes. Elements outside the tensor become zeros, which no output uses."""
    shape = footprint(load, frame.sizes.extents(frame.axes))
    shared = w.allocate(f"{frame.prefix}staged{number}", shape, load.buffer.dtype, MemoryScope.SHARED)
    base = tuple(_base(frame, _affine(e)) for e in load.indices)
    with w.shared_out(f"{frame.prefix}copy{number}", prod(shape), frame.sizes.threads, frame.thread) as element:
        local = delinearize(element, shape)
        at = tuple(b + e for b, e in zip(base, local, strict=True))
        inside = [
            c for e, extent in zip(at, load.buffer.shape, strict=True) for c in (e >= index(0), e < index(extent))
        ]
        zero = const(0, load.buffer.dtype)
        w.store(shared, local, Select(logical_and(*inside), Load(load.buffer, at), zero))
    return shared, base


def _body(
    frame: _TileFrame, staged: Mapping[Load, tuple[Buffer, tuple[Expr, ...]]], values: Mapping[str, Expr]
) -> Expr:
    """Return the stage's body at ``values``, with staged loads redirected to shared memory."""

    def redirected(load: Load) -> Expr:
        if load not in staged:
            return load
        shared, base = staged[load]
        return Load(shared, tuple(e - b for e, b in zip(load.indices, base, strict=True)))

    return scalar_at(frame.launch.stage.body, values, redirected)


def _affine(e: Expr) -> LinearForm:
    affine = affine_form(e)
    assert affine is not None, "only loads that have a footprint are staged"
    return affine
