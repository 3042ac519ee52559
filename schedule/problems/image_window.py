"""The left operand of a convolution as a matrix: images seen through a window, without a copy of what it shows.

A row of that matrix is a position of the window, which is an output pixel. A column is a place of the window (a *tap*)
and a channel:

    A[m, (tap, channel)] = image[number(m), start(m) + dilation * tap, channel]
"""

from dataclasses import dataclass
from math import prod

from ...ir.expr import Expr
from ..tile.delinearize import delinearize

TAP = "tap"
"""The axis of ``k`` over the taps of a window. ``k`` itself is the channel then."""


@dataclass(frozen=True, slots=True)
class ImageWindow:
    """A window over one to three spatial dimensions of images; each field has a number for each of them, except
    ``channels``: how many channels a product adds up, those of one group.

    ``taps``: how many places the window has. ``dilations``: how many pixels these are apart. ``positions``: how many
    output pixels there are. ``strides``: how many pixels of the image those are apart. ``lower``: the pixel of the
    image at which the window stands first; it is negative where images are padded.
    ``taps_innermost``: whether k goes through all taps of some channels before the next channels. Otherwise it goes
    through all channels of a tap before the next tap.
    """

    taps: tuple[int, ...]
    dilations: tuple[int, ...]
    positions: tuple[int, ...]
    strides: tuple[int, ...]
    lower: tuple[int, ...]
    channels: int
    taps_innermost: bool = False

    @property
    def tap_count(self) -> int:
        return prod(self.taps)

    def corner(self, m: Expr) -> tuple[Expr, ...]:
        """(number of the image, pixel of the image along each dimension) at which the window stands for output pixel
        ``m`` of all images."""
        pixels = prod(self.positions)
        positions = delinearize(m % pixels, self.positions)
        sides = zip(positions, self.strides, self.lower, strict=True)
        return (m // pixels, *(position * stride + first for position, stride, first in sides))

    def offsets(self, tap: Expr) -> tuple[Expr, ...]:
        """How far a tap lies from the first one along each dimension, in pixels."""
        places = delinearize(tap, self.taps)
        return tuple(place * dilation for place, dilation in zip(places, self.dilations, strict=True))
