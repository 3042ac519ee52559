"""Writes the kernel of depthwise convolutions: for each channel, products with the Toeplitz matrices of its filters.

Eight neighbouring outputs of a row see sixteen positions of the input at most. A matrix instruction multiplies sixteen
such blocks of one channel, by the row of its filter that connects a row of the input with one of outputs::

    D[block, x] += sum over k of A[block, k] * T[k, x]        A[block, k] = X[y, 8*block + k, channel]
                                                              T[k, x] = W[r, (k - x)/dilation, channel]

So a window of 5 x 5 takes five instructions for 128 outputs, where the filters of eight channels on a diagonal would
take thirteen. Where windows are no wider than five, a block is two rows of four outputs, and ``k`` two rows of eight
positions. Then it takes three, and fewer rows of outputs are under way, each with accumulators.

Fragments of T stay in registers. A block of threads goes down strips of rows, each warp with channels of its own. TMA
brings rows into a circular buffer in shared memory some stages ahead (``rows``)::

    for each step:
        wait for the stage of this step
        for each row (or two rows) of the stage:
            load the fragments of A once, as vectors of channels
            for each slot of rows of outputs that see it:     acc[slot] += A * T[rows of the filter]
            store the rows of outputs that are complete, in the place of the rows of the input, in shared memory
        store the rows of outputs by TMA, and begin to fill the stage of the step before, which has been stored

Of eight places, n of D and half of k, place ``i`` is the pixel ``i//2 + i%2*4``, so that lanes of a warp find pixels in
different banks; in blocks of two rows, n is the pixel ``i//2`` of row ``i%2``. What an instruction sees and no window
does is multiplied by 0.
"""

from itertools import product

from ....core.dtypes import float32
from ....ir.buffer import Buffer, Layout, MemoryScope
from ....ir.expr import WARP_LANES, Compare, CompareOp, Expr, Load, const, index, minimum
from ....ir.gpu.mma import Mma
from ....ir.gpu.tma import tma_swizzle
from ....ir.rewrite import loads_of
from ....ir.stmt import Kernel
from ...loop_nest.nest import KERNEL_NAME, kernel_of
from ...problems.depthwise import Depthwise
from ...tile.names import FreshNameWriter
from ...tile.stage_body import scalar_at
from ..launch_axes import warp_axes
from .rows import TmaRows
from .sizes import HALO_UNIT, DepthwiseSizes, is_swizzled
from .strips import Strips


def depthwise_kernel(problem: Depthwise, sizes: DepthwiseSizes) -> Kernel:
    """Return the kernel of one setting."""
    return _DepthwiseWriter(problem, sizes).kernel()


