"""Writes the kernel of convolutions of few channels, which reads pixels as they lie in memory.

A block computes a patch of outputs at a time. The rows of pixels that it sees are copied to shared memory as they are,
with zeros around the image. A lane loads the words of its pixels that matrix instructions multiply (``tap_words``) from
there: it remembers where its own words are, which are as far apart for all of its pixels. Its share of the filters
stays in registers. An instruction has 16 neighbouring pixels of a row, or every second one of 32::

    begin to copy the pixels of the first patches; load the filters
    for each patch of the block:
        wait for its pixels; barrier; begin to copy those of a later patch
        for each of the warp's instructions along the pixels:
            load the words of its pixels; multiply
            compute what follows from the sums, and store it

The columns of instructions are filters in such an order that a lane has neighbouring ones, which it stores as vectors.
"""

from collections.abc import Callable
from itertools import product
from math import prod

from ....core.dtypes import INDEX, float32, int32
from ....ir.buffer import Buffer, MemoryScope
from ....ir.expr import WARP_LANES, Cast, Expr, Load, Select, conjunction, const, index, logical_and
from ....ir.gpu.async_copy import CopyAsync, CopyAsyncCommit, CopyAsyncWait
from ....ir.gpu.mma import Mma
from ....ir.rewrite import substitute
from ....ir.stmt import Kernel
from ....te.functions import cast
from ...loop_nest.nest import KERNEL_NAME
from ...problems.gemm import Gemm
from ...problems.image_window import TAP
from ...problems.implicit_gemm import filters_inside
from ...tile.names import FreshNameWriter
from ..conv_mma.sizes import warp_atom
from ..launch_axes import warp_axes
from ..skinny.mma_tiles import ATOM_M, ATOM_N
from ..split_k import store_outputs
from .sizes import ATOM_WORDS, LOADS_AT_ONCE, WORD_BYTES, FewChannelsSizes, copied_elements, k_atoms, lead
from .tap_words import Word, tap_words

LANE_WORDS = 4
"""Lanes that have words of one pixel."""
LANE_PIXELS = WARP_LANES // LANE_WORDS
"""Lanes that have the same words of other pixels."""

At = tuple[Expr, ...]
"""The indices of an element."""


def few_channels_kernel(gemm: Gemm, sizes: FewChannelsSizes) -> Kernel:
    """Return the kernel of one setting. ``gemm`` has its rows patch by patch."""
    return _FewChannelsWriter(gemm, sizes).kernel()


