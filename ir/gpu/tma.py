"""The tensor memory accelerator (TMA): boxes of tensors that the copy engine loads and stores (sm_90)."""

from dataclasses import dataclass

from ...core.dtypes import DType
from ..buffer import Buffer, Swizzle
from ..expr import Expr
from ..stmt import Operation

SWIZZLE_ROW_BYTES = 128
"""How many bytes a row of a swizzled box has in shared memory. An unswizzled box is aligned to as many."""
MAX_BOX_EXTENT = 256
"""The largest extent of a box along any dimension."""
MAX_IM2COL_PIXELS, MAX_IM2COL_CHANNELS = 1024, 256
"""The most pixels and channels of an im2col box."""


@dataclass(frozen=True, slots=True)
class Im2col:
    """The pixels of images at which a window stands (im2col mode of TMA).

    The tensor is (image, spatial dimensions, channel), with one to three spatial dimensions. Along each of these the
    window stands at ``positions`` pixels, from pixel ``lower`` on, ``strides`` apart. A box of (pixels, channels) takes
    so many positions one after the other, those of the last spatial dimension first, across rows and images. The zeros
    that arrive for what lies outside of the images are their padding.
    """

    lower: tuple[int, ...]
    positions: tuple[int, ...]
    strides: tuple[int, ...]

    def upper(self, extents: tuple[int, ...]) -> tuple[int, ...]:
        """Return how far the last position is from the last pixel of each spatial dimension, of so many pixels: the
        upper corner of ``cuTensorMapEncodeIm2col``."""
        sides = zip(self.lower, self.positions, self.strides, extents, strict=True)
        return tuple(lower + (count - 1) * stride - (extent - 1) for lower, count, stride, extent in sides)


def largest_offset(dimensions: int) -> int:
    """Return the largest offset of an im2col load along each of so many spatial dimensions, which share 16 bits. It is
    one less than what they hold, as in CUTLASS."""
    return (1 << 16 // dimensions) - 2


def corner_range(dimensions: int) -> range:
    """Return the corners that an im2col tensor map can hold along each of so many spatial dimensions."""
    side = 1 << (16 // dimensions - 1)
    return range(-side, side)


@dataclass(frozen=True, slots=True)
class TmaLoad(Operation):
    """One thread starts a copy of a box of a tensor to shared memory.

    ``box`` has an extent for each dimension of the source. The box begins at global ``source[source_indices]`` and
    arrives row-major from shared ``target[target_indices]`` on; zeros arrive for what lies outside of the source. The
    phase of the mbarrier ``barriers[index]`` that is under way ends no earlier than the bytes of the box are there. The
    copy itself arrives there and expects them, as BulkCopy does, unless ``tx_expected``: then an MbarrierArriveExpectTx
    expects them.

    The source is a parameter of the kernel, which the hardware knows by a tensor map: it has 1 to 5 dimensions, and all
    its strides but the last are multiples of 16 bytes. Along its last dimension the box begins at a multiple of 16
    bytes. (For an H200 an instruction with any other index there is an illegal one, swizzled or not.)

    TMA may see the source in another shape than it is declared with, of as many elements, or with other strides, which
    may be so small that rows overlap.

    With ``im2col`` the box is (pixels, channels) at the positions of a window. ``source_indices`` name the first
    channel, and the pixel of the position with which the box begins. Each pixel is read ``offsets`` further (along each
    spatial dimension, not negative): which place of the window that is.

    A target of tfloat32 may have a source of float32, whose elements are rounded on their way.

    The target is swizzled as ``tma_swizzle`` says, or not at all. With the swizzle, the last extent of the box is a row
    of ``SWIZZLE_ROW_BYTES``, and the box begins at a whole period of it; without, the box begins at a multiple of 128
    bytes. What ``Launch.evict_first`` names leaves the L2 cache first.

    ``multicast`` is a mask of blocks of the cluster: the box arrives, at the same offset, in each block whose bit
    (1 << its rank) is set, and its bytes count at the same mbarrier of each. It must be ``tx_expected``, by each block
    itself. The cluster must have synchronised since those mbarriers were initialised, and must do so again before a
    block ends.
    """

    target: Buffer
    target_indices: tuple[Expr, ...]
    source: Buffer
    source_indices: tuple[Expr, ...]
    box: tuple[int, ...]
    barriers: Buffer
    index: Expr
    tx_expected: bool = False
    multicast: Expr | None = None
    im2col: Im2col | None = None
    offsets: tuple[Expr, ...] = ()


@dataclass(frozen=True, slots=True)
class TmaPrefetch(Operation):
    """One thread asks for the box of ``box`` elements that begins at global ``source[source_indices]`` to be brought
    into the L2 cache, as Prefetch does. What holds for the source of a TmaLoad holds here, ``im2col`` included. Some
    TmaLoad of the launch must copy boxes of this shape."""

    source: Buffer
    source_indices: tuple[Expr, ...]
    box: tuple[int, ...]
    im2col: Im2col | None = None
    offsets: tuple[Expr, ...] = ()


@dataclass(frozen=True, slots=True)
class TmaStore(Operation):
    """One thread starts a copy from shared ``source[source_indices]`` on to the box of ``box`` elements that begins at
    global ``target[target_indices]``. What lies outside of the target is not written.

    Source and target are as the target and the source of TmaLoad. What threads wrote to the source must be ordered by
    an AsyncProxyFence of the writer and then a barrier. The source must not change before this thread has waited for
    the copy (TmaStoreWait). The target is not read in this launch.
    """

    target: Buffer
    target_indices: tuple[Expr, ...]
    source: Buffer
    source_indices: tuple[Expr, ...]
    box: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TmaStoreCommit(Operation):
    """Closes the group of the TmaStore statements that this thread started since its last commit."""


@dataclass(frozen=True, slots=True)
class TmaStoreWait(Operation):
    """Waits until the sources of all but the youngest ``pending`` of this thread's committed groups have been read, and
    may be overwritten."""

    pending: int


def tma_swizzle(dtype: DType) -> Swizzle:
    """Return the one swizzle of boxes in shared memory: chunks of 16 bytes, permuted by their row modulo 8."""
    return Swizzle(3, (16 // dtype.bytes).bit_length() - 1, 3)
