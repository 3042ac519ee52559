"""Matrix instructions of one thread with accumulators in tensor memory (``tcgen05``, sm_100a).

Tensor memory has 128 lanes of 512 columns of 32 bits for each multiprocessor (PTX ISA, "Tensor Memory"). A block
allocates whole columns of it. A buffer of scope ``tensor`` is (lane, column).
"""

from dataclasses import dataclass

from ...core.dtypes import (
    DType,
    bfloat16,
    float8_e4m3fn,
    float8_e5m2,
    float16,
    float32,
    int8,
    int32,
    tfloat32,
    uint8,
)
from ..buffer import Buffer
from ..expr import Expr
from ..stmt import Operation
from .wgmma import LINE_BYTES, STEP_BYTES

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
class Tcgen05Atom:
    """``tcgen05.mma`` on operands of two dtypes (PTX ISA, "tcgen05.mma"). ``kind`` is its qualifier. An instruction
    takes ``k`` places of k, and a line of an operand in shared memory has ``line`` elements."""

    a: DType
    b: DType
    accumulator: DType
    kind: str

    @property
    def k(self) -> int:
        return STEP_BYTES // self.a.bytes

    @property
    def line(self) -> int:
        return LINE_BYTES // self.a.bytes

    @property
    def transposes(self) -> bool:
        """Whether an operand may be M-major or N-major here. The hardware allows it for 8 bits, too."""
        return self.a.bits == 16

    def takes(self, m: int, n: int) -> bool:
        """Whether there is an instruction for ``m`` rows and ``n`` columns: in steps of 8 for 64 rows, of 16 for 128
        rows, and of 16 beyond 32 columns of integers (PTX ISA, "tcgen05 matrix shape")."""
        step = 16 if m == MMA_M[1] or (self.a.is_integer and n > 32) else 8
        return m in MMA_M and step <= n <= MOST_MMA_N and n % step == 0


_FLOATS8, _INTEGERS8 = (float8_e4m3fn, float8_e5m2), (int8, uint8)
TCGEN05_ATOMS: dict[tuple[str, str], Tcgen05Atom] = {
    (atom.a.name, atom.b.name): atom
    for atom in (
        *(Tcgen05Atom(d, d, float32, "f16") for d in (float16, bfloat16)),
        Tcgen05Atom(tfloat32, tfloat32, float32, "tf32"),
        *(Tcgen05Atom(a, b, float32, "f8f6f4") for a in _FLOATS8 for b in _FLOATS8),
        *(Tcgen05Atom(a, b, int32, "i8") for a in _INTEGERS8 for b in _INTEGERS8),
    )
}
"""(dtype of a, dtype of b) -> instruction."""


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
class TensorMemoryCommit(Operation):
    """An arrival at ``barriers[index]`` follows as soon as all TensorMemoryMma that this thread has started are done.

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
