"""Products of a few rows with plain arithmetic: every thread multiplies wide pieces of the weights as they arrive.

Weights that lie along ``k``: a warp takes some rows of them, its lanes neighbouring pieces of ``k``, which are less
than wide where rows begin anywhere. Weights that lie along ``n``: the lanes of a warp share out neighbouring ``n`` and
several ``k``. Either way the warps of a block may share out ``k`` too: partial sums then meet in shared memory, and
whoever adds them up computes the outputs.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import gcd
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from ....core.dtypes import DType
from ....ir.buffer import Buffer, MemoryScope
from ....ir.build import Writer
from ....ir.expr import (
    WARP_LANES,
    Broadcast,
    Cast,
    Compare,
    CompareOp,
    Expr,
    Load,
    Ramp,
    Select,
    const,
    index,
    logical_and,
    minimum,
)
from ....ir.gpu.barrier import SyncScope
from ....ir.stmt import HardwareAxis, Kernel, LoopKind
from ...problems.gemm import Gemm, Operand
from ...tile.contiguous import run_of
from ...tile.naming import NamingWriter
from ...tile.register_reads import flat_offset
from ...tile.stage_body import value_at, vector_at
from ..l2_prefetch import L2Prefetch, ask_for_operands, ask_for_uneven_operands
from ..warp_reduce_scatter import sum_over_lanes

UNROLLED = LoopKind.UNROLLED
WIDEST_BYTES = 16
"""Of an access."""

Whole = TypeVar("Whole", int, NDArray[np.int64])
"""A whole number, or a column of them."""


@dataclass(frozen=True, slots=True)
class GemvSetting:
    """``rows``: outputs of a warp where weights lie along ``k``; ``lanes_n``: its lanes along ``n`` where they do not.
    ``warps_n``, ``warps_k``: warps of a block along each. ``unroll``: pieces of a row that a thread has under way.
    ``ahead``: how many blocks, the first, ask for operands ahead of the wait for earlier launches. ``resident``: blocks
    meant for a multiprocessor at once; 0 leaves it to the compiler."""

    rows: int
    warps_n: int
    warps_k: int
    lanes_n: int
    unroll: int
    ahead: int = 0
    resident: int = 0

    @property
    def warps(self) -> int:
        return self.warps_n * self.warps_k


def weights_along_k(p: Gemm) -> bool:
    """Whether neighbours along ``k`` are neighbours in memory (or nothing is known of them)."""
    return p.b.k == 1 or p.b.row != 1


def piece_elements(p: Gemm) -> int:
    """Elements of the weights that a thread reads at once: 16 bytes, or as many as all rows along ``k`` begin at
    multiples of. (Single ones where those are odd: neighbouring lanes then still read neighbours.)"""
    load = p.b.load
    widest = max(1, WIDEST_BYTES // (load.buffer.dtype.bytes if load is not None else 4))
    start = None if load is None else flat_offset(load)
    if p.b.k != 1 or start is None:
        return widest
    return gcd(widest, p.b.row, start.constant)


def piece_bytes(p: Gemm) -> int:
    """Bytes of the weights that a thread reads at once; 16 where they are computed."""
    load = p.b.load
    return WIDEST_BYTES if load is None else piece_elements(p) * load.buffer.dtype.bytes


def piece_words(p: Gemm) -> int:
    """Registers that a piece of the weights takes."""
    load = p.b.load
    held = p.accumulator.dtype.bytes if piece_elements(p) == 1 else 4 if load is None else load.buffer.dtype.bytes
    return max(1, piece_elements(p) * held // 4)


def pieces_of_warp(p: Gemm, warps_k: Whole) -> Whole:
    """How many pieces of a row along ``k`` a lane takes where ``warps_k`` warps share it out, one more or less."""
    return -(-p.k.extent // (WARP_LANES * piece_elements(p) * warps_k))


def even_steps(p: Gemm, warps_k: Whole, unroll: Whole) -> tuple[Whole, Whole]:
    """In how many steps a warp goes along ``k`` if a lane has up to ``unroll`` pieces under way, and how many it needs
    to have for that."""
    pieces = pieces_of_warp(p, warps_k)
    steps = -(-pieces // unroll)
    return steps, -(-pieces // steps)


def lower_gemv(p: Gemm, name: str, s: GemvSetting) -> Kernel:
    """The kernel of one setting."""
    along_k = weights_along_k(p)
    width = s.rows if along_k else s.lanes_n * piece_elements(p)
    w = NamingWriter(p.names)
    bounds = [
        ("block", -(-p.n.extent // (s.warps_n * width)), HardwareAxis.GRID_X),
        ("warp", s.warps, HardwareAxis.WARP),
        ("lane", WARP_LANES, HardwareAxis.LANE),
    ]
    evict_first = () if p.b.load is None else (p.b.load.buffer.name,)
    with w.launch(name, bounds, min_blocks=s.resident, evict_first=evict_first) as (block, warp, lane):
        first = (block * s.warps_n + _of(warp, s.warps_k, s.warps_n)) * width
        if along_k:
            _, unroll = even_steps(p, s.warps_k, s.unroll)
            elements = min(WARP_LANES * piece_elements(p) * s.warps_k * unroll, p.k.extent)
            uneven = piece_bytes(p) < WIDEST_BYTES
            thread, blocks = (warp * WARP_LANES + lane, s.warps * WARP_LANES), bounds[0][1]
            ask = L2Prefetch(w, thread, (block, blocks), s.ahead, uneven)
            if uneven:
                ask_for_uneven_operands(ask, p, s.warps_n, s.rows, elements)
            else:
                ask_for_operands(ask, p, s.warps_n * width, index(0), elements)
        body = _along_k if along_k else _along_n
        body(w, p, s, first, warp, lane, block)
    return Kernel(name, p.inputs, tuple(r.tensor for r in p.results), (), w.finish())


def _of(warp: Expr, inner: int, outer: int) -> Expr:
    """The number along the outer of two ways in which warps are shared out."""
    return warp // inner if outer > 1 else index(0)


def _along_k(w: Writer, p: Gemm, s: GemvSetting, first: Expr, warp: Expr, lane: Expr, block: Expr) -> None:
    own = warp % s.warps_k if s.warps_k > 1 else index(0)
    sums = _zeros_of(w, p.m.extent * s.rows, p.accumulator.dtype)
    chunk = WARP_LANES * piece_elements(p)
    _, unroll = even_steps(p, s.warps_k, s.unroll)
    reach = s.warps_k * chunk * unroll
    place = own * chunk + lane * piece_elements(p)
    whole = p.k.extent // reach
    if whole:
        with w.loop("step", whole) as step:
            _add_step(w, p, s, sums, first, step * reach + place, unroll, unroll)
    if left := p.k.extent - whole * reach:
        with w.scope():
            pieces = -(-left // (s.warps_k * chunk))
            _add_step(w, p, s, sums, first, place + whole * reach, pieces, left // (s.warps_k * chunk))
    totals = [(held, held.number // s.rows, held.number % s.rows) for held in sum_over_lanes(w, sums, lane)]
    if s.warps_k == 1:
        for held, token, row in totals:
            tests = [] if held.here is None else [held.here]
            tests += [first + row < p.n.extent] if p.n.extent % (s.warps_n * s.rows) else []
            with w.when(logical_and(*tests) if tests else None):
                store_results(w, p, token if p.m.extent > 1 else index(0), first + row, Load(sums, (index(held.slot),)))
        return
    partials = _partials(w, p, s, s.rows)
    column = _of(warp, s.warps_k, s.warps_n) * s.rows
    for held, token, row in totals:
        with w.when(held.here):
            w.store(partials, (own, token, column + row), Load(sums, (index(held.slot),)))
    _finish(w, p, s, block, warp, lane, partials)


def _add_step(w: Writer, p: Gemm, s: GemvSetting, sums: Buffer, first: Expr, k: Expr, pieces: int, inside: int) -> None:
    """Products of ``pieces`` of each row, the first of this lane from ``k`` on, added to ``sums``; all are read ahead
    of the first product. The first ``inside`` of them surely lie inside the row."""
    piece, m_extent, dtype = piece_elements(p), p.m.extent, p.accumulator.dtype
    apart = s.warps_k * WARP_LANES * piece
    weights = w.allocate("weight", (pieces, s.rows, piece), _kept(p.b, piece, dtype), MemoryScope.REGISTER)
    tokens = w.allocate("token", (pieces, m_extent, piece), _kept(p.a, piece, dtype), MemoryScope.REGISTER)

    def read(held: Buffer, operand: Operand, axis: str, rows: int, place: Callable[[Expr], Expr]) -> None:
        for start, stop, masked in ((0, inside, False), (inside, pieces, True)):
            if start == stop:
                continue
            with w.loop("u", stop - start, UNROLLED) as u, w.loop(f"{axis}_row", rows, UNROLLED) as row:
                at = {axis: place(row), "k": k + (u + start) * apart}
                mask = _inside(at["k"], piece, p.k.extent) if masked else None
                value = _vector(operand, at, "k", piece, mask)
                w.store(held, (u + start, row, _ramp(piece)), _wide(value, held.dtype))

    read(weights, p.b, "n", s.rows, lambda row: minimum(first + row, index(p.n.extent - 1)))
    read(tokens, p.a, "m", m_extent, lambda row: row)
    with (
        w.loop("u", pieces, UNROLLED) as u,
        w.loop("m", m_extent, UNROLLED) as m,
        w.loop("r", s.rows, UNROLLED) as r,
        w.loop("v", piece, UNROLLED) as v,
    ):
        product = _wide(Load(weights, (u, r, v)), dtype) * _wide(Load(tokens, (u, m, v)), dtype)
        w.store(sums, (m * s.rows + r,), Load(sums, (m * s.rows + r,)) + product)


def _along_n(w: Writer, p: Gemm, s: GemvSetting, first: Expr, warp: Expr, lane: Expr, block: Expr) -> None:
    piece, m_extent, dtype = piece_elements(p), p.m.extent, p.accumulator.dtype
    lanes_k = WARP_LANES // s.lanes_n
    steps = -(-p.k.extent // (s.unroll * lanes_k * s.warps_k))
    whole = p.k.extent % (s.unroll * lanes_k * s.warps_k) == 0
    own = warp % s.warps_k if s.warps_k > 1 else index(0)
    column = (lane % s.lanes_n) * piece
    sums = _zeros_of(w, m_extent * piece, dtype)
    with w.loop("step", steps) as step:
        weights = w.allocate("weight", (s.unroll, piece), _held(p.b), MemoryScope.REGISTER)
        tokens = w.allocate("token", (m_extent, s.unroll), _held(p.a), MemoryScope.REGISTER)
        base = ((step * s.warps_k + own) * lanes_k + lane // s.lanes_n) * s.unroll
        aligned = p.n.extent % piece == 0
        n = minimum(first + column, index(p.n.extent - piece)) if aligned else first + column
        with w.loop("uw", s.unroll, UNROLLED) as u:
            inside = None if whole else Compare(CompareOp.LT, base + u, index(p.k.extent))
            mask = None if inside is None else _spread(inside, piece)
            if not aligned:
                tail = _inside(n, piece, p.n.extent)
                mask = tail if mask is None else logical_and(mask, tail)
            w.store(weights, (u, _ramp(piece)), _vector(p.b, {"n": n, "k": base + u}, "n", piece, mask))
        with w.loop("mx", m_extent, UNROLLED) as m:
            if p.a.k == 1 and s.unroll > 1:
                mask = None if whole else _inside(base, s.unroll, p.k.extent)
                value = _vector(p.a, {"m": m, "k": base}, "k", s.unroll, mask)
                w.store(tokens, (m, _ramp(s.unroll)), value)
            else:
                with w.loop("ux", s.unroll, UNROLLED) as u:
                    mask = None if whole else Compare(CompareOp.LT, base + u, index(p.k.extent))
                    w.store(tokens, (m, u), _vector(p.a, {"m": m, "k": base + u}, "k", 1, mask))
        with (
            w.loop("u", s.unroll, UNROLLED) as u,
            w.loop("m", m_extent, UNROLLED) as m,
            w.loop("v", piece, UNROLLED) as v,
        ):
            product = _wide(Load(weights, (u, v)), dtype) * _wide(Load(tokens, (m, u)), dtype)
            w.store(sums, (m * piece + v,), Load(sums, (m * piece + v,)) + product)
    partials = _partials(w, p, s, s.lanes_n * piece)
    column += _of(warp, s.warps_k, s.warps_n) * (s.lanes_n * piece)
    if lanes_k == 1:
        with w.loop("mp", m_extent, UNROLLED) as m:
            value = Load(sums, run_of((m * piece,), piece))
            w.store(partials, run_of((own, m, column), piece), value)
    else:
        for held in sum_over_lanes(w, sums, lane, s.lanes_n):
            with w.when(held.here):
                place = (own, held.number // piece, column + held.number % piece)
                w.store(partials, place, Load(sums, (index(held.slot),)))
    _finish(w, p, s, block, warp, lane, partials)


def _partials(w: Writer, p: Gemm, s: GemvSetting, width: int) -> Buffer:
    """Where the sums of the warps of a block meet, each with ``width`` outputs."""
    return w.allocate("partials", (s.warps_k, p.m.extent, s.warps_n * width), p.accumulator.dtype, MemoryScope.SHARED)


def _finish(w: Writer, p: Gemm, s: GemvSetting, block: Expr, warp: Expr, lane: Expr, partials: Buffer) -> None:
    """The partial sums of a block added up, one output a thread, and what is made of them stored."""
    w.barrier(SyncScope.BLOCK if s.warps > 1 else SyncScope.WARP)
    columns = partials.shape[2]
    first, thread = block * columns, warp * WARP_LANES + lane
    items, threads = p.m.extent * columns, s.warps * WARP_LANES
    total = w.allocate("total", (), p.accumulator.dtype, MemoryScope.REGISTER)
    with w.loop("round", -(-items // threads)) as turn:
        item = turn * threads + thread
        n = first + item % columns
        inside = [Compare(CompareOp.LT, item, index(items))] if items % threads else []
        inside += [Compare(CompareOp.LT, n, index(p.n.extent))] if p.n.extent % columns else []
        with w.when(logical_and(*inside) if inside else None):
            m = item // columns if p.m.extent > 1 else index(0)
            at = (m, item % columns)
            w.store(total, (), Load(partials, (index(0), *at)))
            for part in range(1, s.warps_k):
                w.store(total, (), Load(total, ()) + Load(partials, (index(part), *at)))
            store_results(w, p, m, n, Load(total, ()))


def store_results(w: Writer, p: Gemm, m: Expr, n: Expr, total: Expr) -> None:
    """All outputs at (``m``, ``n``), given the sum there."""
    at = {"m": m, "n": n}
    for result in p.results:
        value = value_at(result.value, at, lambda e: total if e.buffer.name == p.accumulator.name else e)
        w.store(result.tensor, [value_at(i, at) for i in result.indices], value)


def _held(operand: Operand) -> DType:
    """What an operand is kept in between memory and arithmetic: as it was loaded, where it is a plain load."""
    return operand.body.dtype if operand.load is None else operand.load.buffer.dtype


def _kept(operand: Operand, piece: int, total: DType) -> DType:
    """What pieces of an operand are kept in: single elements as they are multiplied, since each takes a register."""
    return total if piece == 1 else _held(operand)


def _wide(value: Expr, dtype: DType) -> Expr:
    return value if value.dtype == dtype else Cast(value, dtype)


def _vector(operand: Operand, at: dict[str, Expr], lane: str, lanes: int, mask: Expr | None) -> Expr:
    """``lanes`` neighbours of an operand along axis ``lane``, as they are held; zeros where ``mask`` is false."""
    if operand.load is not None:
        load = vector_at(operand.load, at, lane, lanes)
        if mask is None:
            return load
        if isinstance(load, Load):
            return Load(load.buffer, load.indices, mask)
        return Select(mask, load, _zeros(load.dtype, lanes))
    value = vector_at(operand.body, at, lane, lanes)
    return value if mask is None else Select(mask, value, _zeros(value.dtype, lanes))


def _spread(value: Expr, lanes: int) -> Expr:
    return Broadcast(value, lanes) if lanes > 1 else value


def _zeros(dtype: DType, lanes: int) -> Expr:
    return _spread(const(0, dtype), lanes)


def _inside(start: Expr, lanes: int, extent: int) -> Expr:
    """Which of the ``lanes`` places from ``start`` (a multiple of ``lanes``) on lie below ``extent``."""
    if lanes == 1:
        return Compare(CompareOp.LT, start, index(extent))
    if extent % lanes == 0:
        return Broadcast(Compare(CompareOp.LT, start, index(extent)), lanes)
    return Compare(CompareOp.LT, Ramp(start, 1, lanes), Broadcast(index(extent), lanes))


def _ramp(lanes: int) -> Expr:
    return Ramp(index(0), 1, lanes) if lanes > 1 else index(0)


def _zeros_of(w: Writer, count: int, dtype: DType) -> Buffer:
    """Registers for sums."""
    sums = w.allocate("sums", (count,), dtype, MemoryScope.REGISTER)
    with w.loop("zero", count, UNROLLED) as zero:
        w.store(sums, (zero,), const(0, dtype))
    return sums
