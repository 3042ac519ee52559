"""The left operand of a convolution as a matrix: images seen through a window, without a copy of what it shows.

A row of that matrix is a position of the window, which is an output pixel. A column is a place of the window (a *tap*)
and a channel:

    A[m, (tap, channel)] = image[number(m), start(m) + dilation * tap, channel]

The rows may come in the order of the output pixels in memory, or patch by patch. A patch is a box of neighbouring
pixels, perhaps of several images. Taps that follow one another along one dimension see almost the same pixels. If a
patch is loaded with a *halo* along that dimension, which is its slowest one then, each of these taps reads a part:

    halo of 8 pixels for 3 taps    0 1 2 3 4 5 6 7 8 9
    tap 0                          0 1 2 3 4 5 6 7
    tap 1                            1 2 3 4 5 6 7 8
    tap 2                              2 3 4 5 6 7 8 9
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from ...ir.expr import Expr
from ...ir.gpu.wgmma import SWIZZLE_LINES
from ..tile.delinearize import delinearize

TAP = "tap"
"""The axis of ``k`` over the taps of a window. ``k`` itself is the channel then."""


@dataclass(frozen=True, slots=True)
class ImageWindow:
    """A window over one to three spatial dimensions of ``images``. Each tuple has a number for each of them.

    ``taps``: how many places the window has. ``dilations``: how many pixels these are apart. ``positions``: how many
    output pixels there are. ``strides``: how many pixels of the image those are apart. ``lower``: the pixel of the
    image at which the window stands first; it is negative where images are padded.
    ``channels``: how many channels a product adds up, those of one group, or of ``joined_groups`` that follow one
    another. Each of these is multiplied with filters of its own: an equal part of ``n``, likewise one after another.
    ``taps_innermost``: whether k goes through all taps of some channels before the next channels. Otherwise it goes
    through all channels of a tap before the next tap.
    ``shifts``: how many pixels further the whole window stands, on the axes of the batch, and ``most_shifted``: the
    most of them; empty where it does not depend on them. (It does in the phases of a transposed convolution.)
    ``patch``: how many images and how many output pixels along each dimension a patch has; empty where rows come in the
    order of the pixels. The last patches may go beyond the last pixel.
    ``halo``: the number of the spatial dimension along which patches are loaded with a halo; None where there is none.
    ``packs_filters``: whether filters are packed first, so that their rows lie along the channels.
    """

    images: int
    taps: tuple[int, ...]
    dilations: tuple[int, ...]
    positions: tuple[int, ...]
    strides: tuple[int, ...]
    lower: tuple[int, ...]
    channels: int
    shifts: tuple[Expr, ...] = ()
    most_shifted: int = 0
    taps_innermost: bool = False
    patch: tuple[int, ...] = ()
    joined_groups: int = 1
    halo: int | None = None
    packs_filters: bool = False

    @property
    def tap_count(self) -> int:
        return prod(self.taps)

    @property
    def rows(self) -> int:
        """How many rows there are, those of patches beyond the last pixel included."""
        return prod(self._patch_counts) * prod(self.patch)

    @property
    def _patch_counts(self) -> tuple[int, ...]:
        """How many patches there are of images, and along each dimension; without patches, how many pixels."""
        extents = (self.images, *self.positions)
        return tuple(-(-n // side) for n, side in zip(extents, self.patch or (1,) * len(extents), strict=True))

    @property
    def patch_order(self) -> tuple[int, ...]:
        """The order of the dimensions of a patch (0: images), the slowest one first: that of the halo, if any."""
        order = list(range(len(self.positions) + 1))
        if self.halo is not None:
            order.insert(0, order.pop(self.halo + 1))
        return tuple(order)

    @property
    def halo_taps(self) -> int:
        """How many taps read from what is loaded at once."""
        return 1 if self.halo is None else self.taps[self.halo]

    @property
    def tap_lines(self) -> int:
        """How many pixels further a tap begins to read in a patch with a halo than the one before it."""
        return 0 if self.halo is None else prod(self.patch) // self.patch[self.halo + 1] * self.dilations[self.halo]

    @property
    def patch_pixels(self) -> int:
        """How many pixels are loaded for a patch, those of its halo included."""
        return prod(self.patch) + (self.halo_taps - 1) * self.tap_lines

    @property
    def patch_lines(self) -> int:
        """How many lines further the next patch begins: a multiple of the period of the swizzle."""
        return -(-self.patch_pixels // SWIZZLE_LINES) * SWIZZLE_LINES

    def inside(self, m: Expr) -> tuple[Expr, ...]:
        """Return the conditions on which row ``m`` is a pixel, where patches go beyond the last one."""
        sides = zip(self.position(m), (self.images, *self.positions), self.patch or (1,) * 4, strict=False)
        return tuple(i < extent for i, extent, side in sides if extent % side)

    def position(self, m: Expr) -> tuple[Expr, ...]:
        """Return (number of the image, position of the window along each dimension) of row ``m``. Rows beyond the last
        one are beyond the last image, or beyond the last position along the first dimension that has several
        patches."""
        if not self.patch:
            pixels = prod(self.positions)
            return (m // pixels, *delinearize(m % pixels, self.positions))
        counts = self._patch_counts
        patches = list(delinearize(m // prod(self.patch), counts))
        if prod(counts) == 1:
            patches[0] = m // prod(self.patch)
        order = self.patch_order
        inner = dict(zip(order, delinearize(m % prod(self.patch), [self.patch[n] for n in order]), strict=True))
        return tuple(p * side + inner[n] for n, (p, side) in enumerate(zip(patches, self.patch, strict=True)))

    def corner(self, m: Expr) -> tuple[Expr, ...]:
        """Return (number of the image, pixel of the image along each dimension) at which the window stands for row
        ``m``."""
        number, *positions = self.position(m)
        sides = zip(positions, self.strides, self.lower, strict=True)
        return (number, *(position * stride + first for position, stride, first in sides))

    def offsets(self, tap: Expr) -> tuple[Expr, ...]:
        """Return how far a tap lies from ``corner`` along each dimension, in pixels."""
        places = zip(delinearize(tap, self.taps), self.dilations, strict=True)
        found = tuple(place * dilation for place, dilation in places)
        return tuple(a + b for a, b in zip(found, self.shifts, strict=True)) if self.shifts else found

    def patches(self, pixels: int) -> tuple[tuple[int, ...], ...]:
        """Return all patches of so many pixels, first those of few images, and of these the most even ones."""
        found: list[tuple[int, ...]] = [()]
        for extent in (self.images, *self.positions):
            found = [(*sides, n) for sides in found for n in range(1, pixels + 1) if extent % n == 0]
            found = [sides for sides in found if pixels % prod(sides) == 0]
        whole = [sides for sides in found if prod(sides) == pixels]
        return tuple(sorted(whole, key=lambda sides: (sides[0], max(sides[1:]) / min(sides[1:]), -sides[-1])))

    def ragged_patches(self, pixels: int, run: int) -> tuple[tuple[int, ...], ...]:
        """Return the patches of so many pixels, ``run`` or more of them along the last dimension, that may go beyond
        the last pixel: first those that do so least, then as in ``patches``."""
        extents = (self.images, *self.positions)
        wider = replace(self, images=_wider(extents[0]), positions=tuple(map(_wider, extents[1:])))
        found = [patch for patch in wider.patches(pixels) if patch[-1] >= run]
        return tuple(sorted(found, key=lambda patch: replace(self, patch=patch).rows))

    def with_halo(
        self, pixels: int, unit: int, patches: Sequence[tuple[int, ...]], dimensions: int
    ) -> "ImageWindow | None":
        """Return the window with one of ``patches``, of so many pixels, and a halo along one of the first
        ``dimensions``, such that the fewest pixels are loaded. A tap begins to read at a multiple of ``unit`` lines.
        None where no halo saves anything."""
        found = [
            replace(self, patch=patch, halo=n)
            for patch in patches
            for n, taps in enumerate(self.taps[:dimensions])
            if taps > 1
        ]
        fit = [w for w in found if w.tap_lines % unit == 0 and w.patch_pixels < w.halo_taps * pixels]
        return min(fit, key=lambda w: w.patch_lines / w.halo_taps * (w.rows / self.rows), default=None)


def _wider(extent: int) -> int:
    """Return the next power of two."""
    return 1 << (extent - 1).bit_length()
