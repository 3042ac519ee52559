"""Writes the kernel of convolutions of few channels, which reads pixels as they lie in memory.

A block computes a patch of outputs at a time. The rows of pixels that it sees are copied to shared memory as they are,
with zeros around the image. A lane loads the words of its pixels that matrix instructions multiply (``tap_words``) from
there: it remembers where its own words are, which are as far apart for all of its pixels. Its share of the filters
stays in registers. A *strip* is the 16 pixels of a row that a warp multiplies together::

    begin to copy the pixels of the first patches; load the filters
    for each patch of the block:
        wait for its pixels; barrier; begin to copy those of a later patch
        for each strip of the warp:
            load the words of its pixels; multiply
            compute what follows from the sums, and store it

``FilterColumnsWriter`` and ``FilterRowsWriter`` say which side of an instruction has the pixels.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from itertools import product
from math import prod

from ....core.dtypes import INDEX, float32, int32
from ....ir.buffer import Buffer, MemoryScope
from ....ir.expr import WARP_LANES, Cast, Expr, Load, Select, const, index, logical_and
from ....ir.gpu.async_copy import CopyAsync, CopyAsyncCommit, CopyAsyncWait
from ....ir.rewrite import substitute
from ....ir.stmt import Kernel
from ....te.functions import cast
from ...loop_nest.nest import KERNEL_NAME
from ...problems.gemm import Gemm
from ...problems.image_window import TAP
from ...problems.implicit_gemm import filters_inside
from ...tile.names import FreshNameWriter
from ..conv_mma.sizes import filter_vectors, warp_atom
from ..l2_prefetch import L2Prefetch
from ..launch_axes import warp_axes
from ..skinny.mma_tiles import ATOM_M, ATOM_N
from .sizes import ATOM_WORDS, LOADS_AT_ONCE, WORD_BYTES, FewChannelsSizes, copied_elements, interleaved, k_atoms, lead
from .tap_words import Word, tap_words

LANE_WORDS = 4
"""Lanes that have words of one pixel."""
LANE_PIXELS = WARP_LANES // LANE_WORDS
"""Lanes that have the same words of other pixels."""

At = tuple[Expr, ...]
"""The indices of an element."""


class FewChannelsWriter(ABC):
    """Writes the launch of one setting. ``gemm`` has its rows patch by patch. ``step``: how many pixels are those of
    neighbouring lanes apart."""

    def __init__(self, gemm: Gemm, sizes: FewChannelsSizes, step: int) -> None:
        assert gemm.window is not None and gemm.a.load is not None and gemm.b.load is not None
        self.gemm, self.s, self.window, self.taps = gemm, sizes, gemm.window, tap_words(gemm)
        self.image, self.filters, atom = gemm.a.load, gemm.b.load, warp_atom(gemm)
        assert atom is not None
        self.atom, self.k_atoms, self.copied, self.step = atom, k_atoms(gemm), copied_elements(gemm), step
        self.lead, self.outputs, self.interleaved = lead(gemm), prod(self.window.patch), interleaved(gemm)
        self.teams = sizes.blocks // sizes.groups
        self.w = FreshNameWriter(gemm.names)

    def kernel(self) -> Kernel:
        """Return the kernel."""
        s, w, gemm = self.s, self.w, self.gemm
        axes = warp_axes(s.blocks, s.threads // WARP_LANES, block="cta")
        with w.launch(KERNEL_NAME, axes, min_blocks=s.resident) as (cta, warp, lane):
            self.thread, self.team = warp * WARP_LANES + lane, cta // s.groups
            self.warp_m, warp_n = warp % s.warps_m, warp // s.warps_m
            self.pixel, self.place = lane // LANE_WORDS, lane % LANE_WORDS
            self.first_filter = (cta % s.groups * s.warps_n + warp_n) * (s.atoms_n * ATOM_N)
            shape = (s.stages, s.rows * s.pitch)
            self.stages = w.allocate("staged_pixels", shape, self.image.dtype, MemoryScope.SHARED)
            prefetch = L2Prefetch(w, (self.thread, s.threads), (cta, s.blocks), s.prefetching)
            prefetch.all("prefetched", self.filters.buffer)
            for ahead in range(s.stages - 1):
                self._copy(index(ahead), index(ahead))
            self._begin()
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

    @abstractmethod
    def _begin(self) -> None:
        """Load the filters, and find out where this lane has its words."""

    @abstractmethod
    def _multiply(self, stage: Expr, strips: Sequence[tuple[Expr, Expr]]) -> Buffer:
        """Multiply some strips, each given by how many rows and strips of a row it is from the warp's first one. Return
        the sums."""

    @abstractmethod
    def _store(self, sums: Buffer, number: int, first: Expr, row: Expr, strip: Expr) -> None:
        """Store what follows from the sums of one of these strips, which is number ``strip`` of a row of the patch
        whose first output is ``first``."""

    # --- pixels

    def _patch(self, number: Expr) -> Expr:
        """Return the patch that this block computes in a round."""
        found: Expr = number * index(self.teams) + self.team
        return found

    def _copy(self, number: Expr, stage: Expr) -> None:
        """Begin to copy what the windows of a patch see. Outside of the image these are zeros."""
        w, s, channels = self.w, self.s, self.window.channels
        patch, buffer = self._patch(number), self.image.buffer
        image, *corner, channel = (
            substitute(i, {"m": patch * self.outputs, "k": index(0)}) for i in self.image.indices
        )
        vectors, (*outer, width, _) = s.rows * (s.pitch // self.copied), buffer.shape[1:]

        def place_of(vector: Expr) -> tuple[At, At, Expr]:
            """Return where a vector belongs, where it comes from, and whether that is in the image."""
            row, place = vector // (s.pitch // self.copied), vector % (s.pitch // self.copied) * self.copied
            element, at = corner[-1] * channels + (place - self.lead), list(corner[:-1])
            if len(at) > 0:
                at[-1] = at[-1] + row % s.box_rows
            if len(at) > 1:
                at[0] = at[0] + row // s.box_rows * self.window.dilations[0]
            places = zip((*at, element), (*outer, width * channels), strict=True)
            inside = logical_and(*(c for i, extent in places for c in (i >= 0, i < extent)))
            source = (image, *at, element // channels, element % channels + channel)
            return (stage, row * s.pitch + place), source, inside

        with w.when(patch < s.patches):
            if self.copied * buffer.dtype.bytes >= WORD_BYTES:
                with w.shared_out("copy", vectors, s.threads, self.thread) as vector:
                    to, source, inside = place_of(vector)
                    w.emit(CopyAsync(self.stages, to, *self._in_memory(source), self.copied, inside))
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
                        w.store(held, (e,), Load(*self._in_memory(source), logical_and(exists, inside)))

    def _in_memory(self, source: At) -> tuple[Buffer, At]:
        """Return the images as they are declared: they may have no dimension for a single image or channel."""
        buffer = next(b for b in self.gemm.inputs if b.name == self.image.buffer.name)
        rank = len(buffer.shape)
        first = int(self.image.buffer.shape[:rank] != buffer.shape)
        return buffer, source[first : first + rank]

    # --- words

    def _word(self, step: int, half: int, parity: Expr) -> Word:
        """Return the word that this lane has of an instruction along k, of each half of it."""
        first = step * ATOM_WORDS + half * LANE_WORDS
        return self.taps.word(self.place + first, first, LANE_WORDS, parity)

    def _find_words(self, parity: Expr) -> Buffer:
        """Return where this lane has its words of the warp's first strip, in words from the begin of a stage on."""
        w, s, taps, taps_h = self.w, self.s, self.taps, (1, *self.window.taps)[-2]
        words = w.allocate("words", (self.k_atoms, 2), int32, MemoryScope.REGISTER)
        begins = [self.lead + n * taps.step - front for n, front in enumerate(taps.fronts)]
        own = index(begins[0] // taps.unit) + parity * ((begins[-1] - begins[0]) // taps.unit)
        own = own + self.pixel * (self.step * taps.step // taps.unit)
        own = own + self._from_first(self.warp_m // s.across, self.warp_m % s.across)
        dilation = (1, *self.window.dilations)[-2]
        for step, half in product(range(self.k_atoms), range(2)):
            word = self._word(step, half, parity)
            tap_row = word.row // taps_h * s.box_rows + word.row % taps_h * dilation
            place = own + tap_row * (s.pitch // taps.unit) + word.word
            w.store(words, (index(step), index(half)), Cast(place, int32))
        return words

    def _from_first(self, row: Expr, strip: Expr) -> Expr:
        """Return how many words a strip of a row of outputs is from the first one of a patch with its parity."""
        taps, stride = self.taps, (1, *self.window.strides)[-2]
        rows = row * (stride * self.s.pitch // taps.unit)
        apart = ATOM_M * self.interleaved * taps.step // taps.unit
        found: Expr = rows + strip // self.interleaved * apart
        return found

    def _load_word(
        self, to: Buffer, begin: int, words: Buffer, step: int, half: int, stage: Expr, further: Expr, parity: Expr
    ) -> None:
        """Load a word of a pixel that is ``further`` than the lane's first one to the elements from ``begin`` on, with
        zeros for what is no part of the window."""
        w, unit = self.w, self.taps.unit
        place = Cast(Load(words, (index(step), index(half))), INDEX) + further
        if unit == 1:
            w.store(to, (index(begin),), cast(Load(self.stages, (stage, place)), to.dtype))
        else:
            with w.vectorized("element", unit) as e:
                w.store(to, (begin + e,), Load(self.stages, (stage, place * unit + e)))
        if not self.taps.is_masked(step * ATOM_WORDS + half * LANE_WORDS, LANE_WORDS):
            return
        for n, exists in enumerate(self._exist(self._word(step, half, parity))):
            own = (index(begin + n),)
            w.store(to, own, Select(exists, Load(to, own), const(0.0, to.dtype)))

    def _exist(self, word: Word) -> list[Expr]:
        """Return for each element of a word whether the window has it."""
        elements = [word.first + n for n in range(self.taps.unit)]
        bounds = [(e >= 0, e < self.taps.run) for e in elements]
        return [logical_and(*bound, *([] if word.exists is None else [word.exists])) for bound in bounds]

    def _load_filters(
        self, parity: Expr, side: str, atoms: int, pairs: int, filter_of: Callable[[Expr, int], Expr], joined: int = 1
    ) -> Buffer:
        """Return this lane's share of the filters in the order of a parity: fragments of ``atoms`` instructions, the
        ``side`` a or b of them. A lane has ``pairs`` filters of each, which ``filter_of`` gives by both numbers. Those
        of ``joined`` instructions are neighbours. What is none is zero."""
        w, s, taps, n = self.w, self.s, self.taps, self.gemm.n.extent
        shape = (self.k_atoms, atoms, self.atom.elements(side))
        own = w.allocate("own_filters", shape, self.atom.operand, MemoryScope.REGISTER)
        axis, most = filter_vectors(self.gemm)
        width = joined if axis == "n" and most % joined == 0 else 1
        held = w.allocate("held_filters", (width,), self.filters.dtype, MemoryScope.REGISTER)
        for step, half in product(range(self.k_atoms), range(2)):
            word = self._word(step, half, parity)
            for (e, exists), pair in product(enumerate(self._exist(word)), range(pairs)):
                place = word.first + e
                tap = word.row * self.window.taps[-1] + place // self.window.channels
                with w.unrolled("atom", atoms // width) as vector:
                    f = filter_of(vector * width, pair)
                    at: dict[str, Expr] = {TAP: tap, "k": place % self.window.channels, "n": f}
                    inside = [exists, *(substitute(condition, at) for condition in filters_inside(self.gemm))]
                    inside += [f < n] if n % s.filters else []
                    with w.vectorized("f", width) as v:
                        w.store(held, (v,), const(0.0, held.dtype))
                    with w.when(*inside), w.vectorized("f", width) as v:
                        w.store(held, (v,), substitute(self.filters, {**at, "n": f + v}))
                    for m in range(width):
                        to = (index(step), vector * width + m, index((half * pairs + pair) * taps.unit + e))
                        w.store(own, to, cast(Load(held, (index(m),)), own.dtype))
        return own

    # --- products

    def _multiply_patch(self, number: Expr, stage: Expr) -> None:
        """Multiply the pixels of a patch, and store what follows. A warp has every so many of its strips."""
        w, s, patch = self.w, self.s, self._patch(number)
        exists = patch < s.patches if s.rounds * self.teams > s.patches else None
        with w.when(exists), w.loop("turn", s.strips // s.atoms_m) as turn:
            further = [self._further(turn * s.atoms_m + i) for i in range(s.atoms_m)]
            sums = self._multiply(stage, further)
            for i, (row, strip) in enumerate(further):
                at = row + self.warp_m // s.across, strip + self.warp_m % s.across
                self._store(sums, i, patch * self.outputs, *at)

    def _further(self, number: Expr) -> tuple[Expr, Expr]:
        """Return how many rows of outputs, and how many strips of a row, the warp's strip with a number is from its
        first one."""
        s = self.s
        if s.across <= s.warps_m:
            return number * (s.warps_m // s.across), index(0)
        per_row = s.across // s.warps_m
        return number // per_row, number % per_row * s.warps_m

    def _zeros(self, *shape: int) -> Buffer:
        """Return accumulators of instructions, all zero."""
        w = self.w
        sums = w.allocate("sums", (*shape, 4), float32, MemoryScope.REGISTER)
        for at in product(*(range(n) for n in sums.shape)):
            w.store(sums, tuple(map(index, at)), const(0.0, float32))
        return sums
