"""Matrix instructions of one thread with accumulators in tensor memory (``tcgen05``, sm_100a).

Tensor memory has 128 lanes of 512 columns of 32 bits for each multiprocessor (PTX ISA, "Tensor Memory"). A block
allocates whole columns of it. A buffer of scope ``tensor`` is (lane, column).
"""

from dataclasses import dataclass

from ...core.dtypes import bfloat16, float16, float32, int32, tfloat32
from ..buffer import Buffer
from ..expr import Expr
from ..stmt import Operation
from .wgmma import FLOATS8, INTEGERS8, LINE_BYTES, DescriptorMmaAtom

TENSOR_LANES, TENSOR_COLUMNS = 128, 512
"""How many lanes and columns the tensor memory of a multiprocessor has."""
LEAST_COLUMNS = 32
"""How many columns an allocation has at least. It has a power of two of them."""
MMA_M = (64, 128)
"""How many rows operand ``a`` of a TensorMemoryMma may have."""
MOST_MMA_N = 256
"""How many columns it may have at most."""
QUARTER_LANES, HALF_LANES = 32, 16
"""A warp reaches the quarter of the lanes that its number modulo 4 names, and loads a half of these at once."""


@dataclass(frozen=True, slots=True)
class Tcgen05Atom(DescriptorMmaAtom):
    """``tcgen05.mma`` (PTX ISA, "tcgen05.mma"). ``kind`` is its qualifier."""

    kind: str

    def takes(self, m: int, n: int) -> bool:
        """Return whether there is an instruction for ``m`` rows and ``n`` columns: in steps of 8 for 64 rows, of 16 for
        128 rows, and of 16 beyond 32 columns of integers (PTX ISA, "tcgen05 matrix shape")."""
        step = 16 if m == MMA_M[1] or (self.a.is_integer and n > 32) else 8
        return m in MMA_M and step <= n <= MOST_MMA_N and n % step == 0


TCGEN05_ATOMS: dict[tuple[str, str], Tcgen05Atom] = {
    (atom.a.name, atom.b.name): atom
    for atom in (
        *(Tcgen05Atom(d, d, float32, "f16") for d in (float16, bfloat16)),
        Tcgen05Atom(tfloat32, tfloat32, float32, "tf32"),
        *(Tcgen05Atom(a, b, float32, "f8f6f4") for a in FLOATS8 for b in FLOATS8),
        *(Tcgen05Atom(a, b, int32, "i8") for a in INTEGERS8 for b in INTEGERS8),
    )
}
"""(dtype of a, dtype of b) -> instruction."""


@dataclass(frozen=True, slots=True)
class BlockScaledAtom:
    """``tcgen05.mma`` whose operands have a scale for every ``block`` places of k (PTX ISA, "Block scaling").

    ``kind`` and ``vector`` are its qualifiers. An instruction takes ``k`` places of k. Elements have ``bits`` bits.
    Those of 8 bits are floats of the operands' dtypes. Two of 4 bits (e2m1) lie in a byte of a ``uint8`` buffer,
    the first in its lower half. A scale is a byte: a power of two, 2^(byte - 127) (ue8m0), or a float without a
    sign (ue4m3).
    """

    kind: str
    vector: str
    bits: int
    block: int
    k: int
    powers_of_two: bool

    @property
    def line(self) -> int:
        """How many elements a line of an operand has."""
        return LINE_BYTES * 8 // self.bits

    @property
    def scales(self) -> int:
        """How many scales of a row an instruction takes."""
        return self.k // self.block


BLOCK_SCALED_ATOMS: dict[str, BlockScaledAtom] = {
    "mxfp8": BlockScaledAtom("mxf8f6f4", "1X", 8, 32, 32, powers_of_two=True),
    "mxfp4": BlockScaledAtom("mxf4", "2X", 4, 32, 64, powers_of_two=True),
    "nvfp4": BlockScaledAtom("mxf4nvf4", "4X", 4, 16, 64, powers_of_two=False),
}
"""Name of a format -> instruction (OCP Microscaling Formats Specification; NVIDIA's NVFP4)."""
SCALE_ROWS, SCALE_COLUMNS, SCALES_PER_COLUMN = 128, 4, 4
"""A chunk of scales is that of so many rows. It takes so many columns of tensor memory, each with so many scales of a
row."""
CHUNK_BYTES = SCALE_ROWS * SCALES_PER_COLUMN
"""How many bytes a chunk of scales has."""


@dataclass(frozen=True, slots=True)
class TensorMemoryAllocate(Operation):
    """Allocates the columns of ``buffer``, a ``tensor`` buffer of 128 lanes and a power of two of columns (32 to 512).

    All threads of the block reach it. The first warp allocates. ``address`` is a shared buffer of one int32, through
    which the other threads learn where the columns begin. It synchronises the block.
    """

    buffer: Buffer
    address: Buffer


