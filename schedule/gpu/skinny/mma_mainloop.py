"""Writes the kernel of ``cuda_skinny_mma``: products with at most 64 rows on mma.sync, fed by cp.async.

Rows of operands may begin anywhere. Such rows are copied with the aligned vectors that they lie in, as far as they are
inside of the tensor, and fragments are loaded element by element from where each row begins in shared memory
(``shifted_tiles``), not by ldmatrix.

B is the left operand of the matrix instruction, so that its 16 rows are outputs ``n`` and its 8 columns are rows ``m``
of A: few rows waste little then. Every warp multiplies its own tiles of B. It alone fills and empties their circular
buffer in shared memory, so that many bytes are in flight without a barrier of the block.

    for each of the first stages - 1 tiles of k:  cp.async of the tile; commit
    for each tile of k:
        wait until the tile has arrived
        cp.async of the tile that is stages - 1 further on; commit
        ldmatrix of A and B; mma.sync
    partial accumulators of all warps and of the blocks of the cluster are added in a fixed order; epilogue

The warps of a block divide ``n`` and ``k`` among them. Warps along ``n`` share their tiles of A, and then meet at a
barrier of the block for each tile. The blocks of a cluster divide ``k`` again (split-K): so a block needs only a part
of A.
"""

from collections.abc import Mapping

from ....core.dtypes import float32
from ....core.precision import TF32
from ....ir.buffer import Buffer, MemoryScope
from ....ir.expr import WARP_LANES, Broadcast, Expr, Load, Ramp, conjunction, const, index, minimum
from ....ir.gpu.async_copy import CopyAsync, CopyAsyncCommit, CopyAsyncWait
from ....ir.gpu.barrier import SyncScope
from ....ir.gpu.ldmatrix import LoadMatrix
from ....ir.gpu.mma import Mma
from ....ir.rewrite import substitute
from ....ir.stmt import Kernel
from ....te.functions import cast
from ...loop_nest.nest import KERNEL_NAME
from ...problems.gemm import Gemm
from ...tile.names import FreshNameWriter
from ..gemm_mma.operands import atom_of, find_mma_atom
from ..l2_prefetch import L2Prefetch, prefetch_operands
from ..launch_axes import warp_axes
from ..split_k import ColumnSlice, allocate_partials, reduce_columns
from .mma_sizes import SkinnyMmaSizes
from .mma_tiles import ATOM_M, ATOM_N, COPY_ELEMENTS, tile_layout
from .shifted_tiles import ShiftedRows, can_shift, is_for_ldmatrix, is_in_vectors, shifted_rows_of


def lower_skinny_mma(p: Gemm, s: SkinnyMmaSizes[int]) -> Kernel:
    """Return the kernel of one setting."""
    return _SkinnyMmaWriter(p, s).kernel()


