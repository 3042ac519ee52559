"""Writes the kernel of ``cuda_skinny_mixed``: products with at most 64 rows whose weights have fewer bits than what
they are multiplied with, or rows that begin anywhere. Vectors of such rows are shifted in registers
(``unaligned_loads``).

B is the left operand of mma.sync, as in ``cuda_skinny_mma``. Its fragments are computed in registers from what each
lane has loaded of B, so that B goes through no shared memory. A fragment has places of ``k`` in pairs, those of four
lanes one behind another. Which places these are does not matter as long as A has the same ones: so a lane takes
neighbouring places, those of one load of 16 bytes.

    for each step:
        for each vector:  load B for the rows of this lane
        for each vector:  load A; compute the fragments of B; mma.sync
    partial accumulators of all warps and of the blocks of the cluster are added in a fixed order; epilogue
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from ....core.dtypes import float32
from ....ir.buffer import Buffer, MemoryScope
from ....ir.expr import WARP_LANES, Broadcast, Expr, Load, Ramp, const, index, minimum
from ....ir.gpu.mma import Mma
from ....ir.rewrite import substitute
from ....ir.stmt import Kernel
from ....te.functions import cast
from ...loop_nest.nest import KERNEL_NAME
from ...problems.gemm import Gemm
from ...tile.contiguous import contiguous_vector
from ...tile.names import FreshNameWriter
from ...tile.stage_body import scalar_at
from ..block_reduce import QUAD
from ..l2_prefetch import L2Prefetch
from ..launch_axes import warp_axes
from ..split_k import ColumnSlice, allocate_partials, reduce_columns
from ..streamed_operand import StreamedOperand
from ..unaligned_loads import UnalignedVector, flat_index, flat_view
from .mixed_sizes import SkinnyMixedSizes
from .mma_mainloop import can_shift_skinny_mma
from .mma_tiles import ATOM_M, ATOM_N, COPY_ELEMENTS, mma_atom_of
from .shifted_tiles import is_in_vectors

_PLACES = 4
"""How many places of ``k`` a lane has in one fragment."""


def lower_skinny_mixed(p: Gemm, weights: StreamedOperand, scale: Expr | None, s: SkinnyMixedSizes[int]) -> Kernel:
    """Return the kernel of one setting. ``scale``: what B is multiplied with besides ``weights``; it is the same for
    all places that a warp multiplies at once."""
    return _SkinnyMixedWriter(p, weights, scale, s).kernel()


class _SkinnyMixedWriter:
    def __init__(self, p: Gemm, weights: StreamedOperand, scale: Expr | None, s: SkinnyMixedSizes[int]) -> None:
        assert p.a.load is not None
        self.scale = scale
        self.p, self.weights, self.s, self.a = p, weights, s, p.a.load
        self.dtype = self.a.buffer.dtype
        atom = mma_atom_of(self.dtype)
        assert atom is not None
        self.atom = atom
        self.row_vectors = -(-p.k.extent // weights.vector)
        anywhere = can_shift_skinny_mma(p)
        self.shifts_a, self.shifts_b = (anywhere and not is_in_vectors(p, o) for o in (p.a, p.b))
        self.w = FreshNameWriter(p.names)

    def kernel(self) -> Kernel:
        p, s, w = self.p, self.s, self.w
        bounds = warp_axes(s.blocks_n, s.warps, s.split_k)
        with w.launch(
            KERNEL_NAME, bounds, min_blocks=s.min_blocks, evict_first=(self.weights.load.buffer.name,)
        ) as axes:
            self.block, self.warp, self.lane = axes[0], axes[-2], axes[-1]
            self.rank: Expr = axes[1] if s.split_k > 1 else index(0)
            self.warp_n = self.warp // s.warps_k if s.warps_n > 1 else index(0)
            self.warp_k = self.warp % s.warps_k if s.warps_k > 1 else index(0)
            self._prefetch()
            accumulators = self._zeros("accumulators")
            with w.loop("step", s.steps) as step:
                self._step(accumulators, step)
            with w.scope():
                self._epilogue(accumulators)
        return Kernel(KERNEL_NAME, p.inputs, tuple(r.tensor for r in p.results), (), w.finish())

    def _prefetch(self) -> None:
        """L2 prefetch of the weights of the first step, where all warps have whole ones, and of A."""
        p, s, weights = self.p, self.s, self.weights
        vectors = s.vectors * s.warps_k * QUAD
        if p.n.extent % s.block_n or s.split_k * s.steps * vectors != self.row_vectors:
            return

        def first_element(block: Expr, row: Expr) -> tuple[Expr, ...]:
            return weights.first_element({"n": block * s.block_n + row}, self.rank * (s.steps * vectors))

        thread = (self.warp * WARP_LANES + self.lane, s.threads)
        prefetch = L2Prefetch(self.w, thread, (self.block, s.blocks_n), s.prefetching_ctas)
        prefetch.own("prefetched", weights.load.buffer, s.block_n, vectors * weights.elements, first_element)
        prefetch.all("prefetched", self.a.buffer)

    def _step(self, accumulators: Buffer, step: Expr) -> None:
        """Load vectors of all rows of this lane, and multiply them with those of A."""
        s, w, weights = self.s, self.w, self.weights
        rows = 2 * s.atoms_n
        raw = w.allocate("raw", (s.vectors, rows, weights.elements), weights.load.dtype, MemoryScope.REGISTER)
        once = [w.allocate("once", (s.vectors, rows), e.dtype, MemoryScope.REGISTER) for e in weights.once]
        factors = w.allocate("factors", (s.vectors, rows), float32, MemoryScope.REGISTER)
        with w.unrolled("loaded", s.vectors) as u, w.unrolled("row", rows) as row:
            n, vector = self._n(row), self._vector(step, u)[0]
            if self.shifts_b:
                k = self._vector_number(step, u) * weights.vector
                self._load_unaligned(raw, (u, row), weights.load, {"n": n, "k": k})
            else:
                source = contiguous_vector(weights.first_element({"n": n}, vector), weights.elements)
                w.store(raw, contiguous_vector((u, row, index(0)), weights.elements), Load(weights.load.buffer, source))
            for held, load in zip(once, weights.once, strict=True):
                w.store(held, (u, row), weights.once_at(load, {"n": n}, vector * weights.vector))
            if self.scale is not None:
                w.store(factors, (u, row), scalar_at(self.scale, {"n": n, "k": vector * weights.vector}))
        with w.unrolled("vector", s.vectors) as u:
            vector, inside = self._vector(step, u)
            if self.shifts_a:
                a = self._load_unaligned_a(self._vector_number(step, u) * weights.vector)
            else:
                a = self._load_a(vector * weights.vector, inside)
            b = w.allocate("b", (s.atoms_n, 2 * weights.vector), self.dtype, MemoryScope.REGISTER)
            with w.unrolled("b_atom", s.atoms_n) as i, w.unrolled("half", 2) as half:
                own = i * 2 + half
                with w.unrolled("pair", weights.vector // 2) as pair:
                    first, scales = vector * weights.vector, [Load(e, (u, own)) for e in once]
                    value = weights.along_vector(
                        {"n": self._n(own)}, first, pair * 2, Load(raw, (u, own, index(0))), scales
                    )
                    w.store(b, contiguous_vector((i, pair * _PLACES + half * 2), 2), cast(value, self.dtype))
            sums = accumulators if self.scale is None else self._zeros("sums")
            with (
                w.unrolled("place", weights.vector // _PLACES) as place,
                w.unrolled("atom_m", s.atoms_m) as j,
                w.unrolled("atom_n", s.atoms_n) as i,
            ):
                at = (i, j, index(0))
                w.emit(Mma(self.atom.name, sums, at, b, (i, place * 8), a, (j, place * _PLACES)))
            if self.scale is not None:
                with self._elements("scaled") as (i, j, e):
                    scaled = Load(sums, (i, j, e)) * Load(factors, (u, i * 2 + e // 2))
                    w.store(accumulators, (i, j, e), Load(accumulators, (i, j, e)) + scaled)

    def _zeros(self, name: str) -> Buffer:
        """Accumulators in registers: (atom along n, atom along m, element)."""
        s = self.s
        sums = self.w.allocate(name, (s.atoms_n, s.atoms_m, 4), float32, MemoryScope.REGISTER)
        with self._elements(f"zero_{name}") as at:
            self.w.store(sums, at, const(0.0, float32))
        return sums

    @contextmanager
    def _elements(self, name: str) -> Iterator[tuple[Expr, Expr, Expr]]:
        """All elements of accumulators."""
        w, s = self.w, self.s
        with (
            w.unrolled(f"{name}_n", s.atoms_n) as i,
            w.unrolled(f"{name}_m", s.atoms_m) as j,
            w.unrolled(name, 4) as e,
        ):
            yield i, j, e

    def _n(self, row: Expr) -> Expr:
        """Return the output ``n`` of one of a lane's rows; the last one for those behind it."""
        s, extent = self.s, self.p.n.extent
        first = self.block * s.block_n + self.warp_n * (s.atoms_n * ATOM_M)
        n = first + row * ATOM_N + self.lane // QUAD
        return minimum(n, index(extent - 1)) if extent % s.block_n else n

    def _vector(self, step: Expr, u: Expr) -> tuple[Expr, Expr | None]:
        """Return the number along a row of this lane's vector, the last one where there is none; whether there is one,
        None where there surely is."""
        s, vector = self.s, self._vector_number(step, u)
        if s.split_k * s.steps * s.vectors * s.warps_k * QUAD == self.row_vectors:
            return vector, None
        return minimum(vector, index(self.row_vectors - 1)), vector < self.row_vectors

    def _vector_number(self, step: Expr, u: Expr) -> Expr:
        """Return the number along a row of this lane's vector, also of one that there is not."""
        s = self.s
        chunk = ((self.rank * s.steps + step) * s.vectors + u) * s.warps_k + self.warp_k
        return chunk * QUAD + self.lane % QUAD

    def _load_unaligned_a(self, k: Expr) -> Buffer:
        """As ``_load_a``, for rows that begin anywhere."""
        s, w = self.s, self.w
        a = w.allocate("a", (s.atoms_m, COPY_ELEMENTS), self.dtype, MemoryScope.REGISTER)
        with w.unrolled("a_atom", s.atoms_m) as j:
            m = j * ATOM_N + self.lane // QUAD
            if self.p.m.extent % ATOM_N:
                m = minimum(m, index(self.p.m.extent - 1))
            self._load_unaligned(a, (j,), self.a, {"m": m, "k": k})
        return a

    def _load_unaligned(self, target: Buffer, to: tuple[Expr, ...], load: Load, at: Mapping[str, Expr]) -> None:
        """Load a vector of a row that begins anywhere, zeros behind its end."""
        begin = flat_index(load.buffer, (substitute(i, at) for i in load.indices))
        vector = UnalignedVector(flat_view(load.buffer), begin, at["k"], index(self.p.k.extent))
        self.w.store(target, contiguous_vector((*to, index(0)), COPY_ELEMENTS), vector.load())
        vector.load_rest(self.w, target, to)

    def _load_a(self, k: Expr, inside: Expr | None) -> Buffer:
        """Load the places of A from ``k`` on, zeros where they are not ``inside``: one row of each atom, the last one
        for those behind it."""
        s, w, vector = self.s, self.w, self.weights.vector
        a = w.allocate("a", (s.atoms_m, vector), self.dtype, MemoryScope.REGISTER)
        with w.unrolled("a_atom", s.atoms_m) as j, w.unrolled("a_part", vector // COPY_ELEMENTS) as part:
            m = j * ATOM_N + self.lane // QUAD
            if self.p.m.extent % ATOM_N:
                m = minimum(m, index(self.p.m.extent - 1))
            at = {"m": m, "k": k + part * COPY_ELEMENTS}
            source = contiguous_vector(tuple(substitute(i, at) for i in self.a.indices), COPY_ELEMENTS)
            to = (j, Ramp(part * COPY_ELEMENTS, 1, COPY_ELEMENTS))
            w.store(a, to, Load(self.a.buffer, source, None if inside is None else Broadcast(inside, COPY_ELEMENTS)))
        return a

    def _epilogue(self, accumulators: Buffer) -> None:
        """Every warp writes its accumulators to shared memory, where the block and its cluster add them up."""
        p, s, w = self.p, self.s, self.w
        partials = allocate_partials(w, p, s.warps_k, s.block_n, float32)
        with (
            w.unrolled("out_n", s.atoms_n) as i,
            w.unrolled("out_m", s.atoms_m) as j,
            w.unrolled("out_half", 2) as half,
            w.unrolled("out_low", 2) as low,
        ):
            m = j * ATOM_N + self.lane % QUAD * 2 + low
            n = self.warp_n * (s.atoms_n * ATOM_M) + i * ATOM_M + half * ATOM_N + self.lane // QUAD
            with w.when(m < p.m.extent if p.m.extent % ATOM_N else None):
                w.store(partials, (self.warp_k, m, n), Load(accumulators, (i, j, half * 2 + low)))
        thread = self.warp * WARP_LANES + self.lane
        reduce_columns(w, ColumnSlice(p, self.block, s.block_n, self.rank, s.split_k, thread, s.threads), partials)
