"""Operations of graphics processors: barriers, asynchronous copies, matrix instructions. (Launches stand in ``stmt``,
exchange between lanes and blocks in ``expr``.)

All threads of a launch run the same statements. Within a block nothing orders two threads but a barrier; within a
warp, also a Shuffle, a LoadMatrix, an Mma or a warp's barrier. Blocks of one cluster meet at a
cluster's barrier; other blocks of a launch never. Launches of a kernel run one after the other, each seeing all that
the earlier wrote. Barriers and the statements and expressions of whole warps and warpgroups must be reached by all
threads they concern, together.
"""

from dataclasses import dataclass
from enum import StrEnum

from ..core.dtypes import DType, bfloat16, float16, float32
from .buffer import Buffer, Swizzle
from .expr import WARP_LANES, Expr
from .stmt import Operation


class Level(StrEnum):
    """Who meets at a barrier; writes before it are seen after it by all who met. A group is a warpgroup, of 4 warps."""

    WARP = "warp"
    WARPGROUP = "warpgroup"
    BLOCK = "block"
    CLUSTER = "cluster"


@dataclass(frozen=True, slots=True)
class Barrier(Operation):
    level: Level = Level.BLOCK


@dataclass(frozen=True, slots=True)
class ClusterLoadWait(Operation):
    """Waits until the loads from other blocks (ClusterLoad) that ``value``, a scalar, was computed from are done. A
    cluster's barrier waits for all of them anyway, and for all stores to global memory too; where every load is
    awaited ahead of it, it need not."""

    value: Expr


@dataclass(frozen=True, slots=True)
class CopyAsync(Operation):
    """Starts a copy of ``elements`` neighbours from global ``source[source_indices]`` on to shared
    ``target[target_indices]`` on; 4, 8 or 16 bytes, both ends aligned to that. Where ``mask`` is false, zeros arrive
    and nothing is read. The data is there for this thread once it has waited (CopyAsyncWait), for others after a
    barrier that follows."""

    target: Buffer
    target_indices: tuple[Expr, ...]
    source: Buffer
    source_indices: tuple[Expr, ...]
    elements: int
    mask: Expr | None = None


@dataclass(frozen=True, slots=True)
class Prefetch(Operation):
    """Asks for ``elements`` neighbours from global ``source[source_indices]`` on to be brought into the cache in front
    of memory, in whole units of 16 bytes (simplest where they are such themselves). Nothing is read by it: that cache
    is where all writes meet, so what a load finds there later is what was written last. What stands ahead of all else
    in a launch is therefore asked for while earlier launches still run, whatever they write."""

    source: Buffer
    source_indices: tuple[Expr, ...]
    elements: int


@dataclass(frozen=True, slots=True)
class CopyAsyncCommit(Operation):
    """Closes the group of the asynchronous copies that this thread started since the last one."""


@dataclass(frozen=True, slots=True)
class CopyAsyncWait(Operation):
    """Waits until at most ``pending`` of this thread's committed groups are still under way, the youngest."""

    pending: int


@dataclass(frozen=True, slots=True)
class MbarrierInit(Operation):
    """Prepares the arrival barrier ``barriers[index]`` (shared, dtype int64) for ``count`` arrivals a phase. One thread
    does it; a block barrier must follow before anybody uses it."""

    barriers: Buffer
    index: Expr
    count: int


@dataclass(frozen=True, slots=True)
class BulkCopy(Operation):
    """One thread starts a copy of ``elements`` contiguous elements from global ``source[source_indices]`` on to
    unswizzled shared ``target[target_indices]`` on, and arrives at ``barriers[index]`` expecting their bytes: the
    phase ends when the arrivals are complete and the bytes are there. Bytes and both addresses are multiples of 16."""

    target: Buffer
    target_indices: tuple[Expr, ...]
    source: Buffer
    source_indices: tuple[Expr, ...]
    elements: int
    barriers: Buffer
    index: Expr


SWIZZLE_ROW_BYTES = 128
"""Bytes of a row of a swizzled box in shared memory, also what an unswizzled one is aligned to."""


