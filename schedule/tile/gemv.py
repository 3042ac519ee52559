"""Products of a few rows with plain arithmetic: every thread multiplies wide pieces of the weights as they arrive.

Weights that lie along ``k``: a warp takes some rows of them, its lanes neighbouring pieces of ``k``. Weights that lie
along ``n``: the lanes of a warp share out neighbouring ``n`` and several ``k``. Either way the warps of a block may
share out ``k`` too; partial sums meet in shared memory, and whoever adds them up computes the outputs.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ...core.dtypes import DType
from ...ir.buffer import Buffer, Scope
from ...ir.build import Writer
from ...ir.expr import (
    WARP_LANES,
    Broadcast,
    Cast,
    Compare,
    CompareOp,
    Expr,
    Load,
    Ramp,
    Select,
    Shuffle,
    ShuffleMode,
    const,
    index,
    logical_and,
    minimum,
)
from ...ir.gpu import Level
from ...ir.stmt import HardwareAxis, Kernel, LoopKind
from .ahead import Ahead, ask_for_operands
from .naming import NamingWriter
from .pointwise import value_at, vector_at
from .product import Operand, Product

UNROLLED = LoopKind.UNROLLED


@dataclass(frozen=True, slots=True)
class GemvSetting:
    """``rows``: outputs of a warp where weights lie along ``k``; ``lanes_n``: its lanes along ``n`` where they do not.
    ``warps_n``, ``warps_k``: warps of a block along each. ``unroll``: pieces of a row that a thread has under way.
    ``ahead``: how many blocks, the first, ask for operands ahead of the wait for earlier launches."""

    rows: int
    warps_n: int
    warps_k: int
    lanes_n: int
    unroll: int
    ahead: int = 0

    @property
    def warps(self) -> int:
        return self.warps_n * self.warps_k


def weights_along_k(p: Product) -> bool:
    """Whether neighbours along ``k`` are neighbours in memory (or nothing is known of them)."""
    return p.weights.k == 1 or p.weights.row != 1


def piece_elements(p: Product) -> int:
    """Elements of the weights that a thread reads at once: 16 bytes."""
    load = p.weights.load
    return max(1, 16 // (load.buffer.dtype.bytes if load is not None else 4))


def lower_gemv(p: Product, name: str, s: GemvSetting) -> Kernel:
    """The kernel of one setting."""
    along_k = weights_along_k(p)
    width = s.rows if along_k else s.lanes_n * piece_elements(p)
    w = NamingWriter(p.names)
    bounds = [
        ("block", -(-p.n.extent // (s.warps_n * width)), HardwareAxis.GRID_X),
        ("warp", s.warps, HardwareAxis.WARP),
        ("lane", WARP_LANES, HardwareAxis.LANE),
    ]
    streamed = () if p.weights.load is None else (p.weights.load.buffer.name,)
    with w.launch(name, bounds, streamed=streamed) as (block, warp, lane):
        first = (block * s.warps_n + _of(warp, s.warps_k, s.warps_n)) * width
        if along_k:
            elements = min(WARP_LANES * piece_elements(p) * s.warps_k * s.unroll, p.k.extent)
            ask = Ahead(w, (warp * WARP_LANES + lane, s.warps * WARP_LANES), (block, bounds[0][1]), s.ahead)
            ask_for_operands(ask, p, s.warps_n * width, index(0), elements)
        partials = w.allocate("partials", (s.warps_k, p.m.extent, s.warps_n * width), p.total.dtype, Scope.SHARED)
        body = _along_k if along_k else _along_n
        body(w, p, s, first, warp, lane, partials)
        w.barrier(Level.BLOCK if s.warps > 1 else Level.WARP)
        _finish(w, p, s, block * (s.warps_n * width), warp * WARP_LANES + lane, partials)
    return Kernel(name, p.inputs, tuple(r.tensor for r in p.results), (), w.finish())


def _of(warp: Expr, inner: int, outer: int) -> Expr:
    """The number along the outer of two ways in which warps are shared out."""
    return warp // inner if outer > 1 else index(0)


def _along_k(w: Writer, p: Product, s: GemvSetting, first: Expr, warp: Expr, lane: Expr, partials: Buffer) -> None:
    piece, m_extent, dtype = piece_elements(p), p.m.extent, p.total.dtype
    chunk = WARP_LANES * piece
    steps = -(-p.k.extent // (chunk * s.warps_k * s.unroll))
    whole = p.k.extent % (chunk * s.warps_k * s.unroll) == 0
    own = warp % s.warps_k if s.warps_k > 1 else index(0)
    sums = w.allocate("sums", (s.rows, m_extent), dtype, Scope.REGISTER)
    _zero(w, sums)
    with w.loop("step", steps) as step:
        weights = w.allocate("weight", (s.unroll, s.rows, piece), _held(p.weights), Scope.REGISTER)
        tokens = w.allocate("token", (s.unroll, m_extent, piece), _held(p.tokens), Scope.REGISTER)

        def start(u: Expr) -> Expr:
            return (step * s.unroll + u) * (s.warps_k * chunk) + own * chunk + lane * piece

        with w.loop("uw", s.unroll, UNROLLED) as u, w.loop("rw", s.rows, UNROLLED) as r:
            at = {"n": minimum(first + r, index(p.n.extent - 1)), "k": start(u)}
            mask = None if whole else _inside(at["k"], piece, p.k.extent)
            w.store(weights, (u, r, _ramp(piece)), _vector(p.weights, at, "k", piece, mask))
        with w.loop("ux", s.unroll, UNROLLED) as u, w.loop("mx", m_extent, UNROLLED) as m:
            at = {"m": m, "k": start(u)}
            mask = None if whole else _inside(at["k"], piece, p.k.extent)
            w.store(tokens, (u, m, _ramp(piece)), _vector(p.tokens, at, "k", piece, mask))
        with (
            w.loop("u", s.unroll, UNROLLED) as u,
            w.loop("r", s.rows, UNROLLED) as r,
            w.loop("m", m_extent, UNROLLED) as m,
            w.loop("v", piece, UNROLLED) as v,
        ):
            product = _wide(Load(weights, (u, r, v)), dtype) * _wide(Load(tokens, (u, m, v)), dtype)
            w.store(sums, (r, m), Load(sums, (r, m)) + product)
    other = w.allocate("other", (), dtype, Scope.REGISTER)
    column = _of(warp, s.warps_k, s.warps_n) * s.rows
    for row in range(s.rows):
        for token in range(m_extent):
            place = (index(row), index(token))
            _across(w, sums, place, other, 1)
            number = (row * m_extent + token) % WARP_LANES
            with w.when(Compare(CompareOp.EQ, lane, index(number))):
                w.store(partials, (own, index(token), column + row), Load(sums, place))


def _along_n(w: Writer, p: Product, s: GemvSetting, first: Expr, warp: Expr, lane: Expr, partials: Buffer) -> None:
    piece, m_extent, dtype = piece_elements(p), p.m.extent, p.total.dtype
    lanes_k = WARP_LANES // s.lanes_n
    steps = -(-p.k.extent // (s.unroll * lanes_k * s.warps_k))
    whole = p.k.extent % (s.unroll * lanes_k * s.warps_k) == 0
    own = warp % s.warps_k if s.warps_k > 1 else index(0)
    column = (lane % s.lanes_n) * piece
    sums = w.allocate("sums", (m_extent, piece), dtype, Scope.REGISTER)
    _zero(w, sums)
    with w.loop("step", steps) as step:
        weights = w.allocate("weight", (s.unroll, piece), _held(p.weights), Scope.REGISTER)
        tokens = w.allocate("token", (m_extent, s.unroll), _held(p.tokens), Scope.REGISTER)
        base = ((step * s.warps_k + own) * lanes_k + lane // s.lanes_n) * s.unroll
        aligned = p.n.extent % piece == 0
        n = minimum(first + column, index(p.n.extent - piece)) if aligned else first + column
        with w.loop("uw", s.unroll, UNROLLED) as u:
            inside = None if whole else Compare(CompareOp.LT, base + u, index(p.k.extent))
            mask = None if inside is None else _spread(inside, piece)
            if not aligned:
                tail = _inside(n, piece, p.n.extent)
                mask = tail if mask is None else logical_and(mask, tail)
            w.store(weights, (u, _ramp(piece)), _vector(p.weights, {"n": n, "k": base + u}, "n", piece, mask))
        with w.loop("mx", m_extent, UNROLLED) as m:
            if p.tokens.k == 1 and s.unroll > 1:
                mask = None if whole else _inside(base, s.unroll, p.k.extent)
                value = _vector(p.tokens, {"m": m, "k": base}, "k", s.unroll, mask)
                w.store(tokens, (m, _ramp(s.unroll)), value)
            else:
                with w.loop("ux", s.unroll, UNROLLED) as u:
                    mask = None if whole else Compare(CompareOp.LT, base + u, index(p.k.extent))
                    w.store(tokens, (m, u), _vector(p.tokens, {"m": m, "k": base + u}, "k", 1, mask))
        with (
            w.loop("u", s.unroll, UNROLLED) as u,
            w.loop("m", m_extent, UNROLLED) as m,
            w.loop("v", piece, UNROLLED) as v,
        ):
            product = _wide(Load(weights, (u, v)), dtype) * _wide(Load(tokens, (m, u)), dtype)
            w.store(sums, (m, v), Load(sums, (m, v)) + product)
    other = w.allocate("other", (), dtype, Scope.REGISTER)
    for token in range(m_extent):
        for number in range(piece):
            _across(w, sums, (index(token), index(number)), other, s.lanes_n)
    block_column = _of(warp, s.warps_k, s.warps_n) * (s.lanes_n * piece) + column
    with w.when(Compare(CompareOp.LT, lane, index(s.lanes_n)) if lanes_k > 1 else None):
        with w.loop("mp", m_extent, UNROLLED) as m:
            w.store(
                partials,
                (own, m, block_column + _ramp(piece) if piece == 1 else Ramp(block_column, 1, piece)),
                Load(sums, (m, _ramp(piece))),
            )


def _finish(w: Writer, p: Product, s: GemvSetting, first: Expr, thread: Expr, partials: Buffer) -> None:
    """The partial sums of a block added up, one output a thread, and what is made of them stored."""
    columns = partials.shape[2]
    items, threads = p.m.extent * columns, s.warps * WARP_LANES
    total = w.allocate("total", (), p.total.dtype, Scope.REGISTER)
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


def store_results(w: Writer, p: Product, m: Expr, n: Expr, total: Expr) -> None:
    """All outputs at (``m``, ``n``), given the sum there."""
    at = {"m": m, "n": n}
    for result in p.results:
        value = value_at(result.value, at, lambda e: total if e.buffer.name == p.total.name else e)
        w.store(result.tensor, [value_at(i, at) for i in result.indices], value)


def _held(operand: Operand) -> DType:
    """What an operand is kept in between memory and arithmetic: as it was loaded, where it is a plain load."""
    return operand.body.dtype if operand.load is None else operand.load.buffer.dtype


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


def _zero(w: Writer, buffer: Buffer) -> None:
    rows, columns = buffer.shape
    with w.loop("zr", rows, UNROLLED) as r, w.loop("zc", columns, UNROLLED) as c:
        w.store(buffer, (r, c), const(0, buffer.dtype))


def _across(w: Writer, values: Buffer, place: Sequence[Expr], other: Buffer, nearest: int) -> None:
    """One value summed over the lanes that differ in more than ``nearest`` neighbours' numbers."""
    distance = WARP_LANES // 2
    while distance >= nearest:
        w.store(other, (), Shuffle(ShuffleMode.XOR, Load(values, tuple(place)), index(distance)))
        w.store(values, place, Load(values, tuple(place)) + Load(other, ()))
        distance //= 2
