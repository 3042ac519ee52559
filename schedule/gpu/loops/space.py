"""The CUDA loop sketch: any workload as launches of plain threads, products with tiles in registers and shared memory.

Light stages are inlined; every reduction or map that is left becomes one launch (``cuda_loop_groups``). The launch
with the most work has the knobs, the others take a plain setting.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ....core.schedule import KnobValue
from ....core.target import Target
from ....ir.build import Writer
from ....ir.stmt import Kernel
from ....te.workload import Workload
from ...loop_nest.nest import KERNEL_NAME
from ...space.columns import Columns
from ...space.knob import Knob, Quantity
from ...tile_sketch import Plan, TileSketch
from ..occupancy import limits_of
from .launches import Group, groups, heaviest, tile_axes
from .points import PointSetting, write_points
from .tiles import TileSetting, staged_bytes, write_tiles

YES, NO = "yes", "no"
_TILE = ("threads_y", "threads_x", "items_y", "items_x", "chunk")
_MOST_ITEMS = 64
"""Outputs of one thread: more would not stay in registers."""

QUANTITIES = (
    Quantity("blocks", "blocks", "blocks of the launch with the knobs"),
    Quantity("threads", "threads", "threads of a block"),
    Quantity("waves", "waves", "blocks for each multiprocessor"),
    Quantity("items", "outputs", "outputs of one thread or warp"),
    Quantity("registers_estimate", "registers", "registers of a thread, roughly"),
    Quantity("shared_bytes", "bytes", "shared memory of a block"),
    Quantity("bytes_in_flight", "bytes", "loads that the threads of a block begin before they use one"),
    Quantity("reuse", "operations/byte", "operations of a block for each byte it stages"),
)


@dataclass(frozen=True)
class LoopsPlan(Plan):
    """The launches of any workload; the launch with the most work has the knobs."""

    workload: Workload
    target: Target

    @cached_property
    def _groups(self) -> tuple[Group, ...]:
        return groups(self.workload)

    @cached_property
    def _main(self) -> Group:
        return heaviest(self._groups)

    @cached_property
    def knobs(self) -> tuple[Knob, ...]:
        return _knobs(self._main)

    def legal(self, columns: Columns) -> NDArray[np.bool_]:
        return _legal(self._main, self.target, columns)

    def derive(self, columns: Columns) -> dict[str, NDArray[np.float64]]:
        return _derive(self._main, self.target, columns)

    def lower(self, setting: Mapping[str, KnobValue]) -> Kernel:
        w = Writer()
        for number, part in enumerate(self._groups):
            _write(w, part, setting if part is self._main else {}, _prefix(self.workload, number))
        stored = [part.stored.tensor for part in self._groups]
        outputs = tuple(dict.fromkeys(self.workload.output_buffers))
        workspace = tuple(b for b in stored if b.name not in self.workload.outputs)
        return Kernel(KERNEL_NAME, self.workload.inputs, outputs, workspace, w.finish())


def _prefix(workload: Workload, number: int) -> str:
    """What the names of a launch begin with: no tensor's and no axis's name begins with it."""
    taken = {b.name for b in workload.inputs} | {s.name for s in workload.stages}
    taken |= {a.name for s in workload.stages for a in (*s.axes, *s.reduce_axes)}
    stem = "l"
    while any(name.startswith(stem) and name[len(stem) : len(stem) + 1].isdigit() for name in taken):
        stem += "l"
    return f"{stem}{number}_"


def _write(w: Writer, group: Group, values: Mapping[str, KnobValue], prefix: str) -> None:
    if tile_axes(group.stage) is not None:
        tile = {**asdict(TileSetting()), **values}
        y, x, items_y, items_x, chunk = (int(tile[name]) for name in _TILE)
        write_tiles(w, group, TileSetting(y, x, items_y, items_x, chunk, tile["staged"] in (True, YES)), prefix)
        return
    point = {**asdict(PointSetting(lanes=32 if group.reduction >= 256 else 1)), **values}
    write_points(w, group, PointSetting(*(int(point[name]) for name in ("threads", "items", "lanes"))), prefix)


def _knobs(group: Group) -> tuple[Knob, ...]:
    if tile_axes(group.stage) is not None:
        return (
            Knob("threads_y", (4, 8, 16, 32), "threads of a block along the tile's rows"),
            Knob("threads_x", (8, 16, 32), "threads of a block along the tile's columns"),
            Knob("items_y", (1, 2, 4, 8), "outputs of a thread along the rows"),
            Knob("items_x", (1, 2, 4, 8), "outputs of a thread along the columns"),
            Knob("chunk", (4, 8, 16, 32), "steps of the reduction staged at a time"),
            Knob("staged", (NO, YES), "whether what a block reads goes through shared memory"),
        )
    lanes = (1, 32, 256) if group.reduction >= 512 else (1, 32) if group.reduction >= 32 else (1,)
    return (
        Knob("threads", (64, 128, 256, 512), "threads of a block"),
        Knob("items", (1, 2, 4), "outputs of a thread (or a warp)"),
        Knob("lanes", lanes, "threads that share one output: one, a warp, or a block"),
    )


def _legal(group: Group, target: Target, columns: Columns) -> NDArray[np.bool_]:
    if tile_axes(group.stage) is None:
        lanes = columns.ints("lanes")
        legal: NDArray[np.bool_] = (lanes <= 32) | ((lanes == columns.ints("threads")) & (columns.ints("items") == 1))
        return legal
    threads = columns.ints("threads_y") * columns.ints("threads_x")
    items = columns.ints("items_y") * columns.ints("items_x")
    axes = tile_axes(group.stage)
    assert axes is not None
    legal = (threads >= 64) & (threads <= 512) & (items <= _MOST_ITEMS)
    legal &= _shared_bytes(group, columns) <= limits_of(target).shared_bytes_per_block
    staged = columns.flags("staged", YES)
    legal &= staged | (columns.ints("chunk") == 4)  # without staging the chunk changes nothing
    for name, extent in (("y", axes.y.extent), ("x", axes.x.extent)):
        tile = columns.ints(f"threads_{name}") * columns.ints(f"items_{name}")
        legal &= (tile < 2 * extent) | ((columns.ints(f"items_{name}") == 1) & (tile <= 32))
    return legal


def _shared_bytes(group: Group, columns: Columns) -> NDArray[np.int64]:
    """Shared memory of a block for every setting; settings are few, so each is worked out once."""
    rows = np.stack([*(columns.ints(n) for n in _TILE), columns.flags("staged", YES).astype(np.int64)], axis=1)
    unique, where = np.unique(rows, axis=0, return_inverse=True)
    sizes = []
    for y, x, items_y, items_x, chunk, staged in unique.tolist():
        sizes.append(staged_bytes(group, TileSetting(y, x, items_y, items_x, chunk, bool(staged))))
    return np.array(sizes, dtype=np.int64)[where.reshape(-1)]


def _derive(group: Group, target: Target, columns: Columns) -> dict[str, NDArray[np.float64]]:
    axes = tile_axes(group.stage)
    width = max((load.bytes for load in [b.tensor.dtype for b in (group.stage,)]), default=4)
    if axes is None:
        threads, items = columns.ints("threads"), columns.ints("items")
        blocks = -(-group.points * columns.ints("lanes") // (threads * items))
        shared, registers = np.zeros_like(threads), 24 + 4 * items
        flight, reuse = threads * items * width, np.ones_like(threads)
    else:
        tile_y = columns.ints("threads_y") * columns.ints("items_y")
        tile_x = columns.ints("threads_x") * columns.ints("items_x")
        threads = columns.ints("threads_y") * columns.ints("threads_x")
        items = columns.ints("items_y") * columns.ints("items_x")
        rest = group.points // (axes.y.extent * axes.x.extent)
        blocks = rest * -(-axes.y.extent // tile_y) * -(-axes.x.extent // tile_x)
        shared = _shared_bytes(group, columns)
        registers = 32 + items + 2 * (columns.ints("items_y") + columns.ints("items_x"))
        flight = np.where(shared > 0, shared, threads * width)
        reuse = tile_y * tile_x * columns.ints("chunk") // np.maximum(flight, 1)
    columns_of = {
        "blocks": blocks,
        "threads": threads,
        "waves": blocks / target.threads,
        "items": items,
        "registers_estimate": registers,
        "shared_bytes": shared,
        "bytes_in_flight": flight,
        "reuse": reuse,
    }
    return {name: np.asarray(column, dtype=np.float64) for name, column in columns_of.items()}


CUDA_LOOPS = TileSketch("cuda_loops", 2, QUANTITIES, LoopsPlan, generic=True)