@dataclass(frozen=True, slots=True)
class TmaLoad(Operation):
    """One thread starts a copy of the box of ``box`` elements (one extent for each dimension of the source) that begins
    at global ``source[source_indices]``, row-major on to shared ``target[target_indices]`` on. Where the box leaves the
    source, zeros arrive. The phase of ``barriers[index]`` under way ends no earlier than its bytes are there: the copy
    arrives expecting them, as BulkCopy does, unless they are ``tx_expected``, by an MbarrierArriveExpectTx.

    The source is a parameter of the kernel, which the hardware knows by a tensor map (1 to 5 dimensions, all strides
    but the last multiples of 16 bytes). Along its last dimension the box begins at a multiple of 16 bytes (for an H200
    an instruction with any other place there is an illegal one, swizzled or not). The target lies as ``tma_swizzle``
    says, the last extent of the box being a row of ``SWIZZLE_ROW_BYTES``, and begins at a whole period of it; or it
    has no
    swizzle and begins at a multiple of 128 bytes. What is read once (``Launch.streamed``) leaves the caches first.

    ``multicast``: the box arrives, at the same place, in each block of the cluster whose bit (1 << its number) is set,
    and counts at the same barrier of each; it must be tx_expected, there by each block itself. The cluster must have
    met
    since those barriers were prepared, and must meet again before a block ends.
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


@dataclass(frozen=True, slots=True)
class TmaPrefetch(Operation):
    """One thread asks, as Prefetch does, for the box of ``box`` elements that begins at global
    ``source[source_indices]``. What holds for the source of a TmaLoad holds here; some such copy in the launch
    copies boxes of this shape."""

    source: Buffer
    source_indices: tuple[Expr, ...]
    box: tuple[int, ...]


def tma_swizzle(dtype: DType) -> Swizzle:
    """The one swizzle of targets of tensor copies: pieces of 16 bytes, exchanged by their row modulo 8."""
    return Swizzle(3, (16 // dtype.bytes).bit_length() - 1, 3)


@dataclass(frozen=True, slots=True)
class MbarrierArrive(Operation):
    """This thread arrives at ``barriers[index]``: whoever awaits the phase sees what it did before. What it read may
    be overwritten then, by copies too. ``rank``: at the barrier of that block of the cluster (see TmaLoad for when
    that may be), which then knows what this thread read, but not what it wrote; None: of its own."""

    barriers: Buffer
    index: Expr
    rank: Expr | None = None


@dataclass(frozen=True, slots=True)
class MbarrierArriveExpectTx(Operation):
    """This thread arrives at ``barriers[index]``, whose phase then ends no earlier than ``bytes`` more of tx_expected
    copies are there. What it says of the order of other things is the same as with MbarrierArrive."""

    barriers: Buffer
    index: Expr
    bytes: int


@dataclass(frozen=True, slots=True)
class MbarrierWait(Operation):
    """Waits until the phase of ``barriers[index]`` with this ``parity`` (0 for the first, then alternating) has
    ended."""

    barriers: Buffer
    index: Expr
    parity: Expr


WAVEFRONT_LANES = 2 * WARP_LANES
"""Lanes of a wave, as AMD's processors run them together: two warps."""


