"""Writes the kernel of convolutions with few filters, which brings each pixel to shared memory once.

A matrix instruction has eight columns, and few filters leave most of them empty. So taps are columns, too: a pixel is
multiplied with the filters of several taps at once, and an output is the sum of what its pixels gave it. These may be
the taps of the whole window, those along its last dimensions, or one. For the others, which are ``shifts``, the same
rows are multiplied again from pixels further on, which may begin anywhere in shared memory::

    P[pixel, (tap, f)] = sum over shifts and channels of X[pixel + shift, channel] * W[(shift, tap), channel, f]
    Y[output, f] = sum over taps of P[output * stride + tap * dilation, (tap, f)]

The phases of a transposed convolution read the same pixels, each with filters of its own, which are columns, too.

A block computes a patch of outputs, or several one after another. TMA brings the pixels that it sees, as a box, with
zeros for padding, 128 bytes of channels at a time. Of float32 it rounds them to TF32::

    for each patch:
        for each chunk of channels:
            wait for its stage
            for each shift:
                load the fragments of 16 pixels, and those of the filters; multiply
            barrier; begin to fill this stage with what comes ``stages`` chunks later
        store the products in shared memory, [column, pixel]; barrier
        add them up for each output, compute what follows from the sums, and store it

What blocks with one patch store lies in the place of the stages. Filters are copied to shared memory once.

With more filters, which fill the columns of one tap alone, there is nothing to add up for an output. Then the rows of
products are outputs, each with the pixel that a tap sees of it, and sums are stored from the registers that they are
left in. Filters are columns in such an order that a lane has neighbouring ones of each output. Pixels lie in shared
memory an odd number of 16 bytes apart, since boxes are wider than pixels, so that no tap needs a swizzle of its own.
"""

from collections.abc import Iterator, Sequence
from itertools import product
from math import gcd, prod

from ....core.dtypes import float32, int64
from ....ir.buffer import Buffer, Layout, MemoryScope
from ....ir.expr import WARP_LANES, Expr, Load, const, index, minimum
from ....ir.gpu.ldmatrix import LoadMatrix
from ....ir.gpu.mbarrier import MbarrierArriveExpectTx, MbarrierInit, MbarrierWait
from ....ir.gpu.mma import Mma
from ....ir.gpu.tma import TmaLoad, tma_swizzle
from ....ir.rewrite import free_variables, substitute
from ....ir.stmt import Kernel, LoopKind
from ....te.functions import cast, equal
from ...loop_nest.nest import KERNEL_NAME
from ...problems.gemm import Gemm
from ...problems.image_window import TAP
from ...problems.implicit_gemm import filters_inside
from ...tile.delinearize import axis_indices, delinearize
from ...tile.names import FreshNameWriter
from ..launch_axes import warp_axes
from ..skinny.mma_tiles import ATOM_M, ATOM_N
from ..split_k import store_outputs
from .sizes import (
    COPIES_AT_ONCE,
    SWIZZLE_ROWS,
    ConvMmaSizes,
    box_extents,
    chunk_channels,
    column_dimensions,
    filter_pitch,
    filter_vectors,
    padded,
    warp_atom,
)

MOST_UNROLLED = 9
"""So many taps of a row are written out at most, where sums stay in registers."""


def conv_mma_kernel(gemm: Gemm, sizes: ConvMmaSizes) -> Kernel:
    """Return the kernel of one setting. ``gemm`` has its rows patch by patch."""
    return _ConvMmaWriter(gemm, sizes).kernel()