@dataclass(frozen=True, slots=True)
class TensorMemoryDeallocate(Operation):
    """Deallocates the columns of ``buffer``. All threads of the block reach it, after all products in it have been
    awaited. It synchronises the block. Every allocation must be deallocated before the block ends."""

    buffer: Buffer


@dataclass(frozen=True, slots=True)
class TensorMemoryMma(Operation):
    """One thread starts ``d += a @ transposed(b)``; ``d = a @ transposed(b)`` where ``accumulates`` is false.

    ``a`` has ``m`` rows (64 or 128), ``b`` has ``n`` rows, each of ``k`` elements (a multiple of the atom's, a line at
    most). The dtypes have an atom in ``TCGEN05_ATOMS``. Both lie in shared memory as those of a WarpgroupMma do,
    K-major or transposed.

    The accumulators ``d`` are ``n`` columns of tensor memory from ``d_indices`` (lane 0, column) on. Row ``i`` of 128
    lies in lane ``i``. Of 64 rows, each 16 lie in the lower half of a quarter of the lanes: row ``i`` in lane
    ``i // 16 * 32 + i % 16`` (PTX ISA, "Data path layout organization", layouts D and F).

    Products that one thread starts on the same accumulators follow one another. Until a TensorMemoryCommit of that
    thread has been awaited, nothing else may touch ``d``, and what the product reads must not change. What threads
    wrote to ``a`` and ``b`` must be ordered by an AsyncProxyFence of the writer and then a barrier. What TmaLoad brings
    must be ordered by waiting for the mbarrier.
    """

    d: Buffer
    d_indices: tuple[Expr, ...]
    a: Buffer
    a_indices: tuple[Expr, ...]
    b: Buffer
    b_indices: tuple[Expr, ...]
    m: int
    n: int
    k: int
    accumulates: Expr | bool = True
    a_transposed: bool = False
    b_transposed: bool = False


@dataclass(frozen=True, slots=True)
class TensorMemoryCopy(Operation):
    """One thread starts a copy of ``chunks`` chunks of scales from shared memory to tensor memory, int32. Scales are
    ``uint8`` or ``float8_e4m3fn``.

    A chunk has 4 neighbouring scales along k of 128 rows. Those of row ``i`` begin at byte ``i % 32 * 16 + i // 32 *
    4`` and arrive in column ``i // 32`` of 4, in each lane whose number modulo 32 is ``i % 32`` (``tcgen05.cp`` of
    shape ``.32x128b.warpx4``). The next chunk takes the next 4 columns.

    What this thread issues to tensor memory follows one another. Otherwise what holds for a TensorMemoryMma holds here.
    """

    target: Buffer
    target_indices: tuple[Expr, ...]
    source: Buffer
    source_indices: tuple[Expr, ...]
    chunks: int


@dataclass(frozen=True, slots=True)
class BlockScaledMma(Operation):
    """One thread starts ``d += (a * scales) @ transposed(b * scales)``, as TensorMemoryMma does, for 128 rows of ``a``
    and ``n`` rows of ``b``, of ``k`` elements of the ``atom`` of ``BLOCK_SCALED_ATOMS``. Both are K-major.

    The scales lie in tensor memory, as TensorMemoryCopy brings them. 4 scales along k of all rows of an operand follow
    one another: ``b`` has a chunk for every 128 rows begun. Behind them come the next 4 scales along k.
    """

    d: Buffer
    d_indices: tuple[Expr, ...]
    a: Buffer
    a_indices: tuple[Expr, ...]
    b: Buffer
    b_indices: tuple[Expr, ...]
    a_scales: Buffer
    a_scales_indices: tuple[Expr, ...]
    b_scales: Buffer
    b_scales_indices: tuple[Expr, ...]
    atom: str
    n: int
    k: int
    accumulates: Expr | bool = True


@dataclass(frozen=True, slots=True)
class TensorMemoryCommit(Operation):
    """An arrival at ``barriers[index]`` follows as soon as all products and copies to tensor memory that this thread
    has started are done.

    Whoever waits for that phase may load what they accumulated, and may overwrite what they read. ``multicast`` is a
    mask of blocks of the cluster: the arrival is at the mbarrier of the same offset in each block whose bit (1 << its
    rank) is set. It orders nothing else that this thread did.
    """

    barriers: Buffer
    index: Expr
    multicast: Expr | None = None


@dataclass(frozen=True, slots=True)
class TensorMemoryLoad(Operation):
    """Each warp loads ``columns`` columns (a multiple of 8) of 16 lanes, and waits until they are there.

    ``source_indices`` are the lane within the quarter of this warp (0 or 16), and the first column. ``target`` is a
    register buffer. Each lane gets ``columns / 2`` contiguous elements from ``target_indices`` on: for every 8 columns
    the fragment ``d`` of m16n8k16 (shape ``.16x256b`` of ``tcgen05.ld``).
    """

    target: Buffer
    target_indices: tuple[Expr, ...]
    source: Buffer
    source_indices: tuple[Expr, ...]
    columns: int