@dataclass(frozen=True, slots=True)
class MmaAtom:
    """A matrix instruction of a whole warp, or of a wave of two: ``D[m, n] += A[m, k] @ B[k, n]`` on fragments in
    registers of its ``lanes``.

    Every lane holds ``m*k/lanes`` elements of A, ``k*n/lanes`` of B and ``m*n/lanes`` of D; ``fragment`` says which
    (PTX ISA, "Matrix Fragments for mma.m16n8k16"; AMD Instinct MI300 ISA, "Matrix Arithmetic Instructions").
    """

    name: str
    m: int
    n: int
    k: int
    operand: DType
    accumulator: DType
    lanes: int = WARP_LANES

    def elements(self, part: str) -> int:
        """How many elements of ``part`` (``a``, ``b`` or ``d``) a lane holds."""
        rows, columns = {"a": (self.m, self.k), "b": (self.k, self.n), "d": (self.m, self.n)}[part]
        return rows * columns // self.lanes

    def fragment(self, part: str, lane: int, element: int) -> tuple[int, int]:
        """(row, column) in A, B or D of one element of one lane."""
        if self.lanes == WAVEFRONT_LANES:
            outer, inner = lane % 16, self.elements(part) * (lane // 16) + element
            return (outer, inner) if part == "a" else (inner, outer)
        group, place = lane // 4, lane % 4
        low, half = element % 2, element // 2
        match part:
            case "a":
                return (group + 8 * (half % 2), 2 * place + low + 8 * (half // 2))
            case "b":
                return (2 * place + low + 8 * half, group)
            case _:
                return (group + 8 * half, 2 * place + low)


WARP_MMA_ATOMS: dict[str, MmaAtom] = {
    "m16n8k16_f16": MmaAtom("m16n8k16_f16", 16, 8, 16, float16, float32),
    "m16n8k16_bf16": MmaAtom("m16n8k16_bf16", 16, 8, 16, bfloat16, float32),
}
"""Name -> matrix instruction of a warp (all from sm_80 on)."""
MFMA_ATOMS: dict[str, MmaAtom] = {
    "wave_m16n16k16_f16": MmaAtom("wave_m16n16k16_f16", 16, 16, 16, float16, float32, WAVEFRONT_LANES),
    "wave_m16n16k16_bf16": MmaAtom("wave_m16n16k16_bf16", 16, 16, 16, bfloat16, float32, WAVEFRONT_LANES),
    "wave_m16n16k4_f32": MmaAtom("wave_m16n16k4_f32", 16, 16, 4, float32, float32, WAVEFRONT_LANES),
}
"""The same of a wave (all on gfx942)."""
MMA_ATOMS: dict[str, MmaAtom] = WARP_MMA_ATOMS | MFMA_ATOMS


@dataclass(frozen=True, slots=True)
class Mma(Operation):
    """``d += a @ b`` by one warp, or by each wave of a block: two neighbouring warps, the first with an even number
    (which orders nothing else they do, and stands where all threads of a block get to). ``a``, ``b`` and ``d`` are
    register buffers; each fragment is the run of ``atom.elements(part)`` elements that begins at the indices given,
    along the last dimension."""

    atom: str
    d: Buffer
    d_indices: tuple[Expr, ...]
    a: Buffer
    a_indices: tuple[Expr, ...]
    b: Buffer
    b_indices: tuple[Expr, ...]


WARPGROUP_THREADS = 128
"""Lanes of a warpgroup: 4 warps, the first with a number that 4 divides."""
WGMMA_M = 64
"""Rows of ``a`` in a product of a warpgroup."""
SWIZZLE_128B_ELEMENTS = 64
"""Elements from row to row of its operands in shared memory, 128 bytes."""
SWIZZLE_128B = Swizzle(3, 3, 3)
"""How those rows must be swizzled: chunks of 16 bytes, exchanged within every 8 rows."""


@dataclass(frozen=True, slots=True)
class WarpgroupMma(Operation):
    """Starts ``d += a @ transposed(b)`` by a warpgroup (``wgmma``, sm_90a); ``d = …`` where ``accumulates`` is false
    (a scalar bool, the same in the whole group).

    ``a``: 64 rows, ``b``: ``columns`` rows (8 to 256, a multiple of 8), each of ``depth`` 16-bit elements (16 to 64, a
    multiple of 16), in shared memory, swizzled as ``SWIZZLE_128B``. Usually the elements of a row are neighbours: it
    lies within a run of ``SWIZZLE_128B_ELEMENTS`` elements, in which it begins at a multiple of 16; the next row in
    the next run;
    the first run has a number that 8 divides. ``a_transposed``, ``b_transposed``: the operand lies as ``depth`` runs,
    one for each place of k, of 64 neighbouring rows m or n; the next 64 rows one further along the third last dimension
    of the buffer; the first run has a number that 8 divides, and the first row the beginning of a run.

    ``rows``: of the 64 of ``a``, how many count. The others are read too, whatever may be there or happen to it, and
    the sums of their products mean nothing.

    ``d``: ``columns / 2`` elements of every lane from ``d_indices`` on, along the last dimension: lane ``l`` of the
    group's warp ``w`` holds for every 8 columns the fragment ``d`` of m16n8k16, of rows ``16 * w`` on.

    Until the product was awaited (WarpgroupMmaWait) ``d`` may be touched by nothing but another WarpgroupMma on the
    very same
    elements, and what it reads must not change. What threads wrote to ``a`` and ``b`` (asynchronous copies of threads
    too) must be ordered by a AsyncProxyFence of the writer and then a barrier; what BulkCopy and TmaLoad bring, by
    awaiting the arrival barrier, in each warp.
    """

    d: Buffer
    d_indices: tuple[Expr, ...]
    a: Buffer
    a_indices: tuple[Expr, ...]
    b: Buffer
    b_indices: tuple[Expr, ...]
    columns: int
    depth: int
    accumulates: Expr | bool = True
    a_transposed: bool = False
    b_transposed: bool = False
    rows: int = WGMMA_M


@dataclass(frozen=True, slots=True)
class WarpgroupMmaWait(Operation):
    """Waits until at most ``pending`` of the WarpgroupMma statements of this warpgroup are still under way, the
    youngest.
    Of the others ``d`` is there. What they read may then be overwritten by whoever is ordered after the first warp of
    the group."""

    pending: int


@dataclass(frozen=True, slots=True)
class AsyncProxyFence(Operation):
    """What this thread wrote to shared memory is seen by WarpgroupMma, TmaStore and TmaLoad that are ordered (by a
    barrier, say) after this."""


@dataclass(frozen=True, slots=True)
class SetMaxRegisters(Operation):
    """Each thread of a warpgroup has ``count`` registers from now on (24 to 240, a multiple of 8): ``increase`` says
    whether that is more, which waits until there are so many, or less than before (``setmaxnreg``, sm_90a)."""

    count: int
    increase: bool


@dataclass(frozen=True, slots=True)
class LoadMatrix(Operation):
    """One warp loads ``count`` (1, 2 or 4) matrices of 8 rows of 8 16-bit elements from shared memory (``ldmatrix``).

    Lane ``8*i + r`` gives in ``source_indices`` where row ``r`` of matrix ``i`` begins (8 contiguous elements, aligned
    to 16 bytes; lanes from ``8*count`` on give any). Lane ``l`` receives of matrix ``i`` the elements ``(l // 4,
    2 * (l % 4))`` and the one after it, as elements ``2*i`` and ``2*i + 1`` from ``target[target_indices]`` on;
    ``transposed``: of the transposed matrices.
    """

    target: Buffer
    target_indices: tuple[Expr, ...]
    source: Buffer
    source_indices: tuple[Expr, ...]
    count: int
    transposed: bool = False


@dataclass(frozen=True, slots=True)
class StoreMatrix(Operation):
    """The counterpart of LoadMatrix (``stmatrix``, sm_90): one warp stores ``count`` matrices of 8 rows of 8 16-bit
    elements to shared memory. Lanes say in ``target_indices`` where rows begin, and hold the elements from
    ``source[source_indices]`` on, just as there; ``transposed``: of the transposed matrices."""

    target: Buffer
    target_indices: tuple[Expr, ...]
    source: Buffer
    source_indices: tuple[Expr, ...]
    count: int
    transposed: bool = False


@dataclass(frozen=True, slots=True)
class TmaStore(Operation):
    """One thread starts a copy of shared memory from ``source[source_indices]`` on to the box of ``box`` elements that
    begins at global ``target[target_indices]``; what lies outside of the target is not written. Both are as in
    TmaLoad. What threads wrote to the source must be ordered by a AsyncProxyFence of the writer, then a barrier. It
    must
    not change before this thread has waited for the copy (TmaStoreWait). The target is not read in this launch."""

    target: Buffer
    target_indices: tuple[Expr, ...]
    source: Buffer
    source_indices: tuple[Expr, ...]
    box: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TmaStoreCommit(Operation):
    """Closes the group of the TensorStores that this thread started since the last one."""


@dataclass(frozen=True, slots=True)
class TmaStoreWait(Operation):
    """Waits until the sources of all but the youngest ``pending`` of this thread's committed groups have been read, and
    may be overwritten."""

    pending: int
