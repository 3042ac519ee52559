"""Products of up to 64 rows on matrix instructions, the weights on their side of 16 rows and the tokens on that of 8.

Every warp streams its own share of the weights through a ring in shared memory that it alone fills and empties, so that
many bytes are under way all the time. Warps of a block share out ``n`` and ``k``, the blocks of a cluster share out
``k`` again: so a block needs only a part of the tokens. Partial sums meet in shared memory, those of a cluster by loads
from its other blocks, always added in the same order.
"""

from dataclasses import dataclass

from ....core.dtypes import float32
from ....ir.buffer import Buffer, Layout, MemoryScope, Swizzle
from ....ir.expr import WARP_LANES, Compare, CompareOp, Expr, Load, const, index, logical_and, minimum
from ....ir.gpu.async_copy import CopyAsync, CopyAsyncCommit, CopyAsyncWait
from ....ir.gpu.barrier import SyncScope
from ....ir.gpu.ldmatrix import LoadMatrix
from ....ir.gpu.mma import WARP_MMA_ATOMS, Mma
from ....ir.rewrite import substitute
from ....ir.stmt import HardwareAxis, Kernel, LoopKind
from ...problems.gemm import Gemm, Operand
from ...tile.naming import NamingWriter
from ...tile.register_reads import flat_offset
from ..l2_prefetch import L2Prefetch, ask_for_operands
from ..split_k import Share, add_up, partial_sums

UNROLLED = LoopKind.UNROLLED

PIECE = 8
"""Elements of one asynchronous copy: 16 bytes."""
ROWS, COLUMNS, DEPTH = 16, 8, 16
"""What a matrix instruction takes of ``n``, ``m`` and ``k``."""


