"""Writes the epilogue of a product whose rows are reduced, and the launch that joins what its tiles found.

    for each tile:     a thread reduces the accumulators that it has of a row, the four lanes of a row combine what they
                       found, and one of them stores it: partial[row, tile along n]
    second launch:     the partial results of a row are reduced in the order of its columns (``rowwise``), and outputs
                       are computed from them

A warp of a warpgroup has whole rows of its tile, so that no warps have to meet. The partial result of a position is the
best value and where it stands; of equal ones the first is kept, here and there. That of a maximum and a sum of
exponentials is both of them, of the tile: the sum is rescaled as in an online softmax.

    partial_max[i, t] = max over u of L[i, t * 256 + u]
    partial_sum[i, t] = sum over u of exp(L[i, t * 256 + u] - partial_max[i, t])
    M[i] = max over t of partial_max[i, t]
    S[i] = sum over t of partial_sum[i, t] * exp(partial_max[i, t] - M[i])
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import e, inf, log2

from ....core.dtypes import int32
from ....ir.buffer import Buffer, MemoryScope
from ....ir.expr import (
    Cast,
    Compare,
    CompareOp,
    Const,
    Expr,
    Load,
    Select,
    Unary,
    UnaryOp,
    Var,
    const,
    index,
    logical_and,
    minimum,
    rebuild,
)
from ....ir.gpu.wgmma import WGMMA_M
from ....ir.rewrite import free_variables, loads_of
from ....te.workload import Reducer
from ...problems.gemm import Gemm, Result
from ...problems.row_axes import column_axis, row_axis
from ...problems.row_reduced_gemm import RowReducedGemm, RowReduction
from ...problems.rowwise import ReducedTensor, RowwiseProblem
from ...tile.accumulation import Accumulation, register_dtype, store_state
from ...tile.contiguous import contiguous_vector
from ...tile.names import FreshNameWriter
from ...tile.stage_body import scalar_at, vector_at
from ..block_reduce import QUAD, QUAD_DISTANCES, butterfly
from ..peaks import GpuPeaks
from ..rowwise.split import above_infinity
from ..term_cost import INTEGER_LANES, reduction_cost
from .epilogue import WARP_ROWS, Accumulators, Epilogue, SourceRegisters
from .mainloop import WarpRoles
from .sizes import GemmSizes

PAIR, HALVES = 2, 2
"""A thread has neighbouring columns in pairs, and rows in both halves of the 16 rows of its warp."""
PAIRS_AHEAD = 8
"""What results need for so many pairs of columns is computed while wgmma is under way. The rest is loaded meanwhile."""
MASK_INSTRUCTIONS = 1.25
"""A select for each element, and a comparison for each column, which four elements of a thread share."""
POSITION, EXPONENTIALS = "position", "exponentials"


@dataclass(frozen=True, slots=True)
class RowPartials:
    """What the tiles of a row find: for each reduction tensors (rows, ``tiles``), one for each number of its state. A
    sum of exponentials has one."""

    product: RowReducedGemm
    tiles: int

    def of(self, reduction: RowReduction) -> tuple[Buffer, ...]:
        """Return the tensors of a reduction."""
        kind, value = reduction.reduced.accumulation, self.product.gemm.results[reduction.result].tensor
        shape = (*self.product.rows.rows, self.tiles)
        names = [f"{value.name}_{EXPONENTIALS}"] if reduction.exponentials else [value.name, f"{value.name}_{POSITION}"]
        return tuple(Buffer(name, shape, d) for name, d in zip(names, kind.state_dtypes, strict=False))

    @property
    def tensors(self) -> tuple[Buffer, ...]:
        return tuple(b for r in self.product.reductions for b in self.of(r))

    def cycles(self, peaks: GpuPeaks, *, masked: bool) -> float:
        """Return how many cycles a multiprocessor takes to reduce an element in all ways. ``masked``: whether some may
        lie behind the last column."""
        total = 0.0
        for reduction in self.product.reductions:
            reduced, result = reduction.reduced, self.product.gemm.results[reduction.result]
            if self.picks(reduction):
                continue
            term = result.value
            if reduction.exponentials:
                term = _exponential(Load(result.tensor, result.indices), const(0.0, result.tensor.dtype))
            total += reduction_cost(reduced.reducer, term, reduced.tensor.dtype, peaks).cycles
            total += MASK_INSTRUCTIONS / INTEGER_LANES if masked else 0.0
        return total

    def joining(self) -> RowwiseProblem:
        """Return the problem of the second launch: rows of partial results."""
        rows = self.product.rows
        at_row = tuple(Var(row_axis(n)) for n in range(len(rows.rows)))
        place = (*at_row, Var(column_axis(0)))
        joined = list[ReducedTensor]()
        for reduction in self.product.reductions:
            reduced, (first, *others) = reduction.reduced, (Load(b, place) for b in self.of(reduction))
            body: Expr = first
            if reduction.exponentials:
                top = self.top_of(reduction)
                of_tile, of_row = Load(self.of(top)[0], place), Load(top.reduced.tensor, at_row)
                body = first * Unary(UnaryOp.EXP, above_infinity(of_tile) - of_row)
            joined.append(replace(reduced, body=body, position=next(iter(others), None)))
        joining = replace(rows, columns=(self.tiles,), row_inputs=self.tensors, broadcast_loads=())
        return replace(joining, reductions=tuple(joined))

    def picks(self, reduction: RowReduction) -> bool:
        """Return whether a reduction takes one element of each row."""
        value = self.product.gemm.results[reduction.result].value
        return reduction.reduced.reducer is Reducer.SUM and picked_column(value) is not None

    def top_of(self, reduction: RowReduction) -> RowReduction:
        """Return the maximum that exponentials are below."""
        return next(r for r in self.product.reductions if r.result == reduction.result)


def state_registers(product: RowReducedGemm) -> int:
    """Return how many registers a thread has for states, and for shifts of exponents, for each 64 rows."""
    numbers = sum(len(r.reduced.accumulation.state_dtypes) * PAIR + r.exponentials for r in product.reductions)
    return HALVES * numbers


def picked_column(value: Expr) -> Expr | None:
    """Return the column of which ``value`` is the accumulator, where it is 0 in all others, and the row says which one,
    as an int32; None where it is anything else."""
    match value:
        case Select(Compare(CompareOp.EQ, Cast(Var("n"), _), place), Load(), Const(value=0)):
            return place if "n" not in free_variables(place) and place.dtype == int32 else None
    return None


def _widened(value: Expr) -> Expr:
    """Return a value in the dtype of registers."""
    dtype = register_dtype(value.dtype)
    return value if value.dtype == dtype else Cast(value, dtype)


def _terms_of(e: Expr, axis: str) -> Iterator[Expr]:
    """Yield the largest parts of ``e`` that read tensors and depend on ``axis`` alone, as far as no select says where
    they may be computed."""
    if not loads_of(e):
        return
    if free_variables(e) & {"m", "n"} == {axis}:
        yield e
        return
    for child in (e.condition,) if isinstance(e, Select) else e.children:
        yield from _terms_of(child, axis)


def _exponential(value: Expr, shift: Expr) -> Expr:
    """Return the exponential of what a value is below the greatest one of its row, ``shift`` times the logarithm of 2:
    a multiply-add, and a power of 2."""
    return Unary(UnaryOp.EXP2, value * log2(e) - shift)


class RowReducingEpilogue(Epilogue):
    """Reduces the rows of a warpgroup's tile, and stores what it finds to ``partials``."""

    def __init__(
        self,
        w: FreshNameWriter,
        gemm: Gemm,
        sizes: GemmSizes[int],
        roles: WarpRoles,
        several_tiles: bool,
        *,
        partials: RowPartials,
    ) -> None:
        super().__init__(w, gemm, sizes, roles, several_tiles)
        self.partials = partials

    def load_first_sources(self, at: Mapping[str, Expr]) -> SourceRegisters:
        """Compute what results need for each row and for the first columns, while wgmma may still be under way."""
        w, found = self.w, self._compute_columns(at, index(0), self._pairs_ahead)
        for term in self._terms("m"):
            found[term] = w.allocate(
                "of_row", (self.s.atoms_m * HALVES,), register_dtype(term.dtype), MemoryScope.REGISTER
            )
            with self._rows("source") as (atom, half):
                m = minimum(self._row(at, atom, half), self.gemm.m_end - 1)
                w.store(found[term], (atom * HALVES + half,), _widened(scalar_at(term, {**at, "m": m})))
        return found

    def store(self, accumulators: Accumulators, at: Mapping[str, Expr], sources: SourceRegisters) -> None:
        """Reduce the rows of the warpgroup, which begin at ``at`` (axis -> index). ``sources``: what results read for
        each row."""
        assert isinstance(accumulators, Buffer)
        w, reductions = self.w, self.partials.product.reductions
        with w.scope():
            states = {r: self._allocate_state(r) for r in reductions}
            for reduction in reductions:
                if self.partials.picks(reduction):
                    self._pick(reduction, accumulators, at, sources, states[reduction])
            self._reduce(accumulators, at, sources, states)
            for reduction in reductions:
                if reduction.exponentials:
                    self._add_exponentials(accumulators, states[reduction], states[self.partials.top_of(reduction)][0])
                self._combine_lanes(reduction, states[reduction], at)
            with self._rows("stored") as (atom, half):
                m = self._row(at, atom, half)
                first = Compare(CompareOp.EQ, self.lane % QUAD, index(0))
                with w.when(logical_and(first, *self._rows_inside(at, m), at["n"] < self.gemm.n.extent)):
                    place = self._partial_place({**at, "m": m})
                    for reduction, state in states.items():
                        for partial, number in zip(self.partials.of(reduction), state, strict=True):
                            w.store(partial, place, Load(number, (atom, half, index(0))))

    def _allocate_state(self, reduction: RowReduction) -> tuple[Buffer, ...]:
        """Allocate a state of each row and column of a pair, and begin with the identity."""
        w, kind = self.w, reduction.reduced.accumulation
        shape = (self.s.atoms_m, HALVES, PAIR)
        state = tuple(w.allocate("state", shape, d, MemoryScope.REGISTER) for d in kind.state_dtypes)
        with self._rows("identity") as (atom, half), w.unrolled("identity_column", PAIR) as column:
            store_state(w, state, (atom, half, column), kind.identity)
        return state

    def _reduce(
        self,
        accumulators: Buffer,
        at: Mapping[str, Expr],
        sources: SourceRegisters,
        states: Mapping[RowReduction, tuple[Buffer, ...]],
    ) -> None:
        """Reduce what a thread has of each row. Positions are counted from its first column on. Values whose
        exponentials are added up later take the place of the accumulators, once all others are computed."""
        w, gemm = self.w, self.gemm
        kept = {r.result for r in states if r.exponentials}
        reduced = (r for r in states if not r.exponentials and not self.partials.picks(r))
        reductions = sorted(reduced, key=lambda r: r.result in kept)
        of_rows = {term: sources[term] for term in self._terms("m")}

        def reduce_pair(pair: Expr, of_columns: Mapping[Expr, Buffer], first: Expr) -> None:
            with w.unrolled("column", PAIR) as column, self._rows("reduced") as (atom, half):
                here = self._place(at, pair, column, atom, half)
                known: dict[Expr, Expr] = {term: Load(b, (atom * HALVES + half,)) for term, b in of_rows.items()}
                known |= {term: Load(b, (first + column,)) for term, b in of_columns.items()}
                element, place = (atom, pair * 4 + half * 2 + column), (atom, half, column)
                for reduction in reductions:
                    kind, state = reduction.reduced.accumulation, states[reduction]
                    value = self._value_of(gemm.results[reduction.result], here, Load(accumulators, element), known)
                    value = self._masked(value, at, pair, column, kind)
                    if reduction.result in kept:
                        w.store(accumulators, element, value)
                        value = Load(accumulators, element)
                    held = [Load(b, place) for b in state]
                    store_state(w, state, place, kind.accumulate(held, value, pair * 8 + column))

        ahead, pairs = self._pairs_ahead, self.s.tile_n // 8
        if ahead:
            with w.unrolled("first_pair", ahead) as first_pair:
                reduce_pair(first_pair, {term: sources[term] for term in self._terms("n")}, first_pair * PAIR)
        if pairs > ahead:
            with w.unrolled("pair", pairs - ahead) as further:
                reduce_pair(further + ahead, self._compute_columns(at, further + ahead, 1), index(0))

    @property
    def _pairs_ahead(self) -> int:
        """For how many pairs of columns that is computed ahead which results need for each column."""
        return min(PAIRS_AHEAD, self.s.tile_n // 8) if self._terms("n") else 0

    def _pick(
        self,
        reduction: RowReduction,
        accumulators: Buffer,
        at: Mapping[str, Expr],
        sources: SourceRegisters,
        state: Sequence[Buffer],
    ) -> None:
        """Take the accumulators at the column that each row names, of which few tiles have any."""
        w, (found,) = self.w, state
        place = picked_column(self.gemm.results[reduction.result].value)
        assert place is not None
        with self._rows("picked") as (atom, half):
            m = minimum(self._row(at, atom, half), self.gemm.m_end - 1)
            column = scalar_at(place, {**at, "m": m})
            if place in sources:
                column = Load(sources[place], (atom * HALVES + half,))
            here = column - Cast(self._column(at, index(0), index(0)), int32)
            with (
                w.when(logical_and(here >= const(0, int32), here < const(self.s.tile_n, int32))),
                w.unrolled("picked_pair", self.s.tile_n // 8) as pair,
                w.unrolled("picked_column", PAIR) as one,
                w.when(Compare(CompareOp.EQ, here, Cast(pair * 8 + one, int32))),
            ):
                w.store(found, (atom, half, index(0)), Load(accumulators, (atom, pair * 4 + half * 2 + one)))

    def _add_exponentials(self, values: Buffer, state: Sequence[Buffer], top: Buffer) -> None:
        """Add up the exponentials of what values are below the greatest one of their row, ``top``. Where that is minus
        infinity, all of them are 0."""
        w, (total,) = self.w, state
        shift = w.allocate("shift", (self.s.atoms_m, HALVES), top.dtype, MemoryScope.REGISTER)
        with self._rows("shifted") as (atom, half):
            value = Load(top, (atom, half, index(0)))
            hidden = Compare(CompareOp.EQ, value, const(-inf, top.dtype))
            w.store(shift, (atom, half), Select(hidden, const(0.0, top.dtype), value * log2(e)))
        with (
            w.unrolled("weighed", self.s.tile_n // 8) as pair,
            w.unrolled("weighed_column", PAIR) as column,
            self._rows("weighed") as (atom, half),
        ):
            value, place = Load(values, (atom, pair * 4 + half * 2 + column)), (atom, half, column)
            w.store(total, place, Load(total, place) + _exponential(value, Load(shift, (atom, half))))

    def _masked(self, value: Expr, at: Mapping[str, Expr], pair: Expr, column: Expr, kind: Accumulation) -> Expr:
        """Return a value, or what changes nothing where its column is behind the last one."""
        if self.gemm.n.extent % self.s.tile_n == 0:
            return value
        return Select(self._column(at, pair, column) < self.gemm.n.extent, value, kind.identity[0])

    def _value_of(self, result: Result, here: Mapping[str, Expr], product: Expr, known: Mapping[Expr, Expr]) -> Expr:
        """Return a value that is reduced, of one element. ``known``: what has been computed ahead."""

        def taken(e: Expr) -> Expr:
            if e in known:
                return known[e] if known[e].dtype == e.dtype else Cast(known[e], e.dtype)
            if isinstance(e, Load):
                return product if e.buffer.name in self.gemm.accumulators else e
            return rebuild(e, [taken(child) for child in e.children]) if e.children else e

        return scalar_at(taken(result.value), here)

    def _combine_lanes(self, reduction: RowReduction, state: Sequence[Buffer], at: Mapping[str, Expr]) -> None:
        """Combine what the columns of a pair and the lanes of a row have found, for the first column of a pair."""
        w, kind = self.w, reduction.reduced.accumulation
        with self._rows("combined") as (atom, half):
            first, second = ((atom, half, index(column)) for column in range(PAIR))
            store_state(w, state, first, kind.combine(*([Load(b, i) for b in state] for i in (first, second))))
            if len(state) > 1:
                begin = Cast(at["n"] + self.lane % QUAD * PAIR, int32)
                w.store(state[1], first, Load(state[1], first) + begin)
            butterfly(w, "of_lane", state, kind.combine, QUAD_DISTANCES, first)

    # --- places

    @contextmanager
    def _rows(self, name: str) -> Iterator[tuple[Expr, Expr]]:
        """The rows of a thread: (atom, half)."""
        w = self.w
        with w.unrolled(f"{name}_atom", self.s.atoms_m) as atom, w.unrolled(f"{name}_half", HALVES) as half:
            yield atom, half

    def _row(self, at: Mapping[str, Expr], atom: Expr, half: Expr) -> Expr:
        return at["m"] + (atom * WGMMA_M + self.warp_in_group * WARP_ROWS + self.lane // QUAD + half * 8)

    def _column(self, at: Mapping[str, Expr], pair: Expr, column: Expr) -> Expr:
        return at["n"] + (pair * 8 + self.lane % QUAD * PAIR + column)

    def _place(self, at: Mapping[str, Expr], pair: Expr, column: Expr, atom: Expr, half: Expr) -> dict[str, Expr]:
        """Return where an element is, moved inside the results."""
        m = minimum(self._row(at, atom, half), self.gemm.m_end - 1)
        return {**at, "m": m, "n": minimum(self._column(at, pair, column), index(self.gemm.n.extent - 1))}

    def _partial_place(self, at: Mapping[str, Expr]) -> tuple[Expr, ...]:
        """Return where the partial results of a row are."""
        rows = self.gemm.results[0].indices[: len(self.partials.product.rows.rows)]
        return (*(scalar_at(i, at) for i in rows), at["n"] // self.s.tile_n)

    # --- what results read beside the accumulators

    def _terms(self, axis: str) -> list[Expr]:
        """Return the largest parts of results that read tensors, and are the same along all axes of a tile but
        ``axis``. They may be computed ahead: no select says where."""
        return list(dict.fromkeys(term for r in self.gemm.results for term in _terms_of(r.value, axis)))

    def _compute_columns(self, at: Mapping[str, Expr], first: Expr, pairs: int) -> dict[Expr, Buffer]:
        """Compute what results need for each column, for some pairs of columns from the ``first`` one on."""
        w, last, found = self.w, self.gemm.n.extent, dict[Expr, Buffer]()
        width = PAIR if last % PAIR == 0 else 1
        for term in self._terms("n") if pairs else ():
            found[term] = w.allocate("of_column", (pairs * PAIR,), register_dtype(term.dtype), MemoryScope.REGISTER)
            with (
                w.unrolled("source_pair", pairs) as pair,
                w.unrolled("source_column", PAIR // width) as column,
            ):
                n = minimum(self._column(at, first + pair, column), index(last - width))
                value = _widened(vector_at(term, {**at, "n": n}, "n", width))
                w.store(found[term], contiguous_vector((pair * PAIR + column,), width), value)
        return found
