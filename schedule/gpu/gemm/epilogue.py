"""What becomes of the sums of a warpgroup: outputs computed in registers, and stored by threads or as boxes."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from operator import add

from ....ir.buffer import Buffer, Layout, MemoryScope
from ....ir.build import Writer
from ....ir.expr import (
    WARP_LANES,
    Broadcast,
    Cast,
    ClusterLoad,
    Compare,
    CompareOp,
    Expr,
    Load,
    Ramp,
    Select,
    Var,
    const,
    index,
    logical_and,
    minimum,
    walk,
)
from ....ir.gpu.barrier import WARPGROUP_THREADS, SyncScope
from ....ir.gpu.cluster import ClusterLoadWait
from ....ir.gpu.fence import AsyncProxyFence
from ....ir.gpu.ldmatrix import StoreMatrix
from ....ir.gpu.tma import TmaStore, TmaStoreCommit, TmaStoreWait
from ....ir.gpu.wgmma import SWIZZLE_128B, SWIZZLE_128B_ELEMENTS, WGMMA_M
from ....ir.rewrite import free_variables, loads_of
from ....ir.stmt import LoopKind
from ...problems.gemm import Gemm, Result
from ...tile.contiguous import contiguous_vector
from ...tile.stage_body import vector_at
from ..split_k import store_outputs

UNROLLED = LoopKind.UNROLLED
WARPGROUP_WARPS = WARPGROUP_THREADS // WARP_LANES
WARP_ROWS = WGMMA_M // WARPGROUP_WARPS
FEW_SUMS = 128
"""Of a thread, beside which there are registers to store many lines at once: for tile after tile it takes an H200
1 % less of 4095x4097x4093, and 4 to 12 % of 2048x50257x768 with tiles of 128x256. For one tile the longer code takes
longer to come: 8.2 us of 1000x1111x777, not 7.9."""
SPARE_REGISTERS = 30
"""Registers for addresses and constants, roughly (from compiled kernels)."""
VALUE_REGISTERS = 12
"""Further ones where results are more than the cast of an accumulator (likewise)."""
LOADS_AHEAD = 16
"""Of a thread, of sums of all blocks, before it adds up the first of them."""


@dataclass(frozen=True, slots=True)
class _Piece:
    """Columns of a tile that are stored together, by way of ``buffer``: (group, number of the buffer, row, column)."""

    first: int
    columns: int
    buffer: Buffer


@dataclass(frozen=True, slots=True)
class _Box:
    """64 rows (number ``row``) of a piece of one output."""

    result: Result
    piece: _Piece
    row: int


L2Prefetch = Mapping[Load, Buffer]
"""What was read for a box before its sums were needed: loads of its output, and registers."""


class ResultWriter:
    """Writes the outputs of warpgroups, each with ``rows`` times 64 rows of ``wide`` columns; its sums, where there are
    several, lie beside one another. ``boxes``: staging buffers of each group, in turn, from which boxes are copied, or
    where that cannot be (``can_store_boxes``) warps store row by row; 0: threads store from their registers. ``often``:
    whether for tile after tile."""

    def __init__(
        self, w: Writer, p: Gemm, warp: Expr, lane: Expr, groups: int, rows: int, wide: int, boxes: int, often: bool
    ) -> None:
        self.w, self.p, self.warp, self.lane = w, p, warp, lane
        self.groups, self.rows, self.wide, self.boxes, self.often = groups, rows, wide, boxes, often
        self.group, self.quarter = warp // WARPGROUP_WARPS, warp % WARPGROUP_WARPS
        self.leads = logical_and(Compare(CompareOp.EQ, self.quarter, index(0)), Compare(CompareOp.EQ, lane, index(0)))
        self.by_rows = bool(boxes) and not can_store_boxes(p)
        self.pieces: list[_Piece] = []
        whole, rest = wide // SWIZZLE_128B_ELEMENTS, wide % SWIZZLE_128B_ELEMENTS
        if boxes and whole:
            layout = Layout(_strides(boxes, SWIZZLE_128B_ELEMENTS), SWIZZLE_128B)
            stage = self._staging("staged", SWIZZLE_128B_ELEMENTS, layout)
            self.pieces += [_Piece(n * SWIZZLE_128B_ELEMENTS, SWIZZLE_128B_ELEMENTS, stage) for n in range(whole)]
        if boxes and rest:
            self.pieces.append(_Piece(whole * SWIZZLE_128B_ELEMENTS, rest, self._staging("staged_rest", rest, None)))

    def _staging(self, name: str, columns: int, layout: Layout | None) -> Buffer:
        shape = (self.groups, self.boxes, WGMMA_M, columns)
        return self.w.allocate(name, shape, self.p.results[0].tensor.dtype, MemoryScope.SHARED, layout)

    def read_ahead(self, at: Mapping[str, Expr]) -> L2Prefetch:
        """Start to read what the first outputs of ``write`` need besides the sums, which may still be under way."""
        return self._read(self._boxes[0], at) if self.boxes else {}

    def write(self, sums: Buffer, at: Mapping[str, Expr], ahead: L2Prefetch) -> None:
        """Store all outputs of the group's rows from ``at`` on (axis -> place), given its sums and what was read
        ahead."""
        if not self.boxes:
            for row in range(self.rows):
                self._by_threads(sums, row, at)
            return
        for number, box in enumerate(self._boxes):
            here = ahead
            if number + 1 < len(self._boxes):
                ahead = self._read(self._boxes[number + 1], at)
            self._store(sums, box, at, here, number)

    def drain(self) -> None:
        """Wait until the staging buffers have been read."""
        if self.boxes and not self.by_rows:
            with self.w.when(self.leads):
                self.w.emit(TmaStoreWait(0))

    # --- sums of several blocks

    def stage_sums(self, sums: Buffer, partials: Buffer, outer: tuple[Expr, ...] = ()) -> None:
        """Put a group's sums into ``partials``: (row, column) of the block's tile, at ``outer`` in what holds more."""
        w = self.w
        for row in range(self.rows):
            with w.loop("sum_column", self.wide // 8, UNROLLED) as column, w.loop("sum_half", 2, UNROLLED) as half:
                line = (self.group * self.rows + row) * WGMMA_M + self.quarter * 16 + self.lane // 4 + half * 8
                place = Ramp(column * 8 + self.lane % 4 * 2, 1, 2)
                value = Load(sums, (index(row), Ramp(column * 4 + half * 2, 1, 2)))
                w.store(partials, (*(Broadcast(i, 2) for i in outer), Broadcast(line, 2), place), value)

    def add_up(
        self, partials: Buffer, at: Mapping[str, Expr], first: Expr, part: Expr, split: int, threads: int
    ) -> None:
        """Once all blocks of the cluster have staged their sums: add those of the tile, of ``split`` blocks from number
        ``first`` on, and store outputs, each block (this one is number ``part`` of them) its share of the tile's rows:
        its own sums first, then those of the blocks after it, and around."""
        w, p = self.w, self.p
        lines, columns = partials.shape[0] // split, partials.shape[1]
        width = 4 if p.n.extent % 4 == 0 else 1
        items = lines * columns // width
        turns = -(-items // threads)
        at_once = min(turns, max(1, LOADS_AHEAD // split))
        read = w.allocate("read", (at_once, split, width), partials.dtype, MemoryScope.REGISTER)
        total, run = (
            w.allocate("total", (width,), partials.dtype, MemoryScope.REGISTER),
            contiguous_vector((index(0),), width),
        )
        zero = const(0.0, partials.dtype)

        def held(one: Expr, number: int) -> tuple[Expr, ...]:
            """Where sums of the block that is so many after this one are, of a turn."""
            return contiguous_vector((one, index(number), index(0)), width)

        def turn(number: Expr) -> tuple[Expr, Expr, Expr]:
            """Where a run of a thread's share lies in the tile (line, column), and whether it is one."""
            item = number * threads + self.warp * WARP_LANES + self.lane
            line, column = part * lines + item // (columns // width), item % (columns // width) * width
            inside = [item < items, at["m"] + line < p.m.extent, at["n"] + column < p.n.extent]
            return line, column, logical_and(*inside)

        with w.loop("turns", -(-turns // at_once)) as several:
            with w.loop("turn", at_once, UNROLLED) as one:
                line, column, inside = turn(several * at_once + one)
                for number in range(split):
                    w.store(read, held(one, number), Broadcast(zero, width) if width > 1 else zero)
                with w.when(inside):
                    place = contiguous_vector((line, column), width)
                    w.store(read, held(one, 0), Load(partials, place))
                    for number in range(1, split):
                        w.store(read, held(one, number), ClusterLoad(partials, place, first + (part + number) % split))
            firsts = [Load(read, (index(t), index(n), index(0))) for t in range(at_once) for n in range(split)]
            w.emit(ClusterLoadWait(reduce(add, firsts)))
            with w.loop("turn", at_once, UNROLLED) as one:
                line, column, inside = turn(several * at_once + one)
                with w.when(inside):
                    for number in range(split):
                        value: Expr = Load(read, held(one, number))
                        w.store(total, run, Load(total, run) + value if number else value)
                    store_outputs(w, p, {**at, "m": at["m"] + line, "n": at["n"] + column}, total, width)

    # --- by threads

    def _by_threads(self, sums: Buffer, row: int, at: Mapping[str, Expr]) -> None:
        w, p = self.w, self.p
        width = 2 if p.n.extent % 2 == 0 else 1
        with (
            w.loop("column", self.wide // 8, UNROLLED) as column,
            w.loop("half", 2, UNROLLED) as half,
            w.loop("side", 2 // width, UNROLLED) as side,
        ):
            m, n = self._element(at, row, column, half)
            n = n + side
            inside = [Compare(CompareOp.LT, m, index(p.m.extent)), Compare(CompareOp.LT, n, index(p.n.extent))]
            with w.when(logical_and(*inside)):
                for result in p.results:
                    value = self._value(sums, row, column * 4 + half * 2 + side, result, {**at, "m": m, "n": n}, width)
                    indices = [vector_at(i, {**at, "m": m, "n": n}, "n", width) for i in result.indices]
                    w.store(result.tensor, [i.value if isinstance(i, Broadcast) else i for i in indices], value)

    def _element(self, at: Mapping[str, Expr], row: int, column: Expr, half: Expr) -> tuple[Expr, Expr]:
        """Where a pair of a lane's sums belongs: (m, n)."""
        m = at["m"] + (row * WGMMA_M + self.quarter * 16 + self.lane // 4 + half * 8)
        return m, at["n"] + (column * 8 + self.lane % 4 * 2)

    def _value(
        self,
        sums: Buffer,
        row: int,
        first: Expr,
        result: Result,
        at: Mapping[str, Expr],
        width: int,
        near: Mapping[Load, tuple[Buffer, Expr]] | None = None,
    ) -> Expr:
        """An output at ``width`` neighbours from ``at`` on, whose sums begin at ``first``; ``near``: loads that were
        done ahead, and where in registers what they gave begins."""
        place = Var("n") - at["n"] + first if width > 1 else first

        def load(e: Load) -> Expr:
            if near and e in near:
                return Load(near[e][0], (Var("n") - at["n"] + near[e][1],))
            if e.buffer.name not in self.p.accumulators:
                return e
            return Load(sums, (index(row), place + self.p.accumulators.index(e.buffer.name) * (self.wide // 2)))

        return vector_at(result.value, at, "n", width, load)

    # --- by boxes

    @property
    def _boxes(self) -> list[_Box]:
        """All boxes of a group, in the order in which they are stored."""
        return [_Box(r, p, row) for r in self.p.results for p in self.pieces for row in range(self.rows)]

    def _read(self, box: _Box, at: Mapping[str, Expr]) -> L2Prefetch:
        """Read what a box needs into registers: for every pair of columns, and of each half of the rows if it is not
        the same for all."""
        w, ahead = self.w, dict[Load, Buffer]()
        for load in _further(self.p, box.result):
            halves = _halves(load)
            ahead[load] = w.allocate(
                "ahead", (box.piece.columns // 4 * halves,), load.buffer.dtype, MemoryScope.REGISTER
            )
            with (
                w.loop("ahead_column", box.piece.columns // 8, UNROLLED) as c,
                w.loop("ahead_half", halves, UNROLLED) as half,
            ):
                value = vector_at(load, self._inside(box, at, c, half), "n", 2)
                w.store(ahead[load], (Ramp(c * (2 * halves) + half * 2, 1, 2),), value)
        return ahead

    def _inside(self, box: _Box, at: Mapping[str, Expr], c: Expr, half: Expr) -> dict[str, Expr]:
        """Where a pair of an output belongs, moved inside if other tensors are read there."""
        p = self.p
        m, n = self._element(at, box.row, c + box.piece.first // 8, half)
        if self._reads_more(box.result):
            m, n = minimum(m, index(p.m.extent - 1)), minimum(n, index(p.n.extent - 2))
        return {**at, "m": m, "n": n}

    def _store(self, sums: Buffer, box: _Box, at: Mapping[str, Expr], ahead: L2Prefetch, number: int) -> None:
        """A box: computed, staged, and sent off, or stored by the warps that staged it."""
        w, result, piece, row = self.w, box.result, box.piece, box.row
        with w.scope():
            out = w.allocate("out", (piece.columns // 2,), result.tensor.dtype, MemoryScope.REGISTER)
            with w.loop("out_column", piece.columns // 8, UNROLLED) as c, w.loop("out_half", 2, UNROLLED) as half:
                inside = self._inside(box, at, c, half)
                near = {load: (held, c * 4 + half * 2 if _halves(load) == 2 else c * 2) for load, held in ahead.items()}
                first = (c + piece.first // 8) * 4 + half * 2
                value = self._value(sums, row, first, result, inside, 2, near)
                w.store(out, (Ramp(c * 4 + half * 2, 1, 2),), value)
            if self.by_rows:
                w.barrier(SyncScope.WARP)
                self._stage(out, piece, 0)
                w.barrier(SyncScope.WARP)
                self._by_lines(result, {**at, "m": at["m"] + row * WGMMA_M, "n": at["n"] + piece.first}, piece)
                return
            if number == 0 or number >= self.boxes:
                with w.when(self.leads):
                    w.emit(TmaStoreWait(0 if number == 0 else self.boxes - 1))
                w.barrier(SyncScope.WARPGROUP)
            self._stage(out, piece, number % self.boxes)
            w.emit(AsyncProxyFence())
            w.barrier(SyncScope.WARPGROUP)
            place = {**at, "m": at["m"] + row * WGMMA_M, "n": at["n"] + piece.first}
            extents = tuple(WGMMA_M if i == Var("m") else piece.columns if i == Var("n") else 1 for i in result.indices)
            corner = tuple(vector_at(i, place, "n", 1) for i in result.indices)
            with w.when(self.leads):
                source = (self.group, index(number % self.boxes), index(0), index(0))
                w.emit(TmaStore(result.tensor, corner, piece.buffer, source, extents))
                w.emit(TmaStoreCommit())

    def _by_lines(self, result: Result, at: Mapping[str, Expr], piece: _Piece) -> None:
        """Each warp stores the 16 rows that it staged, neighbours by neighbouring lanes."""
        w, p = self.w, self.p
        width = 2 if p.n.extent % 2 == 0 else 1
        at_once = WARP_ROWS if self.often and self.rows * self.wide // 2 <= FEW_SUMS else WARP_ROWS // 4
        with w.loop("lines", WARP_ROWS // at_once) as lines, w.loop("line", at_once, UNROLLED) as line:
            staged = self.quarter * WARP_ROWS + lines * at_once + line
            m = at["m"] + staged
            with w.when(m < p.m.extent), w.loop("run", -(-piece.columns // (WARP_LANES * width)), UNROLLED) as run:
                column = (run * WARP_LANES + self.lane) * width
                n = at["n"] + column
                inside = [n < p.n.extent]
                inside += [column < piece.columns] if piece.columns % (WARP_LANES * width) else []
                with w.when(logical_and(*inside)):
                    place = (self.group, index(0), staged)
                    if width > 1:
                        value = Load(piece.buffer, (*(Broadcast(i, width) for i in place), Ramp(column, 1, width)))
                    else:
                        value = Load(piece.buffer, (*place, column))
                    indices = [vector_at(i, {**at, "m": m, "n": n}, "n", width) for i in result.indices]
                    w.store(result.tensor, [i.value if isinstance(i, Broadcast) else i for i in indices], value)

    def _stage(self, out: Buffer, piece: _Piece, number: int) -> None:
        """Put a piece into its buffer: matrices of 8 by 8, two below one another, two such pairs at once."""
        w, lane = self.w, self.lane
        line = self.quarter * 16 + lane // 8 % 2 * 8 + lane % 8
        pairs, rest = piece.columns // 16, piece.columns % 16
        if pairs:
            with w.loop("pair", pairs, UNROLLED) as pair:
                to = (self.group, index(number), line, pair * 16 + lane // 16 * 8)
                w.emit(StoreMatrix(piece.buffer, to, out, (pair * 8,), 4))
        if rest:
            to = (self.group, index(number), line, index(pairs * 16))
            w.emit(StoreMatrix(piece.buffer, to, out, (index(pairs * 8),), 2))

    def _reads_more(self, result: Result) -> bool:
        return _reads_more(self.p, result)


def spare_registers(p: Gemm) -> int:
    """Registers of a consumer thread besides its accumulators, roughly, those for what is read ahead included."""
    plain = all(isinstance(r.value.value if isinstance(r.value, Cast) else r.value, Load) for r in p.results)
    return SPARE_REGISTERS + ahead_registers(p) + (0 if plain else VALUE_REGISTERS)


def ahead_registers(p: Gemm) -> int:
    """Registers for what is read ahead of a box."""
    return max(sum(_words(load) for load in _further(p, r)) for r in p.results)


def _further(p: Gemm, result: Result) -> list[Load]:
    """What is read besides the sums along ``n``, and may be read ahead: no select says where it may be."""
    if any(isinstance(e, Select) for e in walk(result.value)):
        return []
    loads = [e for e in loads_of(result.value) if e.buffer.name not in p.accumulators]
    return list(dict.fromkeys(e for e in loads if "n" in free_variables(e)))


def _halves(load: Load) -> int:
    """How often a pair of columns is read in 16 rows: for each half of them unless it is the same for all rows."""
    return 2 if "m" in free_variables(load) else 1


def _words(load: Load) -> int:
    """Registers for what is read of a box."""
    return -(-SWIZZLE_128B_ELEMENTS // 4 * _halves(load) * load.buffer.dtype.bytes // 4)


def can_store_boxes(p: Gemm) -> bool:
    """Whether all results can be stored as boxes: 16-bit, of one type, ``m`` before ``n``, rows at multiples of 16
    bytes."""
    return all(_in_boxes(r) and r.tensor.dtype == p.results[0].tensor.dtype for r in p.results)


def can_store_lines(p: Gemm) -> bool:
    """Whether all results can be stored row by row from where they were staged: 16-bit, of one type, along ``n``."""
    even = p.n.extent % 2 == 0
    return all(
        r.tensor.dtype.name in ("float16", "bfloat16")
        and r.tensor.dtype == p.results[0].tensor.dtype
        and r.step("n") == 1
        and (even or not _reads_more(p, r))
        for r in p.results
    )


def _reads_more(p: Gemm, r: Result) -> bool:
    """Whether a result reads more than the sums."""
    return any(load.buffer.name not in p.accumulators for load in loads_of(r.value))


def _in_boxes(r: Result) -> bool:
    if r.tensor.dtype.name not in ("float16", "bfloat16") or not 2 <= len(r.tensor.shape) <= 5:
        return False
    plain = [i for i in r.indices if free_variables(i) & {"m", "n"}]
    aligned = all(stride * r.tensor.dtype.bytes % 16 == 0 for stride in r.tensor.strides[:-1])
    return aligned and plain == [Var("m"), Var("n")] and r.indices[-1] == Var("n")


def _strides(boxes: int, columns: int) -> tuple[int, int, int, int]:
    box = WGMMA_M * columns
    return (boxes * box, box, columns, 1)