class _SkinnyMmaWriter:
    def __init__(self, p: Gemm, s: SkinnyMmaSizes[int]) -> None:
        assert p.b.load is not None and p.a.load is not None
        self.p, self.s = p, s
        self.b, self.a = p.b.load, p.a.load
        self.dtype = self.b.buffer.dtype
        self.atom = atom_of(p)
        self.a_is_k_major, self.b_is_k_major = p.a.k == 1, p.b.k == 1
        self.shifted_a, self.shifted_b = (shifted_rows_of(p, o) for o in (p.a, p.b))
        self.shares_a = s.warps_n > 1
        self.warp_n = s.atoms_n * ATOM_M
        self.k_is_whole = p.k.extent % (s.split_k * s.warps_k * s.tile_k) == 0
        self.w = FreshNameWriter(p.names)
        self.copies = 0

    def kernel(self) -> Kernel:
        p, s, w = self.p, self.s, self.w
        bounds = warp_axes(s.blocks_n, s.warps, s.split_k)
        with w.launch(KERNEL_NAME, bounds, min_blocks=s.ctas_per_sm) as axes:
            self.block, self.warp, self.lane = axes[0], axes[-2], axes[-1]
            self.rank: Expr = axes[1] if s.split_k > 1 else index(0)
            self.warp_idx_n = self.warp // s.warps_k if s.warps_n > 1 else index(0)
            self.warp_idx_k = self.warp % s.warps_k if s.warps_k > 1 else index(0)
            self.a_owner = self.warp_idx_k if self.shares_a else self.warp
            self._prefetch()
            accumulators = w.allocate("accumulators", (s.atoms_n, s.atoms_m, 4), float32, MemoryScope.REGISTER)
            with w.scope():
                self._mainloop(accumulators)
            with w.scope():
                self._epilogue(accumulators)
        return Kernel(KERNEL_NAME, p.inputs, tuple(r.tensor for r in p.results), (), w.finish())

    def _prefetch(self) -> None:
        """L2 prefetch of the B that fills half of the stages, where B is K-major and the warps of a block read
        neighbouring tiles. (More costs time on an H200: 10 % where the stages are prefetched twice over.)"""
        p, s = self.p, self.s
        step = s.warps_k * s.tile_k
        if not self.b_is_k_major or not self.k_is_whole or self.shifted_b is not None:
            return
        thread = (self.warp * WARP_LANES + self.lane, s.threads)
        prefetch = L2Prefetch(self.w, thread, (self.block, s.blocks_n), s.prefetching_ctas)
        elements = min(s.stages // 2, s.k_tiles) * step
        prefetch_operands(prefetch, p, s.block_n, self.rank * (s.k_tiles * step), elements)

    # --- the stages in shared memory

    def _stages(self, name: str, owners: int, rows: int, columns: int, shifted: ShiftedRows | None) -> Buffer:
        """Return a circular buffer of tiles for each owner: (owner, stage, row, column)."""
        shape = (owners, self.s.stages, rows, columns + (0 if shifted is None else shifted.vector))
        layout = tile_layout(shape) if shifted is None else None
        return self.w.allocate(name, shape, self.dtype, MemoryScope.SHARED, layout)

    def _mainloop(self, accumulators: Buffer) -> None:
        s, w = self.s, self.w
        b_tile = (self.warp_n, s.tile_k) if self.b_is_k_major else (s.tile_k, self.warp_n)
        self.b_stages = self._stages("b_stages", s.warps, *b_tile, self.shifted_b)
        rows = s.atoms_m * ATOM_N
        owners, a_tile = s.warps_k if self.shares_a else s.warps, (rows, s.tile_k)
        a_tile = a_tile if self.a_is_k_major else (s.tile_k, rows)
        self.a_stages = self._stages("a_stages", owners, *a_tile, self.shifted_a)
        distance = s.stages - 1
        with w.unrolled("prologue", distance) as k_tile:
            with w.when(k_tile < s.k_tiles if distance > s.k_tiles else None):
                self._copy(k_tile, k_tile)
            w.emit(CopyAsyncCommit())
        with (
            w.unrolled("zero_n", s.atoms_n) as i,
            w.unrolled("zero_m", s.atoms_m) as j,
            w.unrolled("zero_element", 4) as e,
        ):
            w.store(accumulators, (i, j, e), const(0.0, float32))
        with w.loop("k_tile", s.k_tiles) as k_tile:
            w.emit(CopyAsyncWait(distance - 1))
            w.barrier(SyncScope.BLOCK if self.shares_a else SyncScope.WARP)
            if s.k_tiles > distance:
                with w.when(k_tile + distance < s.k_tiles):
                    self._copy(k_tile + distance, (k_tile + distance) % s.stages)
            w.emit(CopyAsyncCommit())
            self._multiply(accumulators, k_tile % s.stages)
        w.emit(CopyAsyncWait(0))
        w.barrier()

    def _copy(self, k_tile: Expr, stage: Expr) -> None:
        """Start the copies of one tile of ``k`` of this warp."""
        s = self.s
        k = ((self.rank * s.k_tiles + k_tile) * s.warps_k + self.warp_idx_k) * s.tile_k
        n = self.block * s.block_n + self.warp_idx_n * self.warp_n
        alone = (index(0), 1)
        b_corner = {"n": n, "k": k} if self.b_is_k_major else {"k": k, "n": n}
        self._copy_tile("b", self.shifted_b or self.b, self.b_stages, (self.warp, stage), b_corner, alone)
        sharing = (self.warp_idx_n, s.warps_n) if self.shares_a else alone
        a_corner = {"m": index(0), "k": k} if self.a_is_k_major else {"k": k, "m": index(0)}
        self._copy_tile("a", self.shifted_a or self.a, self.a_stages, (self.a_owner, stage), a_corner, sharing)

    def _copy_tile(
        self,
        operand: str,
        source: Load | ShiftedRows,
        stages: Buffer,
        to: tuple[Expr, Expr],
        corner: Mapping[str, Expr],
        sharing: tuple[Expr, int],
    ) -> None:
        """Copy one tile to the owner and stage ``to``. ``corner`` has the first index along the rows of the tile and
        the first along its columns, by axis. ``sharing``: which warp this is, of how many that copy the tile. What lies
        outside of the tensor along ``k`` or ``m`` becomes zeros; along ``n`` any values will do."""
        w, rows, columns = self.w, stages.shape[2], stages.shape[3]
        (row_axis, first_row), (column_axis, first_column) = corner.items()
        copied = source.vector if isinstance(source, ShiftedRows) else COPY_ELEMENTS
        vectors = columns // copied
        number, warps = sharing
        rounds = -(-rows * vectors // (WARP_LANES * warps))
        self.copies += 1
        with w.unrolled(f"{operand}_copy_{self.copies}", rounds) as turn:
            vector = (turn * warps + number) * WARP_LANES + self.lane
            row, column = vector // vectors, (vector % vectors) * copied
            at = {row_axis: first_row + row, column_axis: first_column + column}
            spare = rounds * WARP_LANES * warps > rows * vectors
            with w.when(row < rows if spare else None):
                if isinstance(source, ShiftedRows):
                    source.copy(w, stages, to, corner, row, vector % vectors)
                else:
                    mask = self._inside(at)
                    indices = tuple(substitute(i, at) for i in source.indices)
                    w.emit(CopyAsync(stages, (*to, row, column), source.buffer, indices, COPY_ELEMENTS, mask))
        if isinstance(source, ShiftedRows):
            source.copy_rest(w, stages, to, corner, number * WARP_LANES + self.lane)

    def _inside(self, at: dict[str, Expr]) -> Expr | None:
        """Return the condition that a vector lies in its tensor. Along ``n`` the index is clamped instead."""
        p, s = self.p, self.s
        terms = []
        if p.n.extent % s.block_n and "n" in at:
            last = p.n.extent - (1 if self.b_is_k_major else COPY_ELEMENTS)
            at["n"] = minimum(at["n"], index(last))
        if not self.k_is_whole:
            terms.append(at["k"] < p.k.extent)
        if "m" in at and p.m.extent % ATOM_N:
            terms.append(at["m"] < p.m.extent)
        return conjunction(*terms)

    # --- one tile of k

    def _multiply(self, accumulators: Buffer, stage: Expr) -> None:
        """Fragments of B and A by ldmatrix, two atoms along ``k`` at a time, and their products."""
        s, w, lane, atom = self.s, self.w, self.lane, self.atom
        low, high = lane % 8, lane // 8
        with w.unrolled("k_pair", s.tile_k // (2 * atom.k)) as pair:
            b = w.allocate("b", (s.atoms_n, 2, atom.elements("a")), atom.operand, MemoryScope.REGISTER)
            a = w.allocate("a", (s.atoms_m, 2 * atom.elements("b")), atom.operand, MemoryScope.REGISTER)
            with w.unrolled("b_atom", s.atoms_n) as i, w.unrolled("b_half", 2) as h:
                k = pair * (2 * atom.k) + h * atom.k
                if self.shifted_b is not None:
                    self._load_shifted_b(b, i, h, k, stage)
                else:
                    n_row, n_column = i * ATOM_M + (high % 2) * 8 + low, k + (high // 2) * 8
                    k_row, k_column = k + (high // 2) * 8 + low, i * ATOM_M + (high % 2) * 8
                    row, column = (n_row, n_column) if self.b_is_k_major else (k_row, k_column)
                    source = (self.warp, stage, row, column)
                    w.emit(LoadMatrix(b, (i, h, index(0)), self.b_stages, source, 4, not self.b_is_k_major))
            with w.unrolled("a_atom", s.atoms_m) as j:
                k = pair * (2 * atom.k)
                if self.shifted_a is not None:
                    self._load_shifted_a(a, j, k, stage)
                else:
                    at = (self.a_owner, stage, j * ATOM_N + low, k + high * 8)
                    w.emit(LoadMatrix(a, (j, index(0)), self.a_stages, at, 4))
            with (
                w.unrolled("atom_m", s.atoms_m) as j,
                w.unrolled("atom_n", s.atoms_n) as i,
                w.unrolled("half", 2) as h,
            ):
                zero = index(0)
                w.emit(Mma(atom.name, accumulators, (i, j, zero), b, (i, h, zero), a, (j, h * atom.elements("b"))))

    def _load_shifted_b(self, b: Buffer, i: Expr, half: Expr, k: Expr, stage: Expr) -> None:
        """Load the fragment of an atom, in the order of ldmatrix: quarter by quarter, first along ``n``."""
        assert self.shifted_b is not None
        for quarter in range(4):
            n = i * ATOM_M + (quarter % 2 * 8 + self.lane // 4)
            at = k + quarter // 2 * (self.atom.k // 2)
            tile = (self.b_stages, (self.warp, stage))
            self._load_shifted(b, (i, half), quarter, self.shifted_b, tile, n, at)

    def _load_shifted_a(self, a: Buffer, j: Expr, k: Expr, stage: Expr) -> None:
        """Load the fragments of two atoms, in the order of ldmatrix: quarter by quarter along ``k``."""
        assert self.shifted_a is not None
        for quarter in range(4):
            m, at = j * ATOM_N + self.lane // 4, k + quarter * (self.atom.k // 2)
            tile = (self.a_stages, (self.a_owner, stage))
            self._load_shifted(a, (j,), quarter, self.shifted_a, tile, m, at)

    def _load_shifted(
        self,
        fragment: Buffer,
        to: tuple[Expr, ...],
        quarter: int,
        rows: ShiftedRows,
        tile: tuple[Buffer, tuple[Expr, Expr]],
        own: Expr,
        k: Expr,
    ) -> None:
        """Load what the register number ``quarter`` of a fragment at ``to`` holds: the elements at ``own`` along ``m``
        or ``n`` that this lane has of the places from ``k`` on. ``tile``: the stages, and the owner and stage. Float32
        is rounded."""
        w, (stages, at), together, k_major = self.w, tile, self.atom.register_elements, rows.column == "k"
        first, k = quarter * together, k + self.lane % 4 * together
        if k_major and together > 1:
            pair = rows.elements(stages, at, own, k, together)
            w.store(fragment, (*(Broadcast(i, together) for i in to), Ramp(index(first), 1, together)), pair)
            return
        for e in range(together):
            element = rows.elements(stages, at, *((own, k) if k_major else (k + e, own)), 1)
            w.store(fragment, (*to, index(first + e)), cast(element, self.atom.operand))

    def _epilogue(self, accumulators: Buffer) -> None:
        """Every warp writes its accumulators to shared memory, where the block and its cluster add them up."""
        p, s, w = self.p, self.s, self.w
        m_extent = p.m.extent
        partials = allocate_partials(w, p, s.warps_k, s.block_n, float32)
        with (
            w.unrolled("out_n", s.atoms_n) as i,
            w.unrolled("out_m", s.atoms_m) as j,
            w.unrolled("out_half", 2) as h,
            w.unrolled("out_low", 2) as e,
        ):
            m = j * ATOM_N + (self.lane % 4) * 2 + e
            n = self.warp_idx_n * self.warp_n + i * ATOM_M + h * 8 + self.lane // 4
            with w.when(m < m_extent if m_extent % ATOM_N else None):
                w.store(partials, (self.warp_idx_k, m, n), Load(accumulators, (i, j, h * 2 + e)))
        thread = self.warp * WARP_LANES + self.lane
        reduce_columns(w, ColumnSlice(p, self.block, s.block_n, self.rank, s.split_k, thread, s.threads), partials)


def can_lower_skinny_mma(p: Gemm) -> bool:
    """Return whether both operands are plain loads of one 16-bit type that mma.sync takes, A K-major and B K-major or
    N-major, in rows that are whole vectors of 16 bytes, and the accumulator is float32."""
    return _can_multiply(p) and all(is_for_ldmatrix(p, o) for o in (p.a, p.b))


def can_shift_skinny_mma(p: Gemm) -> bool:
    """Return whether an operand has rows that begin or end elsewhere, and the same holds else. Where B has, A may lie
    along ``m``, and operands may be float32 that are rounded to TF32; a copy of A alone takes little time."""
    if not _can_multiply(p) or all(is_in_vectors(p, o) for o in (p.a, p.b)):
        return False
    if is_in_vectors(p, p.b) and (p.a.k != 1 or p.precision == TF32):
        return False
    return all(is_for_ldmatrix(p, o) or can_shift(o) for o in (p.a, p.b))


def _can_multiply(p: Gemm) -> bool:
    """Return whether mma.sync takes both operands, which are loads."""
    if find_mma_atom(p) is None or p.accumulator.dtype != float32:
        return False
    return all(1 in (o.k, o.row) for o in (p.a, p.b))
