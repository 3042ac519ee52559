"""Writes the launches of gradients of depthwise convolutions towards filters.

The threads of a block have vectors of channels side by side, and tiles of pixels. The first launch does this::

    for each round:    acc[tap, channel] += what the tile of the round contributes        # ``tiles``
    lanes that have the same channels add up their accumulators by shuffles; warps leave theirs in shared memory
    barrier
    one thread for each tap and channel: add up what the warps left; store the outputs, or a partial sum

Where several blocks share the tiles, a second launch adds up their partial sums, always in the same order.
"""

from collections.abc import Mapping

from ....ir.buffer import Buffer, MemoryScope
from ....ir.expr import WARP_LANES, BinaryOp, Expr, Load, const, index
from ....ir.stmt import HardwareAxis, Kernel, LoopKind
from ....te.workload import Axis
from ...loop_nest.nest import KERNEL_NAME
from ...problems.depthwise_gradient import DepthwiseGradient
from ...tile.delinearize import axis_indices
from ...tile.names import FreshNameWriter
from ..block_reduce import combine_in_order, combine_of
from ..launch_axes import warp_axes
from .mma_tiles import COLUMN_LANES, MmaTileWriter
from .tiles import COLUMN_TILE, ROW_TILE, DepthwiseGradientSizes, TileWriter

LAST_X, LAST_Y = 32, 16
"""Results that a block of the second launch has, and threads that share the partial sums of each."""


def depthwise_gradient_kernel(problem: DepthwiseGradient, sizes: DepthwiseGradientSizes) -> Kernel:
    """Return the kernel of one setting."""
    return _DepthwiseGradientWriter(problem, sizes).kernel()