class _FewChannelsWriter:
    def __init__(self, gemm: Gemm, sizes: FewChannelsSizes) -> None:
        assert gemm.window is not None and gemm.a.load is not None and gemm.b.load is not None
        self.gemm, self.s, self.window, self.taps = gemm, sizes, gemm.window, tap_words(gemm)
        self.image, self.filters, atom = gemm.a.load, gemm.b.load, warp_atom(gemm)
        assert atom is not None
        self.atom, self.k_atoms, self.copied = atom, k_atoms(gemm), copied_elements(gemm)
        self.lead, self.outputs = lead(gemm), prod(self.window.patch)
        self.teams = sizes.blocks // sizes.groups
        self.w = FreshNameWriter(gemm.names)

    def kernel(self) -> Kernel:
        s, w, gemm = self.s, self.w, self.gemm
        axes = warp_axes(s.blocks, s.threads // WARP_LANES, block="cta")
        with w.launch(KERNEL_NAME, axes, min_blocks=s.resident) as (cta, warp, lane):
            self.thread, self.team = warp * WARP_LANES + lane, cta // s.groups
            self.warp_m, warp_n = warp % s.warps_m, warp // s.warps_m
            self.pixel, self.place = lane // LANE_WORDS, lane % LANE_WORDS
            self.parity = self.warp_m % self.taps.parities
            self.first_filter = (cta % s.groups * s.warps_n + warp_n) * (s.atoms_n * ATOM_N)
            shape = (s.stages, s.rows * s.pitch)
            self.stages = w.allocate("staged_pixels", shape, self.image.dtype, MemoryScope.SHARED)
            for ahead in range(s.stages - 1):
                self._copy(index(ahead), index(ahead))
            self._load_filters()
            self._find_words()
            with w.loop("round", s.rounds) as number:
                if s.stages == 1:
                    self._copy(number, index(0))
                w.emit(CopyAsyncWait(max(s.stages - 2, 0)))
                w.barrier()
                if s.stages > 1:
                    later = number + (s.stages - 1)
                    self._copy(later, later % s.stages)
                self._multiply_patch(number, number % s.stages)
                if s.stages == 1:
                    w.barrier()
        return Kernel(KERNEL_NAME, gemm.inputs, tuple(r.tensor for r in gemm.results), (), w.finish())

    # --- pixels

    def _patch(self, number: Expr) -> Expr:
        """Return the patch that this block computes in a round."""
        found: Expr = number * index(self.teams) + self.team
        return found

    def _copy(self, number: Expr, stage: Expr) -> None:
        """Begin to copy what the windows of a patch see. Outside of the image these are zeros."""
        w, s, channels = self.w, self.s, self.window.channels
        patch, shape = self._patch(number), self.image.buffer.shape
        image, *corner, channel = (
            substitute(i, {"m": patch * self.outputs, "k": index(0)}) for i in self.image.indices
        )
        vectors = s.rows * (s.pitch // self.copied)

        def place_of(vector: Expr) -> tuple[At, At, Expr]:
            """Return where a vector belongs, where it comes from, and whether that is in the image."""
            row, place = vector // (s.pitch // self.copied), vector % (s.pitch // self.copied) * self.copied
            element, at = corner[-1] * channels + (place - self.lead), list(corner[:-1])
            if len(at) > 0:
                at[-1] = at[-1] + row % s.box_rows
            if len(at) > 1:
                at[0] = at[0] + row // s.box_rows * self.window.dilations[0]
            places = zip((*at, element), (*shape[1:-2], shape[-2] * channels), strict=True)
            inside = logical_and(*(c for i, extent in places for c in (i >= 0, i < extent)))
            source = (image, *at, element // channels, element % channels + channel)
            return (stage, row * s.pitch + place), source, inside

        with w.when(patch < s.patches):
            if self.copied * self.image.dtype.bytes >= WORD_BYTES:
                with w.shared_out("copy", vectors, s.threads, self.thread) as vector:
                    to, source, inside = place_of(vector)
                    w.emit(CopyAsync(self.stages, to, self.image.buffer, source, self.copied, inside))
            else:
                self._copy_elements(vectors, place_of)
        w.emit(CopyAsyncCommit())

    def _copy_elements(self, count: int, place_of: Callable[[Expr], tuple[At, At, Expr]]) -> None:
        """Copy elements one by one, where these are narrower than an asynchronous copy. A thread loads some of them
        before it stores the first one."""
        w, s = self.w, self.s
        held = w.allocate("held", (LOADS_AT_ONCE,), self.image.dtype, MemoryScope.REGISTER)
        with w.loop("some", -(-count // (s.threads * LOADS_AT_ONCE))) as some:
            for store in (False, True):
                with w.unrolled("element", LOADS_AT_ONCE) as e:
                    element = (some * LOADS_AT_ONCE + e) * s.threads + self.thread
                    to, source, inside = place_of(element)
                    exists = element < count
                    if store:
                        with w.when(exists):
                            w.store(self.stages, to, Load(held, (e,)))
                    else:
                        w.store(held, (e,), Load(self.image.buffer, source, logical_and(exists, inside)))

    # --- words

    def _word(self, step: int, half: int) -> Word:
        """Return the word that this lane has of an instruction along k, of each half of it."""
        first = step * ATOM_WORDS + half * LANE_WORDS
        return self.taps.word(self.place + first, first, LANE_WORDS, self.parity)

    def _find_words(self) -> None:
        """Find out where this lane has its words of the first pixels of the warp, in words from the begin of a stage
        on."""
        w, s, taps, taps_h = self.w, self.s, self.taps, (1, *self.window.taps)[-2]
        self.words = w.allocate("words", (self.k_atoms, 2), int32, MemoryScope.REGISTER)
        begins = [self.lead + parity * taps.step - front for parity, front in enumerate(taps.fronts)]
        assert all(begin % taps.unit == 0 for begin in begins)
        own: Expr = index(begins[0] // taps.unit)
        if taps.parities > 1:
            own = own + self.parity * ((begins[1] - begins[0]) // taps.unit)
        own = own + self.pixel * (taps.parities * taps.step // taps.unit)
        row, column = self.warp_m // s.across, self.warp_m % s.across
        own = own + self._from_first(row, column // taps.parities)
        dilation = (1, *self.window.dilations)[-2]
        for step, half in product(range(self.k_atoms), range(2)):
            word = self._word(step, half)
            tap_row = word.row // taps_h * s.box_rows + word.row % taps_h * dilation
            place = own + tap_row * (s.pitch // taps.unit) + word.word
            w.store(self.words, (index(step), index(half)), Cast(place, int32))

    def _from_first(self, row: Expr, column: Expr) -> Expr:
        """Return how many words the pixels of an instruction are from the first ones of a patch: it is the one of a
        parity with this number along the ``row`` of outputs."""
        taps, stride = self.taps, (1, *self.window.strides)[-2]
        rows = row * (stride * self.s.pitch // taps.unit)
        found: Expr = rows + column * (ATOM_M * taps.parities * taps.step // taps.unit)
        return found

    def _load_filters(self) -> None:
        """Load this lane's share of the filters, zeros for what is none."""
        w, s, taps, n = self.w, self.s, self.taps, self.gemm.n.extent
        shape = (self.k_atoms, s.atoms_n, self.atom.elements("b"))
        self.b = w.allocate("own_filters", shape, self.atom.operand, MemoryScope.REGISTER)
        column = self.pixel
        for step, half, e in product(range(self.k_atoms), range(2), range(taps.unit)):
            word = self._word(step, half)
            place = word.first + e
            exists = [place >= 0, place < taps.run, *([] if word.exists is None else [word.exists])]
            tap = word.row * self.window.taps[-1] + place // self.window.channels
            with w.unrolled("atom_n", s.atoms_n) as atom:
                f = self._filter(atom, column)
                at = {TAP: tap, "k": place % self.window.channels, "n": f}
                inside = [*exists, *(substitute(condition, at) for condition in filters_inside(self.gemm))]
                inside += [f < n] if n % s.filters else []
                load = substitute(self.filters, at)
                assert isinstance(load, Load)
                value = Load(load.buffer, load.indices, conjunction(*inside))
                w.store(self.b, (index(step), atom, index(half * taps.unit + e)), cast(value, self.b.dtype))

    def _filter(self, atom: Expr, column: Expr) -> Expr:
        """Return the filter that is a column of one of the warp's instructions. Lanes have two neighbouring columns of
        each, and so ``joined`` times two neighbouring filters."""
        joined = self.s.joined
        within = column // 2 * (2 * joined) + atom % joined * 2 + column % 2
        found: Expr = self.first_filter + atom // joined * (ATOM_N * joined) + within
        return found

    # --- products

    def _multiply_patch(self, number: Expr, stage: Expr) -> None:
        """Multiply the pixels of a patch, and store what follows. A warp has every so many of its instructions."""
        w, s, patch = self.w, self.s, self._patch(number)
        beyond = patch < s.patches if s.rounds * self.teams > s.patches else None
        with w.when(beyond), w.loop("turn", s.atoms // s.atoms_m) as turn:
            acc = w.allocate("acc", (s.atoms_m, s.atoms_n, 4), float32, MemoryScope.REGISTER)
            with (
                w.unrolled("atom_m", s.atoms_m) as m,
                w.unrolled("atom_n", s.atoms_n) as n,
                w.unrolled("element", 4) as e,
            ):
                w.store(acc, (m, n, e), const(0.0, float32))
            for step, i in product(range(self.k_atoms), range(s.atoms_m)):
                a = self._load_words(step, stage, *self._further(turn * s.atoms_m + i))
                with w.unrolled("atom_n", s.atoms_n) as n:
                    b = (index(step), n, index(0))
                    w.emit(Mma(self.atom.name, acc, (index(i), n, index(0)), a, (index(0),), self.b, b))
            for i in range(s.atoms_m):
                self._store(acc, i, patch, *self._further(turn * s.atoms_m + i))

    def _further(self, number: Expr) -> tuple[Expr, Expr]:
        """Return how many rows of outputs, and how many instructions of a row, the warp's instruction with a number is
        from its first one."""
        s = self.s
        if s.across <= s.warps_m:
            return number * (s.warps_m // s.across), index(0)
        per_row = s.across // s.warps_m
        return number // per_row, number % per_row * s.warps_m

    def _load_words(self, step: int, stage: Expr, row: Expr, column: Expr) -> Buffer:
        """Load the words of 16 pixels for an instruction along k."""
        w, taps = self.w, self.taps
        a = w.allocate("a", (self.atom.elements("a"),), self.atom.operand, MemoryScope.REGISTER)
        further = self._from_first(row, column // taps.parities)
        for half, pixels in product(range(2), range(2)):
            begin = (half * 2 + pixels) * taps.unit
            place = Cast(Load(self.words, (index(step), index(half))), INDEX) + further
            place = place + pixels * (LANE_PIXELS * taps.parities * taps.step // taps.unit)
            if taps.unit == 1:
                w.store(a, (index(begin),), cast(Load(self.stages, (stage, place)), a.dtype))
            else:
                with w.vectorized("element", taps.unit) as e:
                    w.store(a, (begin + e,), Load(self.stages, (stage, place * taps.unit + e)))
            first = step * ATOM_WORDS + half * LANE_WORDS
            if taps.is_masked(first, LANE_WORDS):
                word = self._word(step, half)
                for n in range(taps.unit):
                    own, element = (index(begin + n),), word.first + n
                    exists = conjunction(element >= 0, element < taps.run, word.exists)
                    assert exists is not None
                    w.store(a, own, Select(exists, Load(a, own), const(0.0, a.dtype)))
        return a

    def _store(self, acc: Buffer, i: int, patch: Expr, row: Expr, column: Expr) -> None:
        """Store the outputs of 16 pixels."""
        w, s, n, joined, parities = self.w, self.s, self.gemm.n.extent, self.s.joined, self.taps.parities
        row, column = row + self.warp_m // s.across, column + self.warp_m % s.across
        width = 2 * joined if n % (2 * joined) == 0 else 1
        total = w.allocate("total", (2 * joined,), float32, MemoryScope.REGISTER)
        for half in range(2):
            pixel = (column // parities * ATOM_M + self.pixel + half * LANE_PIXELS) * parities + self.parity
            m = patch * self.outputs + (row * s.tile_w + pixel)
            with w.when(*self.gemm.rows_inside(m)):
                for group in range(s.atoms_n // joined):
                    for atom, e in product(range(joined), range(2)):
                        value = Load(acc, (index(i), index(group * joined + atom), index(half * 2 + e)))
                        w.store(total, (index(atom * 2 + e),), value)
                    first = self._filter(index(group * joined), self.place * 2)
                    for e in range(0, 2 * joined, width):
                        f = first + e
                        with w.when(f < n if n % s.filters else None):
                            store_outputs(w, self.gemm, {"m": m, "n": f}, total, width, first=index(e))