@dataclass(frozen=True, slots=True)
class SkinnySetting:
    """``rows``: times 16 outputs ``n`` of a warp. ``warps_n``, ``warps_k``: warps of a block along each. ``chunk``:
    places of ``k`` that a warp takes at a time. ``stages``: how many such pieces its ring holds. ``split``: blocks of a
    cluster, which share out ``k``. ``resident``: blocks meant for a multiprocessor at once. ``ahead``: how many blocks
    along ``n``, the first, ask for operands ahead of the wait for earlier launches."""

    rows: int
    warps_n: int
    warps_k: int
    chunk: int
    stages: int
    split: int
    resident: int
    ahead: int = 0

    @property
    def warps(self) -> int:
        return self.warps_n * self.warps_k

    @property
    def threads(self) -> int:
        return self.warps * WARP_LANES

    @property
    def block_n(self) -> int:
        """Outputs ``n`` of a block."""
        return self.rows * ROWS * self.warps_n

    def steps(self, k: int) -> int:
        """Pieces of ``k`` that every warp works through."""
        return -(-k // (self.split * self.warps_k * self.chunk))


def lower_skinny(p: Gemm, name: str, s: SkinnySetting) -> Kernel:
    """The kernel of one setting."""
    return _Program(p, name, s).kernel()


class _Program:
    def __init__(self, p: Gemm, name: str, s: SkinnySetting) -> None:
        assert p.b.load is not None and p.a.load is not None
        self.p, self.s, self.name = p, s, name
        self.b, self.a = p.b.load, p.a.load
        self.dtype = self.b.buffer.dtype
        self.atom = next(
            a for a in WARP_MMA_ATOMS.values() if a.operand == self.dtype and (a.m, a.n, a.k) == (ROWS, COLUMNS, DEPTH)
        )
        self.token_tiles = -(-p.m.extent // COLUMNS)
        self.along_k = p.b.k == 1
        self.steps = s.steps(p.k.extent)
        self.shared_tokens = s.warps_n > 1
        self.w = NamingWriter(p.names)
        self.copies = 0

    def kernel(self) -> Kernel:
        p, s, w = self.p, self.s, self.w
        bounds = [
            ("block", -(-p.n.extent // s.block_n), HardwareAxis.GRID_X),
            ("rank", s.split, HardwareAxis.CLUSTER),
            ("warp", s.warps, HardwareAxis.WARP),
            ("lane", WARP_LANES, HardwareAxis.LANE),
        ]
        if s.split == 1:
            del bounds[1]
        with w.launch(self.name, bounds, min_blocks=s.resident) as axes:
            self.block, self.warp, self.lane = axes[0], axes[-2], axes[-1]
            self.rank: Expr = axes[1] if s.split > 1 else index(0)
            self.warp_n = self.warp // s.warps_k if s.warps_n > 1 else index(0)
            self.warp_k = self.warp % s.warps_k if s.warps_k > 1 else index(0)
            self._ask_ahead()
            sums = w.allocate("sums", (s.rows, self.token_tiles, 4), float32, MemoryScope.REGISTER)
            with w.scope():
                self._multiply(sums)
            with w.scope():
                self._finish(sums)
        return Kernel(self.name, p.inputs, tuple(r.tensor for r in p.results), (), w.finish())

    def _ask_ahead(self) -> None:
        """The weights that fill half of the rings, where they lie along ``k`` with the warps' pieces side by side.
        (More costs time on an H200: 10 % where rings are asked for twice over.)"""
        p, s = self.p, self.s
        whole, reach = s.split * s.warps_k * s.chunk, s.warps_k * s.chunk
        if not self.along_k or p.k.extent % whole:
            return
        thread, blocks = (self.warp * WARP_LANES + self.lane, s.threads), -(-p.n.extent // s.block_n)
        ask = L2Prefetch(self.w, thread, (self.block, blocks), s.ahead)
        ask_for_operands(ask, p, s.block_n, self.rank * (self.steps * reach), min(s.stages // 2, self.steps) * reach)

    # --- the ring

    def _ring(self, name: str, owners: int, rows: int, columns: int) -> Buffer:
        """Stages of tiles of ``rows`` by ``columns``: (owner, stage, row, column). Eight rows at one column lie in
        different banks: by a swizzle, or by 16 bytes of padding where a row is no power of two."""
        stages, pitch = self.s.stages, tile_pitch(columns)
        swizzle = Swizzle(3, 3, columns.bit_length() - 4) if pitch == columns else None
        layout = Layout((stages * rows * pitch, rows * pitch, pitch, 1), swizzle)
        return self.w.allocate(name, (owners, stages, rows, columns), self.dtype, MemoryScope.SHARED, layout)

    def _multiply(self, sums: Buffer) -> None:
        s, w = self.s, self.w
        wide = s.rows * ROWS
        tile = (wide, s.chunk) if self.along_k else (s.chunk, wide)
        self.weight_ring = self._ring("weight_ring", s.warps, *tile)
        owners = s.warps_k if self.shared_tokens else s.warps
        self.token_ring = self._ring("token_ring", owners, self.token_tiles * COLUMNS, s.chunk)
        ahead = s.stages - 1
        with w.loop("early", ahead, UNROLLED) as early:
            with w.when(early < self.steps if ahead > self.steps else None):
                self._copy(early, early)
            w.emit(CopyAsyncCommit())
        with (
            w.loop("zero_row", s.rows, UNROLLED) as i,
            w.loop("zero_tile", self.token_tiles, UNROLLED) as j,
            w.loop("zero_sum", 4, UNROLLED) as e,
        ):
            w.store(sums, (i, j, e), const(0.0, float32))
        with w.loop("step", self.steps) as step:
            w.emit(CopyAsyncWait(ahead - 1))
            w.barrier(SyncScope.BLOCK if self.shared_tokens else SyncScope.WARP)
            if self.steps > ahead:
                with w.when(step + ahead < self.steps):
                    self._copy(step + ahead, (step + ahead) % s.stages)
            w.emit(CopyAsyncCommit())
            self._products(sums, step % s.stages)
        w.emit(CopyAsyncWait(0))
        w.barrier()

    def _copy(self, step: Expr, stage: Expr) -> None:
        """Start the copies of one step of this warp."""
        s = self.s
        k = ((self.rank * self.steps + step) * s.warps_k + self.warp_k) * s.chunk
        n = self.block * s.block_n + self.warp_n * (s.rows * ROWS)
        alone = (index(0), 1)
        if self.along_k:
            self._copy_tile("w", self.b, self.weight_ring, self.warp, stage, ("n", n), ("k", k), alone)
        else:
            self._copy_tile("w", self.b, self.weight_ring, self.warp, stage, ("k", k), ("n", n), alone)
        owner = self.warp_k if self.shared_tokens else self.warp
        share = (self.warp_n, s.warps_n) if self.shared_tokens else alone
        self._copy_tile("x", self.a, self.token_ring, owner, stage, ("m", index(0)), ("k", k), share)

    def _copy_tile(
        self,
        tag: str,
        load: Load,
        ring: Buffer,
        owner: Expr,
        stage: Expr,
        outer: tuple[str, Expr],
        inner: tuple[str, Expr],
        share: tuple[Expr, int],
    ) -> None:
        """Copy a tile whose rows lie along axis ``outer`` (name, first place) and columns along ``inner``; ``share``:
        which of how many warps this one is. What lies outside of the tensor along ``k`` or ``m`` becomes zeros; along
        ``n`` anything that exists will do."""
        w, rows, columns = self.w, ring.shape[2], ring.shape[3]
        pieces = columns // PIECE
        number, sharers = share
        rounds = -(-rows * pieces // (WARP_LANES * sharers))
        self.copies += 1
        with w.loop(f"{tag}_copy_{self.copies}", rounds, UNROLLED) as turn:
            item = (turn * sharers + number) * WARP_LANES + self.lane
            row, column = item // pieces, (item % pieces) * PIECE
            at = {outer[0]: outer[1] + row, inner[0]: inner[1] + column}
            mask = self._inside(at)
            spare = rounds * WARP_LANES * sharers > rows * pieces
            with w.when(Compare(CompareOp.LT, row, index(rows)) if spare else None):
                indices = tuple(substitute(i, at) for i in load.indices)
                w.emit(CopyAsync(ring, (owner, stage, row, column), load.buffer, indices, PIECE, mask))

    def _inside(self, at: dict[str, Expr]) -> Expr | None:
        """The condition that a piece lies in its tensor; along ``n`` the place is moved inside instead."""
        p, s = self.p, self.s
        terms = []
        if p.n.extent % s.block_n and "n" in at:
            last = p.n.extent - (1 if self.along_k else PIECE)
            at["n"] = minimum(at["n"], index(last))
        if p.k.extent % (s.split * s.warps_k * s.chunk):
            terms.append(Compare(CompareOp.LT, at["k"], index(p.k.extent)))
        if "m" in at and p.m.extent % COLUMNS:
            terms.append(Compare(CompareOp.LT, at["m"], index(p.m.extent)))
        return logical_and(*terms) if terms else None

    # --- the products of a step

    def _products(self, sums: Buffer, stage: Expr) -> None:
        s, w, lane = self.s, self.w, self.lane
        owner = self.warp_k if self.shared_tokens else self.warp
        low, high = lane % 8, lane // 8
        with w.loop("pair", s.chunk // (2 * DEPTH), UNROLLED) as pair:
            a = w.allocate("a", (s.rows, 2, 8), self.dtype, MemoryScope.REGISTER)
            b = w.allocate("b", (self.token_tiles, 8), self.dtype, MemoryScope.REGISTER)
            with w.loop("a_row", s.rows, UNROLLED) as i, w.loop("a_half", 2, UNROLLED) as h:
                k = pair * (2 * DEPTH) + h * DEPTH
                if self.along_k:
                    source = (self.warp, stage, i * ROWS + (high % 2) * 8 + low, k + (high // 2) * 8)
                else:
                    source = (self.warp, stage, k + (high // 2) * 8 + low, i * ROWS + (high % 2) * 8)
                w.emit(LoadMatrix(a, (i, h, index(0)), self.weight_ring, source, 4, not self.along_k))
            with w.loop("b_tile", self.token_tiles, UNROLLED) as j:
                place = (owner, stage, j * COLUMNS + low, pair * (2 * DEPTH) + high * 8)
                w.emit(LoadMatrix(b, (j, index(0)), self.token_ring, place, 4))
            with (
                w.loop("tile", self.token_tiles, UNROLLED) as j,
                w.loop("row", s.rows, UNROLLED) as i,
                w.loop("half", 2, UNROLLED) as h,
            ):
                zero = index(0)
                w.emit(Mma(self.atom.name, sums, (i, j, zero), a, (i, h, zero), b, (j, h * 4)))

    # --- the end

    def _finish(self, sums: Buffer) -> None:
        p, s, w = self.p, self.s, self.w
        m_extent, columns = p.m.extent, s.block_n
        partials = partial_sums(w, p, s.warps_k, columns, float32)
        with (
            w.loop("sum_row", s.rows, UNROLLED) as i,
            w.loop("sum_tile", self.token_tiles, UNROLLED) as j,
            w.loop("sum_half", 2, UNROLLED) as h,
            w.loop("sum_low", 2, UNROLLED) as e,
        ):
            m = j * COLUMNS + (self.lane % 4) * 2 + e
            n = self.warp_n * (s.rows * ROWS) + i * ROWS + h * 8 + self.lane // 4
            with w.when(Compare(CompareOp.LT, m, index(m_extent)) if m_extent % COLUMNS else None):
                w.store(partials, (self.warp_k, m, n), Load(sums, (i, j, h * 2 + e)))
        block = Share(p, self.block, columns, self.rank, s.split, self.warp * WARP_LANES + self.lane, s.threads)
        add_up(w, block, partials, s.warps_k)


def tile_pitch(columns: int) -> int:
    """Elements from line to line of a tile with ``columns``: padded unless a swizzle can spread it over the banks."""
    return columns if columns >= 64 and columns & (columns - 1) == 0 else columns + PIECE


def can_lower(p: Gemm) -> bool:
    """Whether both operands are plain loads of one type that matrix instructions take, in rows of whole copies: the
    tokens along ``k``, the weights along ``k`` or ``n``."""
    w, t = p.b, p.a
    if w.load is None or t.load is None or p.accumulator.dtype != float32:
        return False
    if w.load.buffer.dtype != t.load.buffer.dtype or not any(
        a.operand == w.load.buffer.dtype for a in WARP_MMA_ATOMS.values()
    ):
        return False
    return _in_pieces(t, p.k.extent, t.k, t.row) and (
        _in_pieces(w, p.k.extent, w.k, w.row) or _in_pieces(w, p.n.extent, w.row, w.k)
    )


def _in_pieces(operand: Operand, extent: int, inner: int, outer: int) -> bool:
    """Whether rows lie one element beside the other, begin at whole pieces and have a whole number of them."""
    assert operand.load is not None
    start = flat_offset(operand.load)
    return (
        inner == 1 and extent % PIECE == 0 and outer % PIECE == 0 and start is not None and start.constant % PIECE == 0
    )
