"""Images of few channels, folded so that up to 64 places of k are side by side: a row of taps, with their channels.

With 3 channels TMA could not load a pixel, and most of what a wgmma multiplies would be nothing. A first launch copies
the images, with their padding, to (image, row, pixel, phase, channel). Of the rows, as many as the stride follow one
another within a pixel (its phases), and channels are padded to a pitch. What a window sees in ``stride`` rows is then
contiguous, and from one position to the next it moves by a multiple of 16 bytes. TMA sees overlapping rows:

    A[m, (tap row, taps of ``stride`` rows x channels)] = folded[image, y + tap row, x * stride, ...]

Or each of these rows is written on its own, which takes more memory. A 7x7 window with stride 2 on 3 channels becomes 4
taps with 7 * 2 * 4 = 56 channels each. Filters are copied likewise, K-major where wgmma wants them so.

Where ``stride`` rows of a window have more than 64 elements, the rows lie in as many *planes*: row y of the image is
row y / stride of plane y % stride. A window then stands on one row, or a few, of all planes. One of 16x16 with stride
16 becomes 16 taps, one on each plane, with 16 * 4 = 64 channels each.

Volumes are folded slice by slice: their depth, with its padding, strides and dilation, stays a dimension of the window.

Images of one row and one channel, such as sound, are folded whatever the length of a window. Where it moves by no
multiple of 16 bytes, what it sees is always written for each position: one of 10 places with stride 5 becomes one tap
of 10 channels, in rows of 16.
"""

import math
from dataclasses import dataclass, replace
from itertools import count

from ....ir.buffer import Buffer, Layout, MemoryScope
from ....ir.expr import Broadcast, Expr, Load, Ramp, Var, const, index, logical_and
from ....ir.rewrite import substitute
from ....ir.stmt import HardwareAxis
from ....ir.verifier.tma import CHUNK_BYTES
from ....te.functions import negated
from ...problems.gemm import Gemm, Operand
from ...problems.image_window import TAP, ImageWindow
from ...tile.delinearize import delinearize
from ...tile.names import FreshNameWriter
from ..gemm.mma_atom import find_atom
from .row_taps import join_row_taps

MOST_CHANNELS = 7
"""Images of so many channels at most are folded."""
MOST_FOLDED = 64
"""What a window sees of a row has so many elements at most."""
LEAST_ALONE = 16
"""Windows over a single row with one channel are left to ``cuda_gemm_mma`` from so many taps on where they move by a
multiple of 16 bytes: their rows are those of a matrix."""
THREADS = 256
"""Threads of a CTA of the launch that folds."""


