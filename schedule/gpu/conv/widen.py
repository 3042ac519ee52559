"""Groups whose channels are no whole steps of a wgmma, widened: 16 of 16-bit floats, 8 of TF32.

Several groups become one. A first launch copies their filters to the diagonal blocks of a matrix, with zeros beside
them. Images stay as they are. Most of what is multiplied then is zero, but what takes time is to load the images. (An
infinity in a channel of another group becomes NaN, since it is multiplied with zero.)

    26 groups of 8      13 of 16, which are joined      6 groups of 24      3 of 48: three quarters of a row
    9 groups of 24      3 of 72                         3 groups of 16      one of 48: a row holds them all
"""

from dataclasses import dataclass, replace

from ....ir.buffer import Buffer
from ....ir.expr import Load, Var, const
from ....ir.gpu.wgmma import WgmmaAtom
from ....ir.rewrite import substitute
from ....ir.stmt import HardwareAxis
from ....ir.verifier.tma import CHUNK_BYTES
from ....te.functions import equal
from ...problems.gemm import Gemm, Operand
from ...problems.image_window import TAP
from ...tile.delinearize import delinearize
from ...tile.names import FreshNameWriter
from ..gemm.k_atoms import is_grouped
from ..gemm.mma_atom import find_atom
from .join import join_groups

CHANNELS_PER_LOAD = 128
"""A channel is multiplied with so many others of its group while it is loaded, about."""
MOST_CHANNELS = 256
"""A widened group has so many channels at most: beyond that, zeros take longer to multiply than images to load."""
THREADS = 256
"""Threads of a CTA of the launch that copies filters."""


@dataclass(frozen=True, slots=True)
class Widening:
    """How the groups of ``gemm`` are widened: ``count`` of them become one. ``filters`` is (tap, channel, group,
    filter), or (tap, group, filter, channel) if ``k_major``."""

    gemm: Gemm
    count: int
    filters: Buffer
    k_major: bool

    def product(self) -> Gemm:
        """Return the product of widened groups."""
        wide = join_groups(self.gemm, self.count)
        assert wide.window is not None
        window = replace(wide.window, joined_groups=1)
        place = (Var(wide.batch[0].name), Var("n"))
        load = Load(self.filters, (Var(TAP), *place, Var("k")) if self.k_major else (Var(TAP), Var("k"), *place))
        k = replace(wide.k, extent=window.tap_count * window.channels)
        return replace(wide, b=Operand(load, load, 0, 0), k=k, window=window)

    def write(self, w: FreshNameWriter) -> None:
        """The launch that copies filters, an element by each thread."""
        assert self.gemm.b.load is not None and self.gemm.window is not None
        ctas, (n, channels) = -(-self.filters.elements // THREADS), (self.gemm.n.extent, self.gemm.window.channels)
        axes = [("widen_cta", ctas, HardwareAxis.GRID_X), ("widen_thread", THREADS, HardwareAxis.THREAD)]
        with w.launch("widen", axes) as (cta, thread):
            element = cta * THREADS + thread
            with w.when(element < self.filters.elements):
                to = delinearize(element, self.filters.shape)
                tap, channel, group, column = (to[0], to[3], *to[1:3]) if self.k_major else to
                w.store(self.filters, to, const(0.0, self.filters.dtype))
                at = {TAP: tap, "k": channel % channels, "n": column % n}
                at[self.gemm.batch[0].name] = group * self.count + channel // channels
                with w.when(equal(channel // channels, column // n)):
                    w.store(self.filters, to, substitute(self.gemm.b.load, at))


def widening_of(gemm: Gemm, name: str = "widened_filters") -> Widening | None:
    """Return how groups of ``gemm`` are widened; None where they have enough channels, or cannot be."""
    window, atom = gemm.window, find_atom(gemm)
    if window is None or atom is None or gemm.b.load is None or not is_grouped(gemm) or len(gemm.batch) > 1:
        return None
    group = gemm.batch[0]
    count = _widened(group.extent, window.channels, atom)
    channels, filters = count * window.channels, count * gemm.n.extent
    if count == 1 or channels > MOST_CHANNELS or filters % (CHUNK_BYTES // atom.a.bytes):
        return None
    if gemm.a.load is None or gemm.a.load.buffer.shape[-1] * gemm.a.load.dtype.bytes % CHUNK_BYTES:
        return None  # TMA reads images as they are
    groups = (group.extent // count, filters)
    shape = (window.tap_count, channels, *groups) if atom.transposes else (window.tap_count, *groups, channels)
    return Widening(gemm, count, Buffer(name, shape, gemm.b.load.buffer.dtype), not atom.transposes)


def _widened(groups: int, channels: int, atom: WgmmaAtom) -> int:
    """Return how many groups become one: all that do not fill a row of 128 bytes together, else as many as take the
    least time of those that have whole steps of a wgmma, or all."""
    if groups * channels < atom.line:
        return groups
    wide = [n for n in range(1, groups + 1) if groups % n == 0]
    fit = [n for n in wide if n * channels % atom.k == 0 or n == groups]
    return min(fit, key=lambda n: _cost(groups // n, n * channels, atom.line))


def _cost(groups: int, channels: int, line: int) -> float:
    """Return how long it takes to load and multiply a channel, compared to loading it from a whole row of 128 bytes.
    Groups that fill a row together can be joined."""
    joined = line // channels if line % channels == 0 and groups * channels >= line else 1
    rows = -(-groups // joined) * -(-joined * channels // line)
    return rows * line / (groups * channels) + channels / CHANNELS_PER_LOAD
