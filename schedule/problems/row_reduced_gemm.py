"""Matrix products whose rows are reduced, so that nobody has to store the products themselves:

    D[i, j] = sum over k of A[i, k] * B[j, k]
    M[i] = min over j of N[j] - 2 * D[i, j]                                  the distance to the nearest code word
    S[i] = sum over j of exp(D[i, j] - max over j of D[i, j])                logits of a cross entropy
    Y[i] = log(S[i]) + max over j of D[i, j] - D[i, T[i]]

The matrix of the sums is the input of a workload on rows (``rowwise``), and what that reduces are results of the
product. Columns are rows of the transposed product. An element at a column that its row names, such as the logit of a
target, is the sum of those of its row of which all others count as 0.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ...core.dtypes import float32, int32
from ...ir.buffer import Buffer
from ...ir.expr import Cast, Compare, CompareOp, Expr, Load, Select, Unary, UnaryOp, Var, const, index
from ...ir.linear_form import affine_form
from ...ir.rewrite import free_variables, fresh_name, loads_of, map_expr, map_loads, substitute
from ...te.contraction import contraction_of
from ...te.inline import inline_stages
from ...te.workload import Axis, Reducer, Stage, Workload
from .gemm import Gemm, gemm_of
from .row_axes import column_axis, row_axis
from .rowwise import ReducedTensor, RowwiseProblem, rowwise_problem


@dataclass(frozen=True, slots=True)
class RowReduction:
    """``tensor`` is the reduction ``reduced`` of the values of a result, the one with the number ``result``, along its
    columns. ``exponentials``: it is the sum of the exponentials of what these values are below the greatest of their
    row, which the reduction before it with the same result has found."""

    reduced: ReducedTensor
    result: int
    exponentials: bool = False


@dataclass(frozen=True, slots=True)
class RowReducedGemm:
    """The results of ``gemm`` are values that are reduced and not stored: their last indices are columns, the others
    those of the rows of ``rows``. ``reductions`` are those of ``rows``, in their order. The outputs are those of
    ``rows`` that are computed from whole rows."""

    gemm: Gemm
    rows: RowwiseProblem
    reductions: tuple[RowReduction, ...]


def row_reduced_gemm_of(workload: Workload) -> RowReducedGemm | None:
    """``workload`` as a product whose rows are reduced; None where it is anything else. Reductions do not depend on
    each other, but for a maximum and one sum of exponentials, which have the dtype of the product. All are over all
    columns, and have 32 bits."""
    whole = inline_stages(workload)
    product, *rest = whole.stages
    if workload.dynamic or workload.skews or product.name in whole.outputs or contraction_of(product) is None:
        return None
    taken = {b.name for b in whole.inputs} | {s.name for s in whole.stages}
    matrix = _matrix_of(product.tensor, rest, fresh_name("matrix", taken))
    if matrix is None:
        return None
    rest = [part for stage in rest for part in _with_elements_as_sums(matrix.read_by(stage), matrix.tensor)]
    read = (*whole.inputs, matrix.tensor)
    rows = rowwise_problem(replace(whole, inputs=read, stages=tuple(rest), constants=frozenset()))
    if rows is None or rows.elementwise_outputs or rows.order or rows.row_offsets or not rows.reductions:
        return None
    loads = [*(load for s in rest for load in loads_of(s.body) if load.buffer == product.tensor)]
    loads += [load for c in rows.per_row_outputs for load in loads_of(c.body) if load.buffer == matrix.tensor]
    if loads:  # of elements that are not reduced
        return None
    reductions = _reductions(rows)
    if reductions is None or (any(r.reduced.reducer.is_position for r in reductions) and len(rows.columns) > 1):
        return None
    values = list[Stage]()
    for number in range(1 + max(r.result for r in reductions)):
        (first, *others) = (r for r in reductions if r.result == number)
        body = matrix.of_product(map_expr(first.reduced.body, _unrounded) if others else first.reduced.body)
        values.append(_values(rows, replace(first.reduced, body=body), fresh_name("partial", taken)))
        taken.add(values[-1].name)
    gemm = gemm_of(
        replace(whole, stages=(product, *values), outputs=tuple(s.name for s in values), constants=frozenset()),
        scaled=True,
    )
    if gemm is None or not all(_along_rows(rows, r.indices) for r in gemm.results):
        return None
    if any(r.exponentials and r.reduced.tensor.dtype != product.tensor.dtype for r in reductions):
        return None
    return RowReducedGemm(replace(gemm, stored=False), rows, reductions)


@dataclass(frozen=True, slots=True)
class _Matrix:
    """The sums of a product as they are reduced: ``tensor[rows, columns]`` is ``product[places]``, on the axes of a
    reduction of it, ``rows`` and ``columns``."""

    product: Buffer
    tensor: Buffer
    rows: tuple[Axis, ...]
    columns: tuple[Axis, ...]
    places: tuple[Expr, ...]

    def read_by(self, stage: Stage) -> Stage:
        """Return a stage that reads the matrix wherever it reads the product in its own row: at its own columns, or at
        one that the row names."""
        own = tuple(Var(a.name) for a in (*stage.axes, *stage.reduce_axes))
        extents = tuple(a.extent for a in (*stage.axes, *stage.reduce_axes))
        column = self.places.index(Var(self.columns[0].name)) if Var(self.columns[0].name) in self.places else None
        if extents == self.tensor.shape:
            wanted, named = self._at(own), None
        elif extents == self.tensor.shape[:-1] and len(self.columns) == 1 and column is not None:
            wanted, named = self._at((*own, own[0] if own else index(0))), column
        else:
            return stage

        def read(load: Load) -> Load:
            if load.buffer != self.product:
                return load
            pairs = (pair for d, pair in enumerate(zip(load.indices, wanted, strict=True)) if d != named)
            if not all(_is_same(i, w) for i, w in pairs):
                return load
            return Load(self.tensor, own if named is None else (*own, load.indices[named]))

        return replace(stage, body=map_loads(stage.body, read))

    def of_product(self, body: Expr) -> Expr:
        """Return the body of a reduction of a workload on rows, which reads the product instead of the matrix."""
        return map_loads(
            body, lambda load: Load(self.product, self._at(load.indices)) if load.buffer == self.tensor else load
        )

    def _at(self, axes: tuple[Expr, ...]) -> tuple[Expr, ...]:
        names = (a.name for a in (*self.rows, *self.columns))
        at = dict(zip(names, axes, strict=True))
        return tuple(substitute(i, at) for i in self.places)


def _matrix_of(product: Buffer, rest: Sequence[Stage], name: str) -> _Matrix | None:
    """Return the matrix that the first reduction makes of a product; None where it reads none."""
    first = next((s for s in rest if s.reducer is not None), None)
    places = next((e.indices for e in loads_of(first.body) if e.buffer == product), None) if first else None
    if first is None or places is None:
        return None
    axes = (*first.axes, *first.reduce_axes)
    return _Matrix(
        product, Buffer(name, tuple(a.extent for a in axes), product.dtype), first.axes, first.reduce_axes, places
    )


def _is_same(i: Expr, j: Expr) -> bool:
    """Return whether two indices are the same."""
    return i == j or ((form := affine_form(i)) is not None and form == affine_form(j))


def _with_elements_as_sums(stage: Stage, matrix: Buffer) -> list[Stage]:
    """Return a stage that reduces nothing behind sums that stand for the elements of ``matrix`` that it reads in its
    own row, at a column which that row names."""
    sums = dict[Load, Stage]()

    def as_sum(load: Load) -> Load:
        if load.buffer != matrix or load.indices[:-1] != tuple(Var(a.name) for a in stage.axes):
            return load
        *row, column = load.indices
        axis = Axis(column_axis(0), matrix.shape[-1])
        element, zero = replace(load, indices=(*row, Var(axis.name))), const(0, load.dtype)
        here = Compare(CompareOp.EQ, Cast(Var(axis.name), int32), Cast(column, int32))
        body = Select(here, element, zero)
        tensor = Buffer(f"{stage.name}#{len(sums)}", stage.tensor.shape, load.dtype)
        sums.setdefault(load, Stage(tensor, stage.axes, body, (axis,), Reducer.SUM))
        return Load(sums[load].tensor, tuple(row))

    if stage.reducer is not None:
        return [stage]
    read = replace(stage, body=map_loads(stage.body, as_sum))
    return [*sums.values(), read]


def _reductions(rows: RowwiseProblem) -> tuple[RowReduction, ...] | None:
    """Return the reductions, each with the values that it reduces; None where some depend on others in other ways than
    a sum of exponentials does."""
    found, tensors = list[RowReduction](), {r.tensor for r in rows.reductions}
    at_row = tuple(Var(row_axis(n)) for n in range(len(rows.rows)))
    values = 0
    for reduced in rows.reductions:
        dtypes = reduced.accumulation.state_dtypes
        if any(dtype.bits != 32 for dtype in dtypes):
            return None
        if not any(load.buffer in tensors for load in loads_of(reduced.body)):
            found.append(RowReduction(reduced, values))
            values += 1
            continue
        top = next((f for f in found if _is_exponential(reduced, f.reduced, at_row)), None)
        if top is None or any(f.exponentials for f in found):
            return None
        found.append(RowReduction(reduced, top.result, exponentials=True))
    return tuple(found)


def _is_exponential(reduced: ReducedTensor, top: ReducedTensor, at_row: tuple[Expr, ...]) -> bool:
    """Return whether ``reduced`` adds up the exponentials of what values are below the maximum ``top`` of their row, in
    the dtype of both."""
    below = Unary(UnaryOp.EXP, top.body - Load(top.tensor, at_row)) if top.body.dtype == top.tensor.dtype else None
    reducers = (top.reducer, reduced.reducer) == (Reducer.MAX, Reducer.SUM)
    return reducers and reduced.body == below and reduced.tensor.dtype == below.dtype and below.dtype.is_float


def _values(rows: RowwiseProblem, reduced: ReducedTensor, name: str) -> Stage:
    """Return a stage that computes what a reduction reduces, in the dtype that it accumulates in."""
    axes = [Axis(row_axis(n), extent) for n, extent in enumerate(rows.rows)]
    axes += [Axis(column_axis(n), extent) for n, extent in enumerate(rows.columns)]
    dtype, body = reduced.accumulation.accumulator_dtype, reduced.body
    tensor = Buffer(name, tuple(a.extent for a in axes), dtype)
    return Stage(tensor, tuple(axes), body if body.dtype == dtype else Cast(body, dtype))


def _unrounded(e: Expr) -> Expr:
    """Return what a float32 was before it was rounded to 16 bits, which it need not be (``te.inline``). Exponentials
    take the place of accumulators, and the assembler wants to see float32 alone in that."""
    match e:
        case Cast(Cast(value, narrow), type) if (
            value.dtype == type == float32 and narrow.is_float and narrow.bits == 16
        ):
            return value
    return e


def _along_rows(rows: RowwiseProblem, indices: tuple[Expr, ...]) -> bool:
    """Return whether the columns of the product, and these alone, are those of the rows."""
    outer, columns = indices[: len(rows.rows)], indices[len(rows.rows) :]
    read = set().union(*(free_variables(i) for i in columns))
    return read == {"n"} and not any("n" in free_variables(i) for i in outer)