class _ConvMmaWriter:
    def __init__(self, gemm: Gemm, sizes: ConvMmaSizes) -> None:
        assert gemm.window is not None and gemm.a.load is not None and gemm.b.load is not None
        self.gemm, self.s, self.window = gemm, sizes, gemm.window
        self.image, self.filters, atom = gemm.a.load, gemm.b.load, warp_atom(gemm)
        assert atom is not None
        self.atom, self.dtype = atom, atom.operand
        self.box = box_extents(self.window, self.window.patch[1:])
        self.first = column_dimensions(self.window)[sizes.column_taps]
        self.phases = prod(axis.extent for axis in gemm.batch)
        self.outputs = prod(self.window.patch)
        self.w = FreshNameWriter(gemm.names)

    def kernel(self) -> Kernel:
        s, w, gemm = self.s, self.w, self.gemm
        axes = warp_axes(s.blocks, s.threads // WARP_LANES, block="cta")
        with w.launch(KERNEL_NAME, axes, min_blocks=s.resident) as (self.cta, self.warp, self.lane):
            self.thread = self.warp * WARP_LANES + self.lane
            self.elected = equal(self.thread, 0)
            self.full = w.allocate("full", (s.stages,), int64, MemoryScope.SHARED)
            self.b = self._allocate_filters()
            shape = (s.atoms_m, -(-s.count // ATOM_N), 4)
            self.acc = w.allocate("acc", shape, float32, MemoryScope.REGISTER)
            staged = s.staged_epilogue == 1
            partials = self._allocate_partials() if staged and s.rounds > 1 else None
            with w.scope():
                self._begin()
                if staged and partials is None:
                    self._multiply_patch(index(0))
                else:
                    with w.loop("round", s.rounds) as number:
                        self._multiply_patch(number)
                        if partials is None:
                            self._store_sums(number)
                        else:
                            self._finish(number, partials)
            if staged and partials is None:  # in the place of the stages
                with w.scope():
                    self._finish(index(0), self._allocate_partials())
        return Kernel(KERNEL_NAME, gemm.inputs, tuple(r.tensor for r in gemm.results), (), w.finish())

    # --- shared memory

    def _allocate_filters(self) -> Buffer:
        """Allocate shared memory for [column, shift, channel] of the filters."""
        s, channels = self.s, self.s.chunks * self.s.chunk_atoms * self.atom.k
        layout = Layout((filter_pitch(self.gemm, s.shifts * channels), channels, 1))
        shape = (s.count, s.shifts, channels)
        return self.w.allocate("staged_filters", shape, self.dtype, MemoryScope.SHARED, layout)

    def _allocate_partials(self) -> Buffer:
        """Allocate shared memory for the products, [column, pixel]."""
        shape, layout = (self.s.count, self.s.atoms * ATOM_M), Layout((self.s.pitch, 1))
        return self.w.allocate("partials", shape, float32, MemoryScope.SHARED, layout)

    def _begin(self) -> None:
        """Begin to fill the stages, and copy the filters meanwhile."""
        s, w = self.s, self.w
        shape = (s.stages, padded(s.box_pixels, SWIZZLE_ROWS), s.pixel_pitch)
        swizzle = tma_swizzle(self.dtype) if s.staged_epilogue else None
        layout = Layout((shape[1] * s.pixel_pitch, s.pixel_pitch, 1), swizzle)
        self.stages = w.allocate("staged_pixels", shape, self.dtype, MemoryScope.SHARED, layout)
        with w.when(self.elected), w.unrolled("initialised", s.stages) as stage:
            w.emit(MbarrierInit(self.full, stage, 1))
        w.barrier()
        with w.when(self.elected):
            for ahead in range(min(s.stages, s.rounds * s.chunks)):
                self._load(index(ahead), index(ahead))
        self._copy_filters()
        w.barrier()

    def _load(self, step: Expr, stage: Expr) -> None:
        """Begin to load the chunk of channels of a step. What lies outside of the image arrives as zeros."""
        w, s = self.w, self.s
        extents = (1, *self.box, s.pixel_pitch)
        w.emit(MbarrierArriveExpectTx(self.full, stage, prod(extents) * self.dtype.bytes))
        at = {
            "m": self._patch(step // index(s.chunks)) * self.outputs,
            "k": step % index(s.chunks) * chunk_channels(self.gemm),
        }
        corner = tuple(substitute(i, at) for i in self.image.indices)
        to = (stage, index(0), index(0))
        w.emit(TmaLoad(self.stages, to, self.image.buffer, corner, extents, self.full, stage, tx_expected=True))

    def _copy_filters(self) -> None:
        """Copy the filters, with zeros for channels and taps that do not exist. Neighbouring threads copy vectors that
        lie side by side in memory, of channels or of filters."""
        w, s, n, channels = self.w, self.s, self.gemm.n.extent, self.window.channels
        along, width = filter_vectors(self.gemm)
        room = int(self.b.shape[-1])
        inner = (n, room // width) if along == "k" else (room, n // width)
        extents = (self.phases, self.window.tap_count, *inner)
        total = prod(extents)
        turns = -(-total // s.threads)
        with w.loop("copied", -(-turns // COPIES_AT_ONCE)) as some, w.unrolled("copy", COPIES_AT_ONCE) as copy:
            number = (some * COPIES_AT_ONCE + copy) * s.threads + self.thread
            with w.when(number < total if total % (COPIES_AT_ONCE * s.threads) else None):
                phase, tap, outer, vector = delinearize(number, extents)
                f, channel = (outer, vector * width) if along == "k" else (vector * width, outer)
                at = {**self._at_phase(phase), TAP: tap, "k": channel, "n": f}
                exists = [channel < channels] if room > channels else []
                exists += [substitute(condition, at) for condition in filters_inside(self.gemm)]
                held = w.allocate("held", (width,), self.filters.dtype, MemoryScope.REGISTER)
                if exists:
                    with w.vectorized("c", width) as c:
                        w.store(held, (c,), const(0.0, held.dtype))
                with w.when(*exists), w.vectorized("c", width) as c:
                    w.store(held, (c,), substitute(self.filters, {**at, along: at[along] + c}))
                first_column, shift = (phase * s.column_taps + tap % s.column_taps) * n, tap // s.column_taps
                with w.loop("c", width, LoopKind.VECTORIZED if along == "k" else LoopKind.UNROLLED) as c:
                    column = first_column + (self._column(f) if along == "k" else self._column(f + c))
                    to = (column, shift, channel + c if along == "k" else channel)
                    value: Expr = Load(held, (c,))
                    w.store(self.b, to, cast(value, self.dtype))

    def _column(self, f: Expr) -> Expr:
        """Return which column a filter is, of those of a tap. Lanes have two neighbouring columns of each instruction,
        and so ``joined`` times two neighbouring filters."""
        joined = int(self.s.joined)
        if joined == 1:
            return f
        within = f % (ATOM_N * joined)
        column = within % (2 * joined) // 2 * ATOM_N + within // (2 * joined) * 2 + f % 2
        found: Expr = f // (ATOM_N * joined) * (ATOM_N * joined) + column
        return found

    # --- the products of a patch

    def _patch(self, number: Expr) -> Expr:
        """Return the patch that this block computes in a round."""
        return number * index(self.s.blocks) + self.cta

    def _multiply_patch(self, number: Expr) -> None:
        """Multiply all pixels that a patch sees. All threads of the block have read the last stage afterwards."""
        w, s = self.w, self.s
        steps = s.rounds * s.chunks
        with (
            w.unrolled("atom_m", s.atoms_m) as i,
            w.unrolled("atom_n", self.acc.shape[1]) as j,
            w.unrolled("element", 4) as e,
        ):
            w.store(self.acc, (i, j, e), const(0.0, float32))
        with w.loop("chunk", s.chunks) as chunk:
            step = number * s.chunks + chunk
            w.emit(MbarrierWait(self.full, step % s.stages, step // s.stages % 2))
            self._multiply(step % s.stages, chunk)
            if steps > s.stages:
                w.barrier()
                with w.when(self.elected, step + s.stages < steps):
                    self._load(step + s.stages, step % s.stages)
        if s.staged_epilogue and (s.rounds == 1 or steps <= s.stages):
            w.barrier()

    def _multiply(self, stage: Expr, chunk: Expr) -> None:
        """Multiply a chunk of channels. A warp has every so many sixteenth pixels."""
        w, s, atom = self.w, self.s, self.atom
        atoms_n, zero = self.acc.shape[1], index(0)
        of_b = atom.elements("b")
        along = self.window.taps[-1]
        unrolled = s.shifts if s.staged_epilogue else along if along <= MOST_UNROLLED else 1
        with (
            w.loop("shift_row", s.shifts // unrolled) as row,
            w.unrolled("shift", unrolled) as n,
            w.unrolled("k_atom", s.chunk_atoms) as k_atom,
        ):
            shift = row * unrolled + n
            k, further = k_atom * atom.k, self._pixel(delinearize(shift, self.window.taps[: self.first]))
            b = w.allocate("b", (-(-atoms_n // 2), 2 * of_b), self.dtype, MemoryScope.REGISTER)
            a = w.allocate("a", (atom.elements("a"),), self.dtype, MemoryScope.REGISTER)
            with w.unrolled("pair", b.shape[0]) as pair:
                self._load_filters(b, pair, shift, chunk * (s.chunk_atoms * atom.k) + k)
            for i, number in self._atoms():
                self._load_pixels(a, stage, number * ATOM_M, further, k)
                with w.unrolled("atom_n", atoms_n) as j:
                    w.emit(Mma(atom.name, self.acc, (i, j, zero), a, (zero,), b, (j // 2, j % 2 * of_b)))

    def _load_filters(self, b: Buffer, pair: Expr, shift: Expr, k: Expr) -> None:
        """Load the fragments of two instructions along the columns, from channel ``k`` on."""
        w, low, high = self.w, self.lane % 8, self.lane // 8
        if self.dtype.bits == 16:
            column = _existing((pair * 2 + high // 2) * ATOM_N + low, self.s.count, 2 * ATOM_N)
            w.emit(LoadMatrix(b, (pair, index(0)), self.b, (column, shift, k + high % 2 * 8), 4))
            return
        for half, e in product(range(2), range(2)):
            column = _existing((pair * 2 + half) * ATOM_N + self.lane // 4, self.s.count, 2 * ATOM_N)
            source = (column, shift, k + self.lane % 4 + e * 4)
            w.store(b, (pair, index(half * 2 + e)), Load(self.b, source))

    def _load_pixels(self, a: Buffer, stage: Expr, first: Expr, further: Expr, k: Expr) -> None:
        """Load the fragment of 16 pixels, those that are ``further`` than the ``first`` one, from channel ``k`` on."""
        w, low, high = self.w, self.lane % 8, self.lane // 8
        if self.dtype.bits == 16:
            pixel = self._row_pixel(first + high % 2 * 8 + low) + further
            w.emit(LoadMatrix(a, (index(0),), self.stages, (stage, pixel, k + high // 2 * 8), 4))
            return
        for e in range(4):
            pixel = self._row_pixel(first + e % 2 * 8 + self.lane // 4) + further
            w.store(a, (index(e),), Load(self.stages, (stage, pixel, k + self.lane % 4 + e // 2 * 4)))

    def _row_pixel(self, row: Expr) -> Expr:
        """Return the pixel of the box that a row of the products has of the first tap that is no column."""
        row = _existing(row, self.s.rows, ATOM_M)
        if self.s.staged_epilogue:
            return row
        return self._pixel(delinearize(row, self.window.patch)[1:], self.window.strides)

    def _atoms(self) -> Iterator[tuple[Expr, Expr]]:
        """The matrix instructions along the pixels that this warp has: how many there were before, and which it is."""
        s, warps = self.s, self.s.threads // WARP_LANES
        for i in range(s.atoms_m):
            atom = self.warp + i * warps
            with self.w.when(atom < s.atoms if (i + 1) * warps > s.atoms else None):
                yield index(i), atom

    # --- outputs

    def _store_sums(self, number: Expr) -> None:
        """Compute what follows from the sums of this warp's outputs, and store it."""
        w, n, joined = self.w, self.gemm.n.extent, self.s.joined
        total = w.allocate("total", (2 * joined,), float32, MemoryScope.REGISTER)
        width = 2 * joined if n % (2 * joined) == 0 else 1
        for i, atom in self._atoms():
            for half in range(2):
                row = atom * ATOM_M + self.lane // 4 + half * (ATOM_M // 2)
                m = self._patch(number) * self.outputs + row
                inside = [row < self.outputs] if self.outputs % ATOM_M else []
                with w.when(*self.gemm.rows_inside(m), *inside):
                    for group in range(self.acc.shape[1] // joined):
                        for j, e in product(range(joined), range(2)):
                            value = Load(self.acc, (i, index(group * joined + j), index(half * 2 + e)))
                            w.store(total, (index(j * 2 + e),), value)
                        for e in range(0, 2 * joined, width):
                            f = self.lane % 4 * (2 * joined) + (group * ATOM_N * joined + e)
                            with w.when(f < n if n % ATOM_N else None):
                                store_outputs(w, self.gemm, {"m": m, "n": f}, total, width, first=index(e))

    def _finish(self, number: Expr, partials: Buffer) -> None:
        """Store the products in shared memory, add them up for each output, and store what follows from the sums."""
        w, s, n = self.w, self.s, self.gemm.n.extent
        for i, atom in self._atoms():
            for j, e in product(range(self.acc.shape[1]), range(4)):
                column = j * ATOM_N + self.lane % 4 * 2 + e % 2
                with w.when(column < s.count if (j + 1) * ATOM_N > s.count else None):
                    pixel = atom * ATOM_M + self.lane // 4 + e // 2 * 8
                    w.store(partials, (column, pixel), Load(self.acc, (i, index(j), index(e))))
        w.barrier()
        total = w.allocate("total", (n,), float32, MemoryScope.REGISTER)
        patch = self._patch(number)
        with w.loop("turn", -(-self.outputs // s.threads)) as turn:
            output = turn * s.threads + self.thread
            at: dict[str, Expr] = {"m": patch * self.outputs + output, "n": index(0)}
            inside = [*self.gemm.rows_inside(at["m"])]
            inside += [output < self.outputs] if self.outputs % s.threads else []
            with w.when(*inside), w.unrolled("phase", self.phases) as phase:
                self._add_up(total, partials, output, phase)
                parts = any("n" in free_variables(i) for r in self.gemm.results for i in r.inside)
                width = 1 if self.gemm.along_pixels or parts else gcd(n, 8)
                with w.unrolled("vector", n // width) as vector:
                    first = vector * width
                    here = {**at, **self._at_phase(phase), "n": first}
                    store_outputs(w, self.gemm, here, total, width, first=first)

    def _at_phase(self, phase: Expr) -> dict[str, Expr]:
        """Return the axes of the batch at a phase of a transposed convolution."""
        return dict(axis_indices(phase, self.gemm.batch))

    def _add_up(self, total: Buffer, partials: Buffer, output: Expr, phase: Expr) -> None:
        """Add up what the pixels of all taps gave an output of the patch."""
        w, n, window = self.w, self.gemm.n.extent, self.window
        with w.unrolled("f", n) as f:
            w.store(total, (f,), const(0.0, float32))
        position = delinearize(output, window.patch)[1:]
        shifts = [substitute(shift, self._at_phase(phase)) for shift in window.shifts]
        corner = self._pixel(position, window.strides) + self._pixel(shifts, (1,) * len(shifts))
        with w.unrolled("tap", self.s.column_taps) as tap:
            places = delinearize(tap, window.taps[self.first :])
            pixel = corner + self._pixel((*(index(0) for _ in range(self.first)), *places))
            with w.unrolled("f", n) as f:
                column = (phase * self.s.column_taps + tap) * n + f
                w.store(total, (f,), Load(total, (f,)) + Load(partials, (column, pixel)))

    def _pixel(self, places: Sequence[Expr], steps: Sequence[int] | None = None) -> Expr:
        """Return which pixel of the box is at some places along the first dimensions, ``steps`` pixels apart: taps by
        default."""
        found: Expr = index(0)
        apart = self.window.dilations if steps is None else steps
        for n, (place, step) in enumerate(zip(places, apart, strict=False)):
            found = found + place * (step * prod(self.box[n + 1 :]))
        return found


def _existing(place: Expr, extent: int, unit: int) -> Expr:
    """Return ``place``, or the last one of ``extent`` where units go beyond it. Nobody reads what is made of it."""
    return minimum(place, index(extent - 1)) if extent % unit else place
