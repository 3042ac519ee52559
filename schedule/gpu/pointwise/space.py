"""Pointwise kernels for graphics processors: every output element from elements that lie as it does.

Chains of functions, row and column broadcasts, guarded shifts, several outputs of one shape. A thread computes
``unroll`` vectors; all that they need is taken into registers before the first is computed::

    for u in unrolled(unroll):  x_held[u, :] = X[vector (block*unroll + u)*threads + thread]
    for u in unrolled(unroll):  Y[vector …] = f(x_held[u, :])
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod

import numpy as np
from numpy.typing import NDArray

from ....core.schedule import KnobValue
from ....core.target import Target
from ....ir.buffer import Buffer
from ....ir.build import Writer
from ....ir.expr import Expr, Load, Var, const, walk
from ....ir.rewrite import free_variables, map_loads, substitute
from ....ir.stmt import HardwareAxis, Kernel, LoopKind
from ....te.workload import Axis, Stage, Workload
from ...loop_nest.nest import KERNEL_NAME
from ...problems.outputs import resolved_outputs
from ...space.columns import Bools, Columns, Ints
from ...space.knob import Knob, Quantity
from ...tile.delinearize import places
from ...tile.register_reads import Held, Names, flat_offset, follows, hold, take, unneeded_guards_dropped
from ...tile.stage_body import Read, reads_of, value_at, with_reads
from ...tile_sketch import Plan, TileSketch
from ..l2_prefetch import L2Prefetch
from ..occupancy import MOST_BLOCKS, limits_of
from ..quantities import GPU_QUANTITIES, gpu_columns

MAX_VECTOR_BYTES = 16
MAX_REGISTERS = 160
LEAST_RUN_BYTES = 16
"""Neighbours that a read must have along the innermost axis where its other axes stand in another order."""
SPARE_REGISTERS = 12
"""Registers for addresses and constants, roughly (from compiled kernels)."""

QUANTITIES = (
    *GPU_QUANTITIES,
    Quantity("vector_bytes", "B", "widest access"),
    Quantity("thread_elements", "elements", "output elements that a thread computes at a time"),
    Quantity("trips", "tiles", "tiles that a block works through"),
)


@dataclass(frozen=True)
class PointwisePlan(Plan):
    """``stages``: the outputs, with bodies on ``axes``, whose element at ``place`` they compute. ``reads``: what they
    read, as the bodies have it -> as it is done."""

    workload: Workload
    target: Target
    stages: tuple[Stage, ...]
    axes: tuple[Axis, ...]
    place: tuple[Expr, ...]
    reads: Mapping[Read, Read]

    @property
    def lane_axis(self) -> Axis:
        """The innermost axis that is one: neighbours along it lie side by side."""
        return next((a for a in reversed(self.axes) if a.extent > 1), self.axes[-1] if self.axes else Axis("", 1))

    @property
    def wide_reads(self) -> tuple[Read, ...]:
        done = dict.fromkeys(self.reads.values())
        return tuple(r for r in done if follows(r, self.lane_axis.name))

    @property
    def knobs(self) -> tuple[Knob, ...]:
        return (
            Knob("vector", self._vectors(), "neighbouring elements that a thread computes at once"),
            Knob("unroll", (1, 2, 4), "vectors of a thread, all read before the first is computed"),
            Knob("threads", (128, 256, 512), "threads of a block"),
            Knob("persistent", (0, 1), "whether as many blocks as fit work through all tiles, or there is one a tile"),
            Knob("stream", (0, 1), "whether caches need not keep what passes"),
        )

    def _vectors(self) -> tuple[int, ...]:
        """Vectors of 8 and 16 bytes of the narrowest element that follows the lanes, of 32 at most of the widest."""
        sizes = [s.tensor.dtype.bytes for s in self.stages] + [r.load.dtype.bytes for r in self.wide_reads]
        fitting = [
            v
            for v in (1, 2, 4, 8, 16)
            if self.lane_axis.extent % v == 0 and v * min(sizes) <= MAX_VECTOR_BYTES and v * max(sizes) <= 32
        ]
        return tuple(v for v in fitting if v * min(sizes) >= 8 or v == fitting[-1])

    def sizes(self, vector: Ints, unroll: Ints, threads: Ints, persistent: Bools) -> tuple[Ints, Ints, Ints, Ints]:
        """Vectors in all, tiles, blocks, and registers of a thread."""
        vectors = prod(a.extent for a in self.axes) // vector
        tiles = -(-vectors // (unroll * threads))
        held = sum(r.load.dtype.bytes for r in self.wide_reads) * vector
        narrow = 4 * (len(set(self.reads.values())) - len(self.wide_reads))
        registers = SPARE_REGISTERS + -(-(held + narrow) * unroll // 4) + 2 * vector
        resident = limits_of(self.target).resident_blocks(threads, registers, 0)
        at_once = np.maximum(resident, 1) * self.target.threads
        return vectors, tiles, np.where(persistent, np.minimum(tiles, at_once), tiles), registers

    def _sizes(self, columns: Columns) -> tuple[Ints, Ints, Ints, Ints]:
        vector, unroll, threads = columns.ints("vector"), columns.ints("unroll"), columns.ints("threads")
        return self.sizes(vector, unroll, threads, columns.flags("persistent", 1))

    def early(self, threads: Ints, registers: Ints) -> Ints:
        """Blocks that may be there before the launch before has ended."""
        limits = limits_of(self.target)
        return limits.early_blocks(limits.resident_blocks(threads, registers, 0), self.target.threads)

    def legal(self, columns: Columns) -> Bools:
        vector, unroll, threads = columns.ints("vector"), columns.ints("unroll"), columns.ints("threads")
        vectors, tiles, blocks, registers = self._sizes(columns)
        smallest = (unroll == 1) & (threads == 128)
        persistent = columns.flags("persistent", 1)
        # Blocks that stay pay only where each has much to do at a time: few such settings, with the widest vectors.
        pays = (tiles > blocks) & (unroll > 1) & (vector == self._vectors()[-1])
        fits = (registers <= MAX_REGISTERS) & (blocks <= MOST_BLOCKS)
        legal: Bools = ((unroll * threads <= vectors) | smallest) & (~persistent | pays) & fits
        return legal

    def derive(self, columns: Columns) -> Mapping[str, NDArray[np.float64]]:
        vector, unroll = columns.ints("vector"), columns.ints("unroll")
        _, tiles, blocks, registers = self._sizes(columns)
        held = sum(r.load.dtype.bytes for r in self.wide_reads) * vector
        widest = max(s.tensor.dtype.bytes for s in self.stages)
        common = gpu_columns(
            limits_of(self.target),
            self.target.threads,
            blocks=blocks,
            threads=columns.ints("threads"),
            registers=registers,
            shared=np.zeros_like(blocks),
            wanted=held * unroll,
        )
        return {
            **common,
            "vector_bytes": np.minimum(vector * widest, MAX_VECTOR_BYTES).astype(np.float64),
            "thread_elements": (vector * unroll).astype(np.float64),
            "trips": -(-tiles // blocks).astype(np.float64),
        }

    def lower(self, setting: Mapping[str, KnobValue]) -> Kernel:
        return _Program(self, setting).kernel()


class _Program:
    """The kernel of one setting."""

    def __init__(self, plan: PointwisePlan, setting: Mapping[str, KnobValue]) -> None:
        self.plan = plan
        self.vector, self.unroll, self.threads = (int(setting[k]) for k in ("vector", "unroll", "threads"))
        self.vectors = prod(a.extent for a in plan.axes) // self.vector
        self.tiles = -(-self.vectors // (self.unroll * self.threads))
        vector, unroll, threads = (np.array([n], np.int64) for n in (self.vector, self.unroll, self.threads))
        _, _, blocks, registers = plan.sizes(vector, unroll, threads, np.array([setting["persistent"] == 1]))
        self.blocks = int(blocks[0])
        self.ahead = int(plan.early(threads, registers)[0])
        buffers = (*plan.workload.inputs, *(s.tensor for s in plan.stages))
        self.evict_first = tuple(b.name for b in self._large(buffers)) if setting["stream"] else ()
        self.names = Names({b.name for b in buffers} | {a.name for a in plan.axes})
        self.w = Writer()

    def _large(self, buffers: tuple[Buffer, ...]) -> list[Buffer]:
        """What is as large as an output; smaller buffers are read again."""
        whole = self.plan.stages[0].tensor.elements
        return [b for b in buffers if b.elements >= whole]

    def kernel(self) -> Kernel:
        plan, w = self.plan, self.w
        bounds = [
            (self.names.fresh("block"), self.blocks, HardwareAxis.GRID_X),
            (self.names.fresh("thread"), self.threads, HardwareAxis.THREAD),
        ]
        with w.launch(KERNEL_NAME, bounds, evict_first=self.evict_first) as (block, thread):
            self._ask(block, thread, following=False)
            trips = -(-self.tiles // self.blocks)
            if trips == 1:
                self._tile(block, thread, exact=True)
            else:
                with w.loop(self.names.fresh("trip"), trips) as trip:
                    self._tile(trip * self.blocks + block, thread, exact=self.tiles % self.blocks == 0)
        outputs = tuple(dict.fromkeys(plan.workload.output_buffers))
        return Kernel(KERNEL_NAME, plan.workload.inputs, outputs, (), w.finish())

    def _ask(self, block: Expr, thread: Expr, *, following: bool) -> None:
        """For what a tile reads of inputs that lie as the outputs do, and first for smaller inputs."""
        plan, size = self.plan, self.unroll * self.threads
        if self.vectors % size:
            return
        whole = flat_offset(Load(plan.stages[0].tensor, plan.place))
        ask = L2Prefetch(self.w, (thread, self.threads), (block, self.tiles), min(self.ahead, self.blocks))
        for read in dict.fromkeys(plan.reads.values()):

            def place(tile: Expr, _: Expr, load: Load = read.load) -> tuple[Expr, ...]:
                at = self._at(tile * size)
                return tuple(value_at(i, at) for i in load.indices)

            name, source = self.names.fresh("asked"), read.load.buffer
            if read.guard is None and flat_offset(read.load) == whole:
                if following:
                    ask.following(name, source, 1, size * self.vector, place, self.ahead)
                else:
                    ask.own(name, source, 1, size * self.vector, place)
            elif source.elements < plan.stages[0].tensor.elements and not following:
                ask.all(name, source)

    def _tile(self, tile: Expr, thread: Expr, *, exact: bool) -> None:
        plan, w = self.plan, self.w
        lane = plan.lane_axis.name
        held = {
            r: hold(w, self.names, r, (self.unroll,), lane, self.vector) for r in dict.fromkeys(plan.reads.values())
        }
        with w.loop(self.names.fresh("u"), self.unroll, LoopKind.UNROLLED) as u:
            number, inside = self._vector(tile, thread, u, exact)
            with w.when(inside):
                for h in held.values():
                    take(w, self.names, h, (u,), self._at(number), lane, self.vector)
        if self.blocks == self.tiles:
            self._ask(tile, thread, following=True)
        with w.loop(self.names.fresh("u"), self.unroll, LoopKind.UNROLLED) as u:
            number, inside = self._vector(tile, thread, u, exact)
            with w.when(inside):
                for stage in plan.stages:
                    self._compute(stage, held, u, self._at(number))

    def _vector(self, tile: Expr, thread: Expr, u: Expr, exact: bool) -> tuple[Expr, Expr | None]:
        """The number of a vector, and the condition that there is such a one."""
        number = tile * (self.unroll * self.threads) + u * self.threads + thread
        whole = exact and self.vectors % (self.unroll * self.threads) == 0
        return number, None if whole else number < self.vectors

    def _at(self, number: Expr) -> dict[str, Expr]:
        """The point at which a vector begins."""
        lane = self.plan.lane_axis
        counted = [Axis(a.name, a.extent // self.vector) if a == lane else a for a in self.plan.axes]
        at = dict(places(number, counted))
        if lane.name in at:
            at[lane.name] = at[lane.name] * self.vector
        return at

    def _compute(self, stage: Stage, held: Mapping[Read, Held], u: Expr, at: Mapping[str, Expr]) -> None:
        w, lane = self.w, self.plan.lane_axis.name
        with w.loop(self.names.fresh("v"), self.vector, LoopKind.VECTORIZED) as v:
            values = {given: held[done].value((u,), v) for given, done in self.plan.reads.items()}
            here = {**at, lane: at[lane] + v} if lane in at else dict(at)
            indices = tuple(value_at(i, here) for i in self.plan.place)
            w.store(stage.tensor, indices, value_at(with_reads(stage.body, values), here))


def _plan(workload: Workload, target: Target) -> PointwisePlan | None:
    stages = resolved_outputs(workload)
    if stages is None:
        return None
    axes = stages[0].axes
    plan = _plan_on(workload, target, stages, axes, tuple(Var(a.name) for a in axes))
    if not all(_lies_alike(r, plan) for r in plan.reads.values()):
        return None
    if plan.lane_axis.extent % MAX_VECTOR_BYTES and _lie_side_by_side(plan):
        return _flattened(plan)
    return plan


def _plan_on(
    workload: Workload, target: Target, stages: tuple[Stage, ...], axes: tuple[Axis, ...], place: tuple[Expr, ...]
) -> PointwisePlan:
    reads = dict.fromkeys(r for s in stages for r in reads_of(s.body))
    done = {r: unneeded_guards_dropped(r, axes) for r in reads}
    return PointwisePlan(workload, target, stages, axes, place, done)


def _lie_side_by_side(plan: PointwisePlan) -> bool:
    """Whether all that is read lies just as the outputs do, so that rows may be taken for one long one."""
    whole = flat_offset(Load(plan.stages[0].tensor, plan.place))
    alike = all(r.guard is None and flat_offset(r.load) == whole for r in plan.reads.values())
    values = (map_loads(s.body, lambda load: const(0, load.dtype)) for s in plan.stages)
    return alike and not any(free_variables(v) for v in values)


def _flattened(plan: PointwisePlan) -> PointwisePlan:
    """The same on one axis: vectors may run from one row into the next, which no length of rows keeps them from."""
    flat = Axis("flat#", prod(a.extent for a in plan.axes))
    at = places(Var(flat.name), plan.axes)
    stages = tuple(replace(s, body=substitute(s.body, at)) for s in plan.stages)
    place = tuple(at[a.name] for a in plan.axes)
    return _plan_on(plan.workload, plan.target, stages, (flat,), place)


def _lies_alike(read: Read, plan: PointwisePlan) -> bool:
    """Whether ``read`` goes through its buffer as the outputs are gone through: neighbours along the innermost axis (or
    all the same), and outer axes with larger strides, but where the runs of neighbours are long."""
    offset = flat_offset(read.load)
    if offset is None or any(isinstance(e, Load) for i in read.load.indices for e in walk(i)):
        return False
    strides = [offset.coefficient(a.name) for a in plan.axes if a.extent > 1]
    if not strides:
        return True
    if strides[-1] not in (0, 1):
        return False
    moving = [s for s in strides if s]
    ordered = all(a > b for a, b in pairwise(moving))
    run = plan.lane_axis.extent * read.load.dtype.bytes
    return ordered or (strides[-1] == 1 and run >= LEAST_RUN_BYTES)


CUDA_POINTWISE = TileSketch("cuda_pointwise", 3, QUANTITIES, _plan)