@dataclass(frozen=True, slots=True)
class Folding:
    """How the images and filters of ``gemm`` are folded. ``images`` is (image, plane, row, pixel, phase, channel) if
    rows are ``overlapped``, else (image, plane, row, position, tap, phase, channel). It has no dimension for a single
    plane. Volumes have one plane, and a dimension for their depth before the rows. ``filters`` is (tap, channel of the
    folded images, filter), or (filter, tap, channel) if ``k_major``."""

    gemm: Gemm
    images: Buffer
    filters: Buffer
    overlapped: bool
    planes: int
    k_major: bool

    @property
    def _taps(self) -> int:
        return self.filters.shape[1 if self.k_major else 0]

    @property
    def _tap_rows(self) -> int:
        """How many taps there are along the rows of a plane."""
        return self._taps // (self.planes * math.prod(self._window.taps[:-2]))

    @property
    def _channels(self) -> int:
        """How many channels of the folded images a window sees at once."""
        return self._window.taps[-1] * self.images.shape[-2] * self.images.shape[-1]

    @property
    def _window(self) -> ImageWindow:
        assert self.gemm.window is not None
        return self.gemm.window

    def product(self) -> Gemm:
        """Return the product on what has been folded."""
        old, channels, extra = self._window, self._channels, int(self.planes > 1)  # dimensions
        planes = (self.planes,) * extra
        window = replace(
            old,
            taps=(*old.taps[:-2], *planes, self._tap_rows, 1),
            positions=(*(1,) * extra, *old.positions),
            dilations=(*old.dilations[:-2], *(1,) * (extra + 2)),
            strides=(*old.strides[:-2], *(1,) * (extra + 2)),
            lower=(*old.lower[:-2], *(0,) * (extra + 2)),
            channels=channels,
            patch=(old.patch[0], *(1,) * extra, *old.patch[1:]) if old.patch else (),
            halo=None if old.halo is None else old.halo + extra,
        )
        image = Load(self.seen, (*window.corner(Var("m")), Var("k")))
        k = (Var(TAP), Var("k"))
        filters = Load(self.filters, (Var("n"), *k) if self.k_major else (*k, Var("n")))
        return replace(self.gemm, a=Operand(image, image, 0, 1), b=Operand(filters, filters, 0, 0), window=window)

    @property
    def seen(self) -> Buffer:
        """The folded images as (image, depth or plane, row, position, channel)."""
        outer, window = self._outer, self._window
        found = replace(self.images, shape=(*outer, window.positions[-1], self._channels))
        *others, column = self.images.strides[: len(outer) + 1]
        step = window.strides[-1] * column if self.overlapped else column
        return replace(found, layout=Layout((*others, step, 1)))

    @property
    def _is_single_row(self) -> bool:
        """Whether images have one spatial dimension, which is along their rows."""
        assert self.gemm.a.load is not None
        return len(self.gemm.a.load.buffer.shape) == 3

    @property
    def _outer(self) -> tuple[int, ...]:
        """The extents over images, depths, planes and rows."""
        return self.images.shape[: len(self._window.taps) + (self.planes > 1)]

    def write(self, w: FreshNameWriter) -> None:
        """The launch that folds: a thread copies a phase of a pixel, or a vector of places, or an element of the
        filters. Constant filters have a launch of their own."""
        in_vectors = self._is_single_row and not self.overlapped
        lanes = CHUNK_BYTES // self.images.dtype.bytes if in_vectors else self.images.shape[-1]
        pixels, write = self.images.elements // lanes, self._write_vector if in_vectors else self._write_pixel
        first = -(-pixels // THREADS)
        filter_ctas = -(-self.filters.elements // THREADS)
        assert self.gemm.b.load is not None
        apart = self.gemm.is_constant(self.gemm.b.load.buffer)
        if apart:
            with w.launch("fold_filters", _axes(filter_ctas)) as (cta, thread):
                element = cta * THREADS + thread
                with w.when(element < self.filters.elements):
                    self._write_filter(w, element)
        with w.launch("fold", _axes(first if apart else first + filter_ctas)) as (cta, thread):
            pixel, element = cta * THREADS + thread, (cta - first) * THREADS + thread
            with w.when(pixel < pixels):
                write(w, pixel)
            if not apart:
                with w.when(cta >= first, element < self.filters.elements):
                    self._write_filter(w, element)

    def _write_pixel(self, w: FreshNameWriter, number: Expr) -> None:
        """Copy the channels of a phase of a pixel, zeros where it is padding."""
        assert self.gemm.a.load is not None
        source, pitch, (*_, above, left) = self.gemm.a.load.buffer, self.images.shape[-1], self._window.lower
        to = delinearize(number, self.images.shape[:-1])
        (image, *depths, row), (*columns, phase) = to[: len(self._outer)], to[len(self._outer) :]
        plane = depths.pop() if self.planes > 1 else phase
        y, x = row * self._window.strides[-2] + plane + above, columns[0] + left
        if not self.overlapped:
            x = columns[0] * self._window.strides[-1] + columns[1] + left
        place = (x,) if self._is_single_row else (*depths, y, x)
        inside = logical_and(
            *(i >= 0 for i in place),
            *(i < extent for i, extent in zip(place, source.shape[1:], strict=False)),
        )
        channels = Ramp(index(0), 1, pitch)
        vector = (*(Broadcast(i, pitch) for i in to), channels)
        exists = channels < Broadcast(index(source.shape[-1]), pitch)
        with w.when(negated(inside)):
            w.store(self.images, vector, Broadcast(const(0.0, source.dtype), pitch))
        with w.when(inside):
            at = (*(Broadcast(i, pitch) for i in (image, *place)), channels)
            w.store(self.images, vector, Load(source, at, exists))

    def _write_vector(self, w: FreshNameWriter, number: Expr) -> None:
        """Copy 16 bytes of what a window sees of one row with one channel, zeros where it is padding."""
        assert self.gemm.a.load is not None
        source, (*outer, taps), lower = self.gemm.a.load.buffer, self.images.shape[:-2], self._window.lower
        width = CHUNK_BYTES // source.dtype.bytes
        image, row, position, part = delinearize(number, (*outer, taps // width))
        seen = w.allocate("seen", (width,), source.dtype, MemoryScope.REGISTER)
        first = position * self._window.strides[-1] + part * width + lower[-1]
        with w.unrolled("element", width) as e:
            inside = logical_and(first + e >= 0, first + e < source.shape[1])
            w.store(seen, (e,), Load(source, (image, first + e, index(0)), inside))
        zero = index(0)
        at = (*(Broadcast(i, width) for i in (image, row, position)), Ramp(part * width, 1, width))
        to = (*at, Broadcast(zero, width), Broadcast(zero, width))
        w.store(self.images, to, Load(seen, (Ramp(zero, 1, width),)))

    def _write_filter(self, w: FreshNameWriter, element: Expr) -> None:
        """Copy an element of the filters, zero where there is none."""
        assert self.gemm.b.load is not None
        window, (phases, pitch) = self._window, self.images.shape[-2:]
        to = delinearize(element, self.filters.shape)
        tap, folded, n = (*to[1:], to[0]) if self.k_major else to
        place, phase, channel = folded // (phases * pitch), folded // pitch % phases, folded % pitch
        rows = self._tap_rows
        depth, rest = tap // (rows * self.planes), tap % (rows * self.planes)
        row = rest * phases + phase if self.planes == 1 else rest % rows * self.planes + rest // rows
        w.store(self.filters, to, const(0.0, self.filters.dtype))
        exists = [row < window.taps[-2], channel < window.channels]
        exists += [place < window.taps[-1]] if self.k_major else [n < self.gemm.n.extent]
        with w.when(*exists):
            at = {TAP: (depth * window.taps[-2] + row) * window.taps[-1] + place, "k": channel, "n": n}
            w.store(self.filters, to, substitute(self.gemm.b.load, at))


def _axes(ctas: int) -> list[tuple[str, int, HardwareAxis]]:
    return [("fold_cta", ctas, HardwareAxis.GRID_X), ("fold_thread", THREADS, HardwareAxis.THREAD)]


def folding_of(
    gemm: Gemm, overlapped: bool = True, image_name: str = "folded_images", filter_name: str = "folded_filters"
) -> Folding | None:
    """Return how ``gemm`` is folded; None where channels are many, or what a window sees of some rows has more than 64
    elements. What windows see of a single row with one channel is written for each of them where it does not begin at
    multiples of 16 bytes."""
    window, image, filters, atom = gemm.window, gemm.a.load, gemm.b.load, find_atom(gemm)
    if window is None or image is None or filters is None or atom is None or gemm.batch:
        return None
    if set(window.dilations[-2:]) != {1} or image.buffer not in gemm.inputs or window.channels > MOST_CHANNELS:
        return None
    if len(window.taps) > 2 and join_row_taps(gemm) is not None:  # needs no copy
        return None
    vector = CHUNK_BYTES // atom.a.bytes
    single_row = len(window.taps) == 1
    if single_row:
        if window.channels > 1 or (window.taps[0] >= LEAST_ALONE and window.strides[0] % vector == 0):
            return None
        window = _in_two_dimensions(window)
        gemm, overlapped = replace(gemm, window=window), overlapped and window.strides[1] % vector == 0
    found = (1, 1) if single_row else _phases_and_pitch(window, vector)
    if found is None:
        return None
    (phases, pitch), (*_, down, step), (*depths, high, wide) = found, window.strides, window.taps
    planes = down // phases
    if planes > 1 and depths:
        return None
    tap_rows, channels = -(-high // down), wide * phases * pitch
    row = (window.positions[-1] - 1) * step if overlapped else 0
    width = next(n for n in count(row + wide) if n * phases * pitch % vector == 0)
    columns = (width,) if overlapped else (window.positions[-1], width)
    outer = (window.images, planes) if planes > 1 else (window.images, *image.buffer.shape[1 : 1 + len(depths)])
    shape = (*outer, window.positions[-2] - 1 + tap_rows, *columns, phases, pitch)
    images, taps = Buffer(image_name, shape, image.buffer.dtype), math.prod(depths) * planes * tap_rows
    if atom.transposes:
        of_filters = (taps, channels, -(-gemm.n.extent // vector) * vector)
    else:
        of_filters = (gemm.n.extent, taps, -(-channels // vector) * vector)
    folded_filters = Buffer(filter_name, of_filters, filters.buffer.dtype)
    return Folding(gemm, images, folded_filters, overlapped, planes, not atom.transposes)


def _in_two_dimensions(window: ImageWindow) -> ImageWindow:
    """``window`` over one spatial dimension as one over images of one row."""
    return replace(
        window,
        taps=(1, *window.taps),
        dilations=(1, *window.dilations),
        positions=(1, *window.positions),
        strides=(1, *window.strides),
        lower=(0, *window.lower),
        patch=(window.patch[0], 1, *window.patch[1:]) if window.patch else (),
        halo=None if window.halo is None else window.halo + 1,
    )


def _phases_and_pitch(window: ImageWindow, vector: int) -> tuple[int, int] | None:
    """Return how many rows follow one another within a pixel, and how many channels are written of each. They are as
    few as TMA can load in rows that begin at multiples of ``vector`` elements. What a window sees of these rows has
    ``MOST_FOLDED`` elements at most. None where there are no such numbers."""
    *_, down, step = window.strides
    for phases in dict.fromkeys((down, 1)):
        pitches = [n for n in (1, 2, 4, 8) if n >= window.channels and step * phases * n % vector == 0]
        if pitches and window.taps[-1] * phases * pitches[0] <= MOST_FOLDED:
            return phases, pitches[0]
    return None