class _DepthwiseGradientWriter:
    def __init__(self, problem: DepthwiseGradient, sizes: DepthwiseGradientSizes) -> None:
        self.problem, self.s = problem, sizes
        self.w = FreshNameWriter(problem.names)
        self.dtype = problem.accumulator_dtype
        rows, columns = problem.height.axis.extent, problem.width.axis.extent
        lanes = COLUMN_LANES if sizes.mma else 1
        tiles = -(-rows // sizes.tile_h), -(-columns // (lanes * sizes.tile_w))
        self.tile_axes = [*problem.image_axes, Axis(ROW_TILE, tiles[0]), Axis(COLUMN_TILE, tiles[1])]
        self.lane_axes = [*self.tile_axes[:-1], Axis(COLUMN_TILE, tiles[1] * lanes)]
        *others, last = problem.channel_axes
        self.vector_axes = [*others, Axis(last.name, last.extent // sizes.vector_width)]
        self.warps = sizes.threads // WARP_LANES

    def kernel(self) -> Kernel:
        problem, s = self.problem, self.s
        partials = Buffer(self.w.fresh("partials"), (s.splits, problem.taps * problem.channels), self.dtype)
        self._write_first_launch(None if s.splits == 1 else partials)
        if s.splits > 1:
            self._write_second_launch(partials)
        workspace = (partials,) if s.splits > 1 else ()
        workload = problem.workload
        return Kernel(KERNEL_NAME, workload.inputs, workload.output_buffers, workspace, self.w.finish())

    def _write_first_launch(self, partials: Buffer | None) -> None:
        w, s, problem = self.w, self.s, self.problem
        axes = warp_axes(s.blocks, self.warps, block="cta")
        with w.launch(KERNEL_NAME, axes, min_blocks=s.ctas_per_sm) as (cta, warp, lane):
            block, split = cta % s.channel_blocks, cta // s.channel_blocks
            own = warp if s.mma else warp * (WARP_LANES // s.threads_x) + lane // s.threads_x
            first = block * s.threads_x
            vector = first if s.threads_x == 1 else first + lane % s.threads_x
            vectors = problem.channels // s.vector_width
            writer = MmaTileWriter if s.mma else TileWriter
            tiles = writer(problem, s, w, [*self.lane_axes, *problem.channel_axes])
            with w.loop("round", s.rounds) as number:
                tile = (number * s.splits + split) * s.block_tiles + own
                exact = s.rounds * s.splits * s.block_tiles == s.tiles
                here = [] if exact else [tile < s.tiles]
                here += [vector < vectors] if vectors % s.threads_x else []
                with w.when(*here):
                    tiles.multiply({**axis_indices(tile, self.tile_axes), **self._channels_at(vector)}, lane)
            of_warp = (problem.taps * s.vector_width, s.threads_x)
            shared = w.allocate("of_warps", (self.warps, *of_warp), self.dtype, MemoryScope.SHARED)
            tiles.leave(shared, warp, lane)
            w.barrier()
            self._add_up(shared, warp * WARP_LANES + lane, first, partials, split)

    def _channels_at(self, vector: Expr) -> dict[str, Expr]:
        """Return the axes of the channels at the first channel of a vector."""
        at, last = dict(axis_indices(vector, self.vector_axes)), self.vector_axes[-1].name
        return {**at, last: at[last] * self.s.vector_width}

    def _add_up(self, shared: Buffer, thread: Expr, first: Expr, partials: Buffer | None, split: Expr) -> None:
        """Add up what the warps left, and store the sums of the channels from vector ``first`` on."""
        w, s, problem = self.w, self.s, self.problem
        columns = s.threads_x * s.vector_width
        with w.shared_out("result", problem.taps * columns, s.threads, thread) as number:
            tap, column = number // columns, number % columns
            channel = first * s.vector_width + column
            with w.when(channel < problem.channels if problem.channels % columns else None):
                total = w.allocate("total", (), self.dtype, MemoryScope.REGISTER)
                cell = (tap * s.vector_width + column % s.vector_width, column // s.vector_width)
                terms = ([Load(shared, (index(n), *cell))] for n in range(self.warps))
                combine_in_order(w, "warp", [total], terms, combine_of(BinaryOp.ADD))
                if partials is None:
                    self._store(tap, channel, Load(total, ()))
                else:
                    w.store(partials, (split, tap * problem.channels + channel), Load(total, ()))

    def _write_second_launch(self, partials: Buffer) -> None:
        w, results = self.w, partials.shape[1]
        bounds = [
            ("last_block", -(-results // LAST_X), HardwareAxis.GRID_X),
            ("last_thread", LAST_X * LAST_Y, HardwareAxis.THREAD),
        ]
        with w.launch(w.fresh("add_partials"), bounds) as (block, thread):
            result, own = block * LAST_X + thread % LAST_X, thread // LAST_X
            exists = result < results if results % LAST_X else None
            total = w.allocate("total", (), self.dtype, MemoryScope.REGISTER)
            w.store(total, (), const(0, self.dtype))
            with w.when(exists), w.shared_out("split", self.s.splits, LAST_Y, own, LoopKind.UNROLLED) as split:
                w.store(total, (), Load(total, ()) + Load(partials, (split, result)))
            shared = w.allocate("of_threads", (LAST_Y, LAST_X), self.dtype, MemoryScope.SHARED)
            w.store(shared, (own, thread % LAST_X), Load(total, ()))
            w.barrier()
            with w.when(thread < LAST_X, exists):
                terms = ([Load(shared, (index(n), thread))] for n in range(LAST_Y))
                combine_in_order(w, "thread", [total], terms, combine_of(BinaryOp.ADD))
                channels = self.problem.channels
                self._store(result // channels, result % channels, Load(total, ()))

    def _store(self, tap: Expr, channel: Expr, total: Expr) -> None:
        """Store the outputs of a tap of a channel."""
        problem = self.problem
        at: Mapping[str, Expr] = {
            **{a.name: index(0) for a in problem.axes if a.extent == 1},
            **axis_indices(tap, problem.tap_axes),
            **axis_indices(channel, problem.channel_axes),
        }
        for output in problem.outputs:
            indices = tuple(at[a.name] for a in problem.axes)
            self.w.store(output.tensor, indices, problem.output(output, at, total))
