"""Writes the kernel of ``cuda_gemv``: products with a few rows on plain arithmetic.

Every thread loads vectors of B straight into registers, several before it uses the first, and multiplies them as they
arrive.

B K-major: a warp computes some outputs ``n``, and its lanes load neighbouring vectors of ``k``, which have less
than 16 bytes where rows begin anywhere. Its accumulators are summed over its lanes by a reduce-scatter.
B N-major: the lanes of a warp are divided between neighbouring vectors of ``n`` and several ``k``.

In both cases the warps of a block may divide ``k`` too. Their partial accumulators are then added up in shared memory,
one output a thread, which computes the outputs from the sum.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable

from ....core.dtypes import DType
from ....ir.buffer import Buffer, MemoryScope
from ....ir.expr import WARP_LANES, BinaryOp, Broadcast, Expr, Load, Ramp, Select, const, index, logical_and, minimum
from ....ir.gpu.barrier import SyncScope
from ....ir.stmt import Kernel
from ....te.functions import cast
from ...loop_nest.nest import KERNEL_NAME
from ...problems.gemm import Gemm, Operand
from ...tile.contiguous import contiguous_vector
from ...tile.names import FreshNameWriter
from ...tile.stage_body import scalar_at, vector_at
from ..block_reduce import combine_in_order, combine_of
from ..l2_prefetch import L2Prefetch, prefetch_operands, prefetch_unaligned_operands
from ..launch_axes import warp_axes
from ..warp_reduce_scatter import warp_reduce_scatter
from .sizes import GemvSizes, b_is_k_major, b_vector_elements, has_narrow_loads


def lower_gemv(p: Gemm, s: GemvSizes[int]) -> Kernel:
    """Return the kernel of one setting."""
    return (_KMajorWriter if b_is_k_major(p) else _NMajorWriter)(p, s).kernel()


class _GemvWriter(ABC):
    """What the kernels for both layouts of B have in common."""

    def __init__(self, p: Gemm, s: GemvSizes[int]) -> None:
        self.p, self.s = p, s
        self.vector, self.dtype = b_vector_elements(p), p.accumulator.dtype
        self.w = FreshNameWriter(p.names)

    def kernel(self) -> Kernel:
        p, s, w = self.p, self.s, self.w
        bounds = warp_axes(s.blocks, s.warps)
        read_once = () if p.b.load is None else (p.b.load.buffer.name,)
        with w.launch(KERNEL_NAME, bounds, min_blocks=s.min_blocks, evict_first=read_once) as axes:
            self.block, self.warp, self.lane = axes
            self.warp_idx_n = self.warp // s.warps_k if s.warps_n > 1 else index(0)
            self.warp_idx_k = self.warp % s.warps_k if s.warps_k > 1 else index(0)
            self.thread = self.warp * WARP_LANES + self.lane
            self.first_n = (self.block * s.warps_n + self.warp_idx_n) * s.warp_n
            self.body()
        return Kernel(KERNEL_NAME, p.inputs, tuple(r.tensor for r in p.results), (), w.finish())

    @abstractmethod
    def body(self) -> None:
        """Everything that a thread does."""

    def zeros(self, count: int) -> Buffer:
        """Accumulators in registers."""
        accumulators = self.w.allocate("accumulators", (count,), self.dtype, MemoryScope.REGISTER)
        with self.w.unrolled("zero", count) as zero:
            self.w.store(accumulators, (zero,), const(0, self.dtype))
        return accumulators

    def partials(self) -> Buffer:
        """Shared memory for the accumulators of all warps: (warp along k, m, n in the block)."""
        s = self.s
        return self.w.allocate("partials", (s.warps_k, self.p.m.extent, s.block_n), self.dtype, MemoryScope.SHARED)

    def add_partials(self, partials: Buffer) -> None:
        """Add up the partial accumulators of the block, one output a thread, and store the outputs."""
        p, s, w = self.p, self.s, self.w
        w.barrier(SyncScope.BLOCK if s.warps > 1 else SyncScope.WARP)
        columns = partials.shape[2]
        first, items = self.block * columns, p.m.extent * columns
        total = w.allocate("total", (), self.dtype, MemoryScope.REGISTER)
        with w.loop("round", -(-items // s.threads)) as turn:
            item = turn * s.threads + self.thread
            n = first + item % columns
            inside = [item < items] if items % s.threads else []
            inside += [n < p.n.extent] if p.n.extent % columns else []
            with w.when(*inside):
                m = item // columns if p.m.extent > 1 else index(0)
                at = (m, item % columns)
                terms = ([Load(partials, (index(warp), *at))] for warp in range(s.warps_k))
                combine_in_order(w, "warp", [total], terms, combine_of(BinaryOp.ADD))
                self.store_outputs(m, n, Load(total, ()))

    def store_outputs(self, m: Expr, n: Expr, total: Expr) -> None:
        """All outputs at (``m``, ``n``), given the complete accumulator there."""
        at, accumulator = {"m": m, "n": n}, self.p.accumulator.name
        for result in self.p.results:
            value = scalar_at(result.value, at, lambda e: total if e.buffer.name == accumulator else e)
            self.w.store(result.tensor, [scalar_at(i, at) for i in result.indices], value)


class _KMajorWriter(_GemvWriter):
    def body(self) -> None:
        p, s, w = self.p, self.s, self.w
        self.prefetch()
        accumulators = self.zeros(p.m.extent * s.rows_per_warp)
        chunk = WARP_LANES * self.vector
        step_k = s.warps_k * chunk * s.vectors
        own = self.warp_idx_k * chunk + self.lane * self.vector
        whole = p.k.extent // step_k
        if whole:
            with w.loop("step", whole) as step:
                self.add_step(accumulators, step * step_k + own, s.vectors, s.vectors)
        if left := p.k.extent - whole * step_k:
            with w.scope():
                vectors = -(-left // (s.warps_k * chunk))
                self.add_step(accumulators, own + whole * step_k, vectors, left // (s.warps_k * chunk))
        results = [
            (held, held.number // s.rows_per_warp, held.number % s.rows_per_warp)
            for held in warp_reduce_scatter(w, accumulators, self.lane)
        ]
        if s.warps_k == 1:
            for held, m, row in results:
                tests = [] if held.owns is None else [held.owns]
                tests += [self.first_n + row < p.n.extent] if p.n.extent % s.block_n else []
                with w.when(*tests):
                    total = Load(accumulators, (index(held.register),))
                    self.store_outputs(m if p.m.extent > 1 else index(0), self.first_n + row, total)
            return
        partials = self.partials()
        column = self.warp_idx_n * s.rows_per_warp
        for held, m, row in results:
            with w.when(held.owns):
                value = Load(accumulators, (index(held.register),))
                w.store(partials, (self.warp_idx_k, m, column + row), value)
        self.add_partials(partials)

    def prefetch(self) -> None:
        """L2 prefetch of what the first step loads, by the first blocks of the launch."""
        p, s = self.p, self.s
        elements = min(WARP_LANES * self.vector * s.warps_k * s.vectors, p.k.extent)
        narrow = has_narrow_loads(p)
        prefetch = L2Prefetch(self.w, (self.thread, s.threads), (self.block, s.blocks), s.prefetching_ctas, narrow)
        if narrow:
            prefetch_unaligned_operands(prefetch, p, s.warps_n, s.rows_per_warp, elements)
        else:
            prefetch_operands(prefetch, p, s.block_n, index(0), elements)

    def add_step(self, accumulators: Buffer, k: Expr, vectors: int, inside: int) -> None:
        """Add the products of ``vectors`` vectors of each row, the first of this lane from ``k`` on. All are loaded
        before the first product. The first ``inside`` of them surely lie inside the row."""
        p, s, w, vector = self.p, self.s, self.w, self.vector
        m_extent, dtype, rows = p.m.extent, self.dtype, s.rows_per_warp
        b = w.allocate("b", (vectors, rows, vector), _kept_as(p.b, vector, dtype), MemoryScope.REGISTER)
        a = w.allocate("a", (vectors, m_extent, vector), _kept_as(p.a, vector, dtype), MemoryScope.REGISTER)

        def load(held: Buffer, operand: Operand, axis: str, count: int, index_of: Callable[[Expr], Expr]) -> None:
            for start, stop, masked in ((0, inside, False), (inside, vectors, True)):
                if start == stop:
                    continue
                with w.unrolled("u", stop - start) as u, w.unrolled(f"{axis}_row", count) as row:
                    at = {axis: index_of(row), "k": k + (u + start) * (s.warps_k * WARP_LANES * vector)}
                    mask = _inside(at["k"], vector, p.k.extent) if masked else None
                    value = _vector(operand, at, "k", vector, mask)
                    w.store(held, (u + start, row, _ramp(vector)), cast(value, held.dtype))

        load(b, p.b, "n", rows, lambda row: minimum(self.first_n + row, index(p.n.extent - 1)))
        load(a, p.a, "m", m_extent, lambda row: row)
        with (
            w.unrolled("u", vectors) as u,
            w.unrolled("m", m_extent) as m,
            w.unrolled("r", rows) as r,
            w.unrolled("v", vector) as v,
        ):
            product = cast(Load(b, (u, r, v)), dtype) * cast(Load(a, (u, m, v)), dtype)
            w.store(accumulators, (m * rows + r,), Load(accumulators, (m * rows + r,)) + product)


class _NMajorWriter(_GemvWriter):
    def body(self) -> None:
        p, s, w, vector = self.p, self.s, self.w, self.vector
        m_extent, lanes_k = p.m.extent, WARP_LANES // s.lanes_n
        column = (self.lane % s.lanes_n) * vector
        accumulators = self.zeros(m_extent * vector)
        with w.loop("step", s.steps) as step:
            self.add_step(accumulators, step, self.first_n + column)
        partials = self.partials()
        column += self.warp_idx_n * s.warp_n
        if lanes_k == 1:
            with w.unrolled("mp", m_extent) as m:
                value = Load(accumulators, contiguous_vector((m * vector,), vector))
                w.store(partials, contiguous_vector((self.warp_idx_k, m, column), vector), value)
        else:
            for held in warp_reduce_scatter(w, accumulators, self.lane, s.lanes_n):
                with w.when(held.owns):
                    at = (self.warp_idx_k, held.number // vector, column + held.number % vector)
                    w.store(partials, at, Load(accumulators, (index(held.register),)))
        self.add_partials(partials)

    def add_step(self, accumulators: Buffer, step: Expr, first_n: Expr) -> None:
        """Add the products of ``unroll`` rows of B, the vectors at ``first_n`` of this lane."""
        p, s, w, vector, dtype = self.p, self.s, self.w, self.vector, self.dtype
        lanes_k, m_extent = WARP_LANES // s.lanes_n, p.m.extent
        k_is_whole, n_is_whole = p.k.extent % s.step_k == 0, p.n.extent % vector == 0
        b = w.allocate("b", (s.unroll, vector), _held_as(p.b), MemoryScope.REGISTER)
        a = w.allocate("a", (m_extent, s.unroll), _held_as(p.a), MemoryScope.REGISTER)
        k = ((step * s.warps_k + self.warp_idx_k) * lanes_k + self.lane // s.lanes_n) * s.unroll
        n = minimum(first_n, index(p.n.extent - vector)) if n_is_whole else first_n
        with w.unrolled("uw", s.unroll) as u:
            inside = None if k_is_whole else k + u < p.k.extent
            mask = None if inside is None else _spread(inside, vector)
            if not n_is_whole:
                tail = _inside(n, vector, p.n.extent)
                mask = tail if mask is None else logical_and(mask, tail)
            w.store(b, (u, _ramp(vector)), _vector(p.b, {"n": n, "k": k + u}, "n", vector, mask))
        with w.unrolled("mx", m_extent) as m:
            if p.a.k == 1 and s.unroll > 1:
                mask = None if k_is_whole else _inside(k, s.unroll, p.k.extent)
                w.store(a, (m, _ramp(s.unroll)), _vector(p.a, {"m": m, "k": k}, "k", s.unroll, mask))
            else:
                with w.unrolled("ux", s.unroll) as u:
                    mask = None if k_is_whole else k + u < p.k.extent
                    w.store(a, (m, u), _vector(p.a, {"m": m, "k": k + u}, "k", 1, mask))
        with (
            w.unrolled("u", s.unroll) as u,
            w.unrolled("m", m_extent) as m,
            w.unrolled("v", vector) as v,
        ):
            product = cast(Load(b, (u, v)), dtype) * cast(Load(a, (m, u)), dtype)
            w.store(accumulators, (m * vector + v,), Load(accumulators, (m * vector + v,)) + product)


def _held_as(operand: Operand) -> DType:
    """Return what an operand is held as between memory and arithmetic: as it was loaded, where it is a plain load."""
    return operand.body.dtype if operand.load is None else operand.load.buffer.dtype


def _kept_as(operand: Operand, vector: int, accumulator: DType) -> DType:
    """Return what vectors of an operand are held as. Single elements are held as they are multiplied, since each takes
    a register anyway."""
    return accumulator if vector == 1 else _held_as(operand)


def _vector(operand: Operand, at: dict[str, Expr], axis: str, elements: int, mask: Expr | None) -> Expr:
    """``elements`` neighbours of an operand along ``axis``, as they are held; zeros where ``mask`` is false."""
    if operand.load is not None:
        load = vector_at(operand.load, at, axis, elements)
        if mask is None:
            return load
        if isinstance(load, Load):
            return Load(load.buffer, load.indices, mask)
        return Select(mask, load, _zeros(load.dtype, elements))
    value = vector_at(operand.body, at, axis, elements)
    return value if mask is None else Select(mask, value, _zeros(value.dtype, elements))


def _spread(value: Expr, elements: int) -> Expr:
    return Broadcast(value, elements) if elements > 1 else value


def _zeros(dtype: DType, elements: int) -> Expr:
    return _spread(const(0, dtype), elements)


def _inside(start: Expr, elements: int, extent: int) -> Expr:
    """Return which of ``elements`` indices from ``start`` (a multiple of ``elements``) on are below ``extent``."""
    if elements == 1:
        return start < extent
    if extent % elements == 0:
        return Broadcast(start < extent, elements)
    return Ramp(start, 1, elements) < Broadcast(index(extent), elements)


def _ramp(elements: int) -> Expr:
    return Ramp(index(0), 1, elements) if elements > 1 else index(0)