class _DepthwiseWriter:
    def __init__(self, problem: Depthwise, sizes: DepthwiseSizes) -> None:
        self.problem, self.s, self.window = problem, sizes, problem.window
        window = problem.window
        self.w = FreshNameWriter(window.names)
        self.channel = window.channel
        self.staged = window.outputs[0].tensor if problem.stores_pixels else None
        reduction = window.reduction.name
        self.reads_inputs = any(load.buffer.name != reduction for o in window.outputs for load in loads_of(o.body))

    def kernel(self) -> Kernel:
        window, w, s = self.window, self.w, self.s
        axes = warp_axes(s.blocks, s.threads // WARP_LANES, block="cta")
        with w.launch(KERNEL_NAME, axes, min_blocks=s.resident) as (cta, warp, lane):
            self.lane, self.own = lane, warp * s.vector_width
            self.strips = Strips(self.problem, s, w, cta)
            self.stages = self._allocate_stages()
            rows = TmaRows(w, self.strips, self.stages, warp * WARP_LANES + lane)
            rows.begin()
            self.filters = self._load_filters()
            self.acc = w.allocate("acc", (s.slots, s.vector_width, 4), float32, MemoryScope.REGISTER)
            for slot in range(s.slots):
                self._clear(slot)
            with w.loop("step", s.rounds * s.steps) as step:
                rows.wait(step)
                own = self.strips.begin(step)
                for row in range(0, s.stage_rows, s.block_h):
                    with w.when(self.strips.is_needed(own * s.stage_rows + row)):
                        self._multiply(step % s.stages, row)
                        self._finish(step % s.stages, own, row)
                rows.leave(step, self.staged)
            if self.staged is not None:
                rows.end()
        return kernel_of(window.workload, w.finish())

    def _allocate_stages(self) -> Buffer:
        """Allocate shared memory for [stage, strip, row, pixel, channel]."""
        s, dtype = self.s, self.problem.pixels.dtype
        shape = (s.stages, s.strips, s.stage_rows, s.row_room, s.tile_c)
        swizzle = tma_swizzle(dtype) if is_swizzled(self.problem, s) else None
        layout = Layout(Buffer("", shape, dtype).strides, swizzle)
        return self.w.allocate("staged_rows", shape, dtype, MemoryScope.SHARED, layout)

    # --- fragments

    def _seen(self, pair: int, half: int = 0) -> tuple[Expr, int]:
        """Return (pixel of a row, row) that a lane has of what an instruction sees for a block: place 2 * (lane % 4) +
        ``pair`` of a half of k."""
        pixel = self.lane % 4 + pair * HALO_UNIT
        return (pixel, half) if self.s.block_h == 2 else (pixel + half * self.s.block_w, 0)

    def _output(self, pair: int) -> tuple[Expr, int]:
        """Return (pixel of a row, row) of a block of outputs that a lane has: place 2 * (lane % 4) + ``pair`` of n."""
        return (self.lane % 4, pair) if self.s.block_h == 2 else (self.lane % 4 + pair * HALO_UNIT, 0)

    def _parts(self) -> list[tuple[int, int]]:
        """Return (half, pair) of all places of k that a lane has, but for those that no output sees."""
        seen = range(self.s.seen // HALO_UNIT)
        return [*product(range(2), seen)] if self.s.block_h == 2 else [(part // 2, part % 2) for part in seen]

    def _load_filters(self) -> Buffer:
        """Load the fragments of the Toeplitz matrices, [slot, channel, element]. Slot ``j`` is the rows of outputs that
        are ``j`` blocks above a row of the input."""
        w, s, load = self.w, self.s, self.problem.filters
        height, width = self.problem.height, self.problem.width
        taps = w.allocate("taps", (s.vector_width,), load.dtype, MemoryScope.REGISTER)
        filters = w.allocate("filters", (s.slots, s.vector_width, 4), load.dtype, MemoryScope.REGISTER)
        place = self.lane // 4  # of n: the column of T that this lane has
        output, row = (place // 2, place % 2) if s.block_h == 2 else (place // 2 + place % 2 * HALO_UNIT, index(0))
        channel, parts = self.strips.first_channel + self.own, self._parts()
        neighbours = w.vectorized if self.problem.has_filter_vectors else w.unrolled
        for slot, half, pair in product(range(s.slots), range(2), range(2)):
            with w.vectorized("c", s.vector_width) as c:
                w.store(taps, (c,), const(0.0, load.dtype))
            pixel, line = self._seen(pair, half)
            distance, r = pixel - output, index(slot * s.block_h + line) - row
            inside = [distance >= 0, distance <= (width.window_points - 1) * width.dilation]
            inside += [r >= 0, r < height.window_points]
            if width.dilation > 1:
                inside.append(Compare(CompareOp.EQ, distance % width.dilation, index(0)))
            if self.channel.extent % s.tile_c:
                inside.append(channel < self.channel.extent)
            at = {**self.window.unit_axes, **{a.name: index(0) for a in self.window.axes}}
            if height.window is not None:
                at[height.window.name] = r
            if width.window is not None:
                at[width.window.name] = distance // width.dilation
            if (half, pair) in parts:
                with w.when(*inside), neighbours("c", s.vector_width) as c:
                    w.store(taps, (c,), scalar_at(load, {**at, self.channel.name: channel + c}))
            with w.unrolled("c", s.vector_width) as c:
                w.store(filters, (index(slot), c, index(2 * half + pair)), Load(taps, (c,)))
        return filters

    # --- products

    def _clear(self, slot: int) -> None:
        w, s = self.w, self.s
        with w.unrolled("c", s.vector_width) as c, w.unrolled("element", 4) as e:
            w.store(self.acc, (index(slot), c, e), const(0.0, float32))

    def _block(self, half: int) -> tuple[Expr, Expr]:
        """Return (number of the strip, block of outputs in it) of the row ``lane // 4`` of a half of a fragment."""
        number = self.lane // 4 + half * 8
        return number % self.s.strips, number // self.s.strips

    def _has_idle(self, half: int) -> bool:
        """Return whether a half of a fragment has rows for blocks that do not exist."""
        return half * 8 + 7 >= int(self.s.blocks_w * self.s.strips)

    def _multiply(self, stage: Expr, row: int) -> None:
        """Multiply the rows of the input from ``row`` on, for all rows of outputs that see them."""
        w, s, dtype, parts = self.w, self.s, self.stages.dtype, self._parts()
        vectors = w.allocate("vectors", (2, len(parts), s.vector_width), dtype, MemoryScope.REGISTER)
        for m_half, (part, (half, pair)) in product(range(2), enumerate(parts)):
            strip, block = self._block(m_half)
            if self._has_idle(m_half):
                block = minimum(block, index(s.blocks_w - 1))
            pixel, line = self._seen(pair, half)
            with w.vectorized("c", s.vector_width) as c:
                source = (stage, strip, index(row + line), block * s.block_w + pixel, self.own + c)
                w.store(vectors, (index(m_half), index(part), c), Load(self.stages, source))
        fragments = w.allocate("fragments", (s.vector_width, 8), dtype, MemoryScope.REGISTER)
        with w.unrolled("c", s.vector_width) as c:
            for m_half, half, pair in product(range(2), repeat=3):
                value: Expr = const(0.0, dtype)
                if (half, pair) in parts:
                    value = Load(vectors, (index(m_half), index(parts.index((half, pair))), c))
                w.store(fragments, (c, index(2 * (m_half + 2 * half) + pair)), value)
        turn = row // s.block_h
        self._clear(turn % s.slots)
        for above in range(s.slots):
            with w.unrolled("c", s.vector_width) as c:
                d = (index((turn - above) % s.slots), c, index(0))
                a, b = (c, index(0)), (index(above), c, index(0))
                w.emit(Mma(self.problem.atom.name, self.acc, d, fragments, a, self.filters, b))

    # --- outputs

    def _finish(self, stage: Expr, step: Expr, row: int) -> None:
        """Compute the rows of outputs that are complete. They go to shared memory, or, where they are of another dtype
        or several, to memory at once."""
        w, s, strips = self.w, self.s, self.strips
        slot = index((row // s.block_h + 1) % s.slots)
        for half, pair in product(range(2), range(2)):
            strip, block = self._block(half)
            pixel, below = self._output(pair)
            place = block * s.block_w + pixel
            line = step * s.stage_rows + (row + below - s.block_h * (s.slots - 1))
            at = strips.output(strip, line, place, self.own)
            inside: list[Expr] = []
            if self.staged is None or self.reads_inputs:
                inside = [*strips.complete(strip, line), *strips.inside(at)]
                inside += [block < s.blocks_w] if self._has_idle(half) else []
            with w.when(*inside):
                for output in self.window.outputs:
                    with w.vectorized("c", s.vector_width) as c:
                        here = {**at, self.channel.name: at[self.channel.name] + c}
                        value = self.window.output(output, here, Load(self.acc, (slot, c, index(2 * half + pair))))
                        if self.staged is not None:
                            to = (stage, strip, index(row + below), place, self.own + c)
                            w.store(self.stages, to, value)
                        else:
                            w.store(output.tensor, tuple(here[a.name] for a in self.window.axes), value)
