"""Workloads that work on rows: reductions of each row, and outputs computed from the row and from what was reduced.

    total[i] = sum over k of X[i, k]
    Y[i, j] = X[i, j] - total[i] * G[j] + B[i]

Here i is a row axis, and j and k are the column axis. X is a row input, since it is read at its own row and column.
G is broadcast along the rows. B and total depend on the row alone.

    Z[i, j] = X[i, j] / total[i] * C[i, j % 64] - X[i, (j + 64) % 128] / total[i] * S[i, j % 64]

The outputs may also read elements of any row of a tensor at other columns: half a row further on, as in rotary
embeddings. Kernels load these once more, from memory that is close by then. Reductions of long rows may read neighbours
in the same row, as in ``sum over k of abs(X[i, k + 1] - X[i, k])``.

    total[i] = sum over k of abs(E[I[i], k])

Rows may be gathered from a table by indices in memory, as in a norm behind an embedding.

    total[c] = sum over n, p of X[n, c, p]
    Z[n, c, p] = X[n, c, p] / total[c]

Here c is the row axis, and n and p are column axes. A row is made of segments: the elements along p are contiguous, and
the next ones along n stand further on.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice, takewhile
from math import gcd, prod

from ...core.dtypes import float32, float64
from ...ir.buffer import Buffer
from ...ir.expr import Binary, BinaryOp, Const, Expr, Load, Ramp, Unary, UnaryOp, Var, index, minimum, walk
from ...ir.linear_form import affine_form
from ...ir.rewrite import free_variables, loads_of, map_loads, substitute
from ...te.dynamic import row_extent
from ...te.inline import MAX_INLINED_NODES, inline_stages
from ...te.squeeze import squeezed
from ...te.workload import Reducer, Stage, Workload
from ..tile.accumulation import Accumulation
from ..tile.contiguous import contiguous_over
from ..tile.delinearize import delinearize
from ..tile.pieces import LoadedSpan, span_of
from .gemm import skinny_gemm_of
from .row_axes import column_axis, has_column_axis, has_row_axis, in_order, is_column_axis, row_axes_of, row_axis
from .row_places import is_along_a_row, is_gathered_row, is_neighbour, kind_of, row_offsets, variable_forms


@dataclass(frozen=True, slots=True)
class ReducedTensor:
    """``tensor[kept axes] = reducer of body over the reduced axes``.

    ``position``: what is kept of the best value, where the reducer gives a position; None: its column. ``best``: the
    tensor by whose name outputs read that best value.
    """

    tensor: Buffer
    reducer: Reducer
    body: Expr
    position: Expr | None = None
    best: Buffer | None = None

    @property
    def accumulation(self) -> Accumulation:
        """How values of the body are accumulated."""
        return Accumulation(self.reducer, self.body.dtype, self.tensor.dtype)


@dataclass(frozen=True, slots=True)
class ComputedTensor:
    """``tensor[axes] = body``, where nothing is reduced. ``order``: along which of the axes (rows, columns) each of its
    dimensions goes, as ``RowwiseProblem.order``; None where it goes along the same ones as row inputs. ``parts``: the
    extents of the last dimensions, where these together are the column axis, and not one of them alone."""

    tensor: Buffer
    body: Expr
    order: tuple[int, ...] | None = None
    parts: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class RowwiseProblem:
    """A workload as work on rows.

    ``rows`` and ``columns`` are the extents of the axes. Bodies call these axes ``row_axis(n)`` and ``column_axis(n)``.
    ``row_inputs`` are read at exactly (rows, columns). The last index of ``broadcast_loads`` is the last column axis,
    on which their other indices do not depend. The last index of ``other_loads``, which elementwise outputs have,
    depends on this axis in any way, and a condition may keep them inside their tensors; those of reductions read their
    own row further on. Every other load depends on the row, or on the row and the segment: on any axes but the last
    column axis. ``gathered``: row inputs whose rows are read at loaded indices, and these indices, along all dimensions
    but the last one. A reduction reads only ``reductions`` that stand before it, and those at its own row.
    ``elementwise_outputs`` have row and column axes, ``per_row_outputs`` have row axes only. ``order``: along which of
    the axes (rows, columns) each dimension of row inputs and elementwise outputs goes, the last one along the last
    column axis, and -1 where it has one element; empty where it is along each in turn, so that rows are contiguous.
    Outputs may have an order of their own. ``row_offsets``: the index along each dimension at which the first row of
    each row input begins, in whole vectors; empty where all are 0. ``dynamic``: the extent of the first row axis in a
    call, where that is dynamic. ``joined_extent``: 0, or the extent of the last axis of the row inputs, where the last
    row axis and the column axis are this one axis, the parts of which are rows. The last part ends where the axis ends,
    so that it may have columns of the part before.
    """

    rows: tuple[int, ...]
    columns: tuple[int, ...]
    row_inputs: tuple[Buffer, ...]
    broadcast_loads: tuple[Load, ...]
    reductions: tuple[ReducedTensor, ...]
    elementwise_outputs: tuple[ComputedTensor, ...]
    per_row_outputs: tuple[ComputedTensor, ...]
    dynamic: Expr | None = None
    joined_extent: int = 0
    order: tuple[int, ...] = ()
    other_loads: tuple[Load, ...] = ()
    row_offsets: tuple[tuple[int, ...], ...] = ()
    gathered: tuple[tuple[Buffer, tuple[Expr, ...]], ...] = ()

    def input_indices(self, rows: Sequence[Expr], columns: Sequence[Expr]) -> tuple[Expr, ...]:
        """Return where row inputs are read, at an index of each row axis and each column axis."""
        if not self.joined_extent:
            return in_order((*rows, *columns), self.order, index(0))
        (column,), begin = columns, self.part_begin(rows[-1])
        if isinstance(column, Ramp):
            return in_order((*rows[:-1], replace(column, base=begin + column.base)), self.order, index(0))
        return in_order((*rows[:-1], begin + column), self.order, index(0))

    def indices_of(self, tensor: Buffer, rows: Sequence[Expr], columns: Sequence[Expr]) -> tuple[Expr, ...]:
        """Return where one of the row inputs is read, at an index of each row axis and each column axis."""
        place = dict(self.gathered).get(tensor)
        if place is not None:
            return (*(substitute(i, {row_axis(n): at for n, at in enumerate(rows)}) for i in place), columns[-1])
        return self._from_first_row(tensor, self.input_indices(rows, columns))

    def own_indices_of(self, tensor: Buffer) -> tuple[Expr, ...]:
        """Return the indices at which bodies read one of the row inputs."""
        place = dict(self.gathered).get(tensor)
        return self._from_first_row(tensor, self.own_indices) if place is None else (*place, Var(column_axis(0)))

    def _from_first_row(self, tensor: Buffer, at: tuple[Expr, ...]) -> tuple[Expr, ...]:
        offsets = dict(zip(self.row_inputs, self.row_offsets, strict=False)).get(tensor, (0,) * len(at))
        return tuple(i + offset if offset else i for i, offset in zip(at, offsets, strict=True))

    def output_indices(self, c: ComputedTensor, rows: Sequence[Expr], columns: Sequence[Expr]) -> tuple[Expr, ...]:
        """Return where an elementwise output is written, at an index of each row axis and each column axis."""
        at = self.input_indices(rows, columns) if c.order is None else in_order((*rows, *columns), c.order, index(0))
        if not c.parts:
            return at
        column = at[-1]
        if isinstance(column, Ramp):
            return (*at[:-1], *contiguous_over(column.base, c.parts, column.lanes))
        return (*at[:-1], *delinearize(column, c.parts))

    @property
    def vector_axes(self) -> int:
        """Along how many of the last column axes vectors run: their elements are contiguous in all tensors of rows, and
        broadcast loads depend on all these axes, in this order, or on none."""
        if self.is_plain and not self.order:
            return 1
        tensors = (*self.row_inputs, *(c.tensor for c in self.elementwise_outputs))

        def runs_along(count: int) -> bool:
            first = len(self.columns) - count
            axes, inner = [Var(column_axis(n)) for n in range(first, len(self.columns))], self.columns[first + 1 :]
            if prod(self.columns[first:]) > self.segment or any(t.shape[1 - count :] != inner for t in tensors):
                return False
            others = [load for load in self.broadcast_loads if free_variables(load) & {a.name for a in axes}]
            return all(x.indices[-count:] == tuple(axes) and x.buffer.shape[1 - count :] == inner for x in others)

        return next(n for n in range(len(self.columns), 0, -1) if n == 1 or runs_along(n))

    @property
    def own_indices(self) -> tuple[Expr, ...]:
        """The indices at which bodies read row inputs, from their first rows on. They call a column of a part of a
        joined axis ``column_axis``, too."""
        axes = (*map(row_axis, range(self._read_rows)), *map(column_axis, range(len(self.columns))))
        return in_order(tuple(map(Var, axes)), self.order, index(0))

    @property
    def _read_rows(self) -> int:
        """How many row axes dimensions of row inputs go along."""
        return len(self.rows) - (self.joined_extent > 0)

    @property
    def is_plain(self) -> bool:
        """Whether rows are contiguous, and what is read depends on all column axes or on none."""
        return self.segment == self.column_count and not self.reads_segments

    @property
    def reads_segments(self) -> bool:
        """Whether something is read that depends on some column axes alone."""
        bodies = [r.body for r in self.reductions] + [c.body for c in self.elementwise_outputs]
        return any(0 < _columns_of(load) < len(self.columns) for body in bodies for load in loads_of(body))

    @property
    def segment(self) -> int:
        """How many elements of a row are contiguous."""
        count, rows = len(self.columns), self._read_rows
        last = [a for a in self.order or range(rows + count) if a >= 0][-count:]
        together = takewhile(lambda n: last[n] == rows + n, reversed(range(count)))
        return prod(self.columns[n] for n in together)

    def part_begin(self, part: Expr) -> Expr:
        """Return where row number ``part`` along the last row axis begins in the axis of ``joined_extent`` elements."""
        begin = part * self.column_count
        if self.rows[-1] * self.column_count == self.joined_extent:
            return begin
        return minimum(begin, index(self.joined_extent - self.column_count))

    def row_begin(self, rows: Sequence[Expr]) -> Expr:
        """Return the offset of a row in the row inputs, in elements."""
        at = self.input_indices(rows, [index(0)] * len(self.columns))
        return sum((i * prod(self.shape[n + 1 :]) for n, i in enumerate(at)), start=index(0))

    @property
    def shape(self) -> tuple[int, ...]:
        """How many indices of each dimension of the row inputs are read."""
        columns = (self.joined_extent,) if self.joined_extent else self.columns
        return in_order((*self.rows[: self._read_rows], *columns), self.order, 1)

    @property
    def pitch(self) -> int:
        """A number of elements that divides how far apart rows stand in memory, and their segments, where a row input
        has more than is read of it; else 0."""
        larger = [b for b in self.row_inputs if b.shape[1:] != self.shape[1:]]
        return gcd(*(stride for b in larger for stride in b.strides[:-1]))

    @property
    def row_count(self) -> int:
        """How many rows there are; at most, where the first row axis is dynamic."""
        return prod(self.rows)

    @property
    def row_end(self) -> Expr:
        """How many rows a call has."""
        if self.dynamic is None:
            return index(self.row_count)
        return self.dynamic if self.row_unit == 1 else self.dynamic * self.row_unit

    @property
    def row_unit(self) -> int:
        """A number that divides how many rows a call has."""
        return self.row_count if self.dynamic is None else prod(self.rows[1:])

    @property
    def column_count(self) -> int:
        return prod(self.columns)

    @property
    def read_bytes(self) -> int:
        """How many bytes of the row inputs belong to one row and one column."""
        return sum(b.dtype.bytes for b in self.row_inputs)

    @property
    def written_bytes(self) -> int:
        """How many bytes of the elementwise outputs belong to one row and one column."""
        return sum(c.tensor.dtype.bytes for c in self.elementwise_outputs)

    @property
    def row_bytes(self) -> int:
        """How many bytes of the row inputs belong to one row."""
        return self.column_count * self.read_bytes

    @property
    def state_bytes(self) -> int:
        """How many bytes the states of all reductions have, for one row."""
        return sum(d.bytes for r in self.reductions for d in r.accumulation.state_dtypes)

    @property
    def output_broadcasts(self) -> tuple[Load, ...]:
        """The broadcast loads of the elementwise outputs."""
        return self.broadcasts_in([c.body for c in self.elementwise_outputs])

    @property
    def passes(self) -> tuple[tuple[ReducedTensor, ...], ...]:
        """The reductions, in groups of neighbours of which none reads what another one gives: a pass over the row is
        enough for each group."""
        groups: list[tuple[ReducedTensor, ...]] = []
        for reduction in self.reductions:
            read = {load.buffer for load in loads_of(reduction.body)}
            apart = not groups or any(r.tensor in read or r.best in read for r in groups[-1])
            groups = [*groups, (reduction,)] if apart else [*groups[:-1], (*groups[-1], reduction)]
        return tuple(groups)

    @property
    def has_moments(self) -> bool:
        """Whether there are two reductions: a sum, and that of the squares of deviations from its mean."""
        if len(self.reductions) != 2 or any(r.reducer is not Reducer.SUM for r in self.reductions):
            return False
        total, squares = self.reductions
        if not total.body.dtype.is_float:
            return False
        match squares.body:
            case Binary(op=BinaryOp.MUL, a=Binary(op=BinaryOp.SUB, a=value, b=mean) as a, b=b) if a == b:
                return value == total.body and self._is_mean(mean, total.tensor)
        return False

    @property
    def has_exponentials(self) -> bool:
        """Whether there are two reductions: a maximum, and the sum of the exponentials of what is below it, in float32
        or float64."""
        if [r.reducer for r in self.reductions] != [Reducer.MAX, Reducer.SUM]:
            return False
        top, total = self.reductions
        at_row = Load(top.tensor, tuple(Var(row_axis(n)) for n in range(len(self.rows))))
        return top.tensor.dtype in (float32, float64) and total.body == Unary(UnaryOp.EXP, top.body - at_row)

    def _is_mean(self, mean: Expr, total: Buffer) -> bool:
        match mean:
            case Binary(op=BinaryOp.MUL, a=Load(buffer=buffer), b=Const(value=share)):
                return buffer == total and abs(float(share) * self.column_count - 1) < _ROUNDED
            case Binary(op=BinaryOp.DIV, a=Load(buffer=buffer), b=Const(value=count)):
                return buffer == total and float(count) == self.column_count
        return False

    @property
    def extents(self) -> dict[str, int]:
        """The extents of all axes of bodies, by name."""
        extents = {row_axis(n): extent for n, extent in enumerate(self.rows)}
        return extents | {column_axis(n): extent for n, extent in enumerate(self.columns)}

    @property
    def output_operands(self) -> tuple[Load, ...]:
        """What elementwise outputs read along a row, beside the row inputs. Of ``other_loads`` there is one of each
        other tensor: what else they read is often the same vector."""
        known = {*self.row_inputs, *(load.buffer for load in self.output_broadcasts)}
        others = {load.buffer: load for load in self.other_loads if load.buffer not in known}
        return (*self.output_broadcasts, *others.values())

    def span_of(self, load: Load, vector: int) -> LoadedSpan | None:
        """Return the neighbours that ``load``, one of ``other_loads``, reads for a whole vector of a row. None where it
        reads each element alone: where vectors begin anywhere, or run over several axes, and as ``span_of`` says."""
        if self.columns[-1] % vector:
            return None
        return span_of(load, column_axis(len(self.columns) - 1), vector, self.extents)

    def broadcasts_in(self, bodies: Sequence[Expr]) -> tuple[Load, ...]:
        """Return the broadcast loads of some bodies, each once."""
        loads = {load for body in bodies for load in loads_of(body)}
        return tuple(load for load in self.broadcast_loads if load in loads)


_LONG_ROW = 1024
"""Reductions over several axes read rows of at least so many elements further on; shorter ones are reduced in blocks
(``reduction_parts``)."""
_ROUNDED = 1e-6
"""The reciprocal of a number in float32 is off by less than this."""


@lru_cache(maxsize=64)  # most sketches of rows and of windows ask it of a workload
def rowwise_problem(workload: Workload, *, reads_elsewhere: bool = False) -> RowwiseProblem | None:
    """Return the workload as work on rows, or None where it is no such work.

    It is none where a reduction leaves out the last dimension of what it reads, is over other axes than the other
    reductions, or reads something that belongs to another row or column. With ``reads_elsewhere`` reductions of long
    rows may read them further on, too, by as many columns everywhere, and rows may be read at loaded indices. What is
    no product of one row may be such work only as its tensors are without dimensions of one element, as a batch of such
    products is. The problem has them so.
    """
    found = _rowwise_problem(workload, reads_elsewhere)
    if found is not None or workload.dynamic:
        return found
    found = _rowwise_problem(squeezed(workload), reads_elsewhere)
    return found if found is not None and skinny_gemm_of(workload) is None else None


def _rowwise_problem(workload: Workload, reads_elsewhere: bool) -> RowwiseProblem | None:
    stages = inlined_into_readers(inline_stages(workload))
    reducing = [s for s in stages if s.reducer is not None] if stages else []
    axes = row_axes_of(reducing[0], gathered=reads_elsewhere) if reducing else None
    if not stages or axes is None:
        return None
    reductions: list[ReducedTensor] = []
    elementwise: list[ComputedTensor] = []
    per_row: list[ComputedTensor] = []
    for given in stages:
        stage = axes.with_joined_columns(given)
        extents = tuple(a.extent for a in stage.axes)
        order = axes.output_order(stage, {r.tensor.name for r in reductions})
        if stage.reducer is not None:
            own = row_axes_of(stage, gathered=reads_elsewhere)
            if own is None or replace(own, reduced=axes.reduced) != axes:
                return None
            reductions.append(ReducedTensor(stage.tensor, stage.reducer, own.on_problem_axes(stage)))
        elif order is not None or extents == axes.shape:
            parts = () if stage is given else given.tensor.shape[len(axes.rows) :]
            elementwise.append(ComputedTensor(given.tensor, axes.on_problem_axes(stage, order), order, parts))
        elif extents == axes.rows:
            per_row.append(ComputedTensor(stage.tensor, axes.on_problem_axes(stage)))
        else:
            return None
    for r in reductions:
        if r.tensor.name in workload.outputs:
            at_row = tuple(Var(row_axis(n)) for n in range(len(axes.rows)))
            per_row.append(ComputedTensor(r.tensor, Load(r.tensor, at_row)))
    problem = _with_loads(
        RowwiseProblem(axes.rows, axes.columns, (), (), (*reductions,), (*elementwise,), (*per_row,), order=axes.order),
        reads_elsewhere=reads_elsewhere,
    )
    extent = row_extent(workload)
    if problem is None or extent is None:
        return problem
    orders = (axes.order, *(c.order for c in elementwise if c.order is not None))
    return replace(problem, dynamic=Var(extent.var)) if axes.rows and all(o[:1] in ((), (0,)) for o in orders) else None


@lru_cache(maxsize=64)  # sketches of rows and of columns ask it of a workload
def inlined_into_readers(workload: Workload) -> tuple[Stage, ...] | None:
    """Return the stages, with every stage that does not reduce inlined into those that read it, outputs included.

    What is left reads only inputs and reductions. None where a body would grow beyond ``MAX_INLINED_NODES``.
    """
    inlined: dict[str, Stage] = {}
    stages: list[Stage] = []
    for stage in workload.stages:

        def body_of(load: Load) -> Expr:
            found = inlined.get(load.buffer.name)
            if found is None:
                return load
            return substitute(found.body, {a.name: i for a, i in zip(found.axes, load.indices, strict=True)})

        body = map_loads(stage.body, body_of)
        if len(list(islice(walk(body), MAX_INLINED_NODES + 1))) > MAX_INLINED_NODES:
            return None
        new = Stage(stage.tensor, stage.axes, body, stage.reduce_axes, stage.reducer)
        stages.append(new)
        if stage.reducer is None:
            inlined[stage.name] = new
    return tuple(stages)


def _with_loads(p: RowwiseProblem, *, reads_elsewhere: bool) -> RowwiseProblem | None:
    """Return the problem with what it reads, or None where a load is not one that it allows. ``reads_elsewhere``: as in
    ``rowwise_problem``."""
    row_names = [row_axis(n) for n in range(len(p.rows))]
    column_names = [column_axis(n) for n in range(len(p.columns))]
    row_inputs: dict[str, Buffer] = {}
    gathered: dict[Buffer, tuple[Expr, ...]] = {}
    broadcasts: dict[Load, None] = {}
    others: dict[Load, None] = {}
    results = {r.tensor.name: r for r in p.reductions}
    first = [affine_form(i) for i in p.own_indices]
    offsets = row_offsets([r.body for r in p.reductions], first)
    reduced, elementwise = [r.body for r in p.reductions], [c.body for c in p.elementwise_outputs]
    is_long = len(p.columns) == 1 or p.columns[-1] >= _LONG_ROW
    gathers = reads_elsewhere and len(p.columns) == 1 and not p.order
    for n, body in enumerate((*reduced, *elementwise, *(c.body for c in p.per_row_outputs))):
        is_elementwise = 0 <= n - len(reduced) < len(elementwise)
        for load in loads_of(body):
            own = first
            if load.buffer in offsets:
                own = [f and f + offset for f, offset in zip(first, offsets[load.buffer], strict=True)]
            kind = kind_of(load, own, p.extents)
            is_read = is_elementwise and is_along_a_row(load, column_names[-1])
            is_further = reads_elsewhere and is_long and n < len(reduced) and is_neighbour(load, own)
            if gathers and is_gathered_row(load, column_names[0], p.extents):
                kind = "row input"
                if gathered.setdefault(load.buffer, load.indices[:-1]) != load.indices[:-1]:
                    return None
            elif kind is None and (is_read or is_further):
                kind = "other"
            elif kind is None and gathers and not has_column_axis(load):
                kind = "segment"
            if kind is None:
                return None
            if load.buffer.name in results:
                if [affine_form(i) for i in load.indices] != variable_forms(row_names):
                    return None
            elif kind == "row input":
                row_inputs[load.buffer.name] = load.buffer
            elif kind == "broadcast":
                broadcasts[load] = None
            elif kind == "other":
                others[load] = None
    if any(free_variables(c.body) & set(column_names) for c in p.per_row_outputs):
        return None
    if any(_is_product(r.body, p, row_inputs) for r in p.reductions):
        return None
    if not row_inputs or any(not _reads(r.body, row_inputs) for r in p.reductions):
        return None
    if any(load in others and load.buffer.name not in row_inputs for body in reduced for load in loads_of(body)):
        return None
    if gathered and (others or any(_has_chosen_factor(body, gathered, row_inputs) for body in reduced)):
        return None
    tensors = tuple(row_inputs.values())
    at = tuple(offsets.get(b, (0,) * len(b.shape)) for b in tensors) if offsets else ()
    found = replace(p, row_inputs=tensors, row_offsets=at, gathered=tuple(gathered.items()))
    return replace(found, broadcast_loads=tuple(broadcasts), other_loads=tuple(others))


def _is_product(body: Expr, p: RowwiseProblem, row_inputs: Mapping[str, Buffer]) -> bool:
    """Return whether a reduction is a product for another class. It is where it reads something that depends on some of
    the column axes alone, and something else beside the row inputs, since a sum over one of the axes comes first then,
    as in ``x[i] * A[i, j] * y[j]``. It is, too, where a matrix of one row is multiplied, and not a batch of such."""
    loads = [load for load in {*loads_of(body)} if load.buffer.name not in row_inputs and _columns_of(load)]
    others = [_columns_of(load) for load in loads]
    rows = {row_axis(n) for n, extent in enumerate(p.rows) if extent > 1}
    one_row = p.order != () and 1 in p.rows and all(rows.isdisjoint(free_variables(load)) for load in loads)
    return len(others) > 0 and (one_row or (len(others) > 1 and min(others) < len(p.columns)))


def _has_chosen_factor(body: Expr, gathered: Collection[Buffer], row_inputs: Mapping[str, Buffer]) -> bool:
    """Return whether a reduction multiplies a row that is gathered by what belongs to its own row, as a product with a
    matrix that is chosen for each row does: rows that share a matrix should share what they read of it."""
    products = [(e.a, e.b) for e in walk(body) if isinstance(e, Binary) and e.op is BinaryOp.MUL]
    for one, other in (*products, *((b, a) for a, b in products)):
        is_own = any(has_row_axis(load) and has_column_axis(load) for load in loads_of(one)) and not _reads(
            one, row_inputs
        )
        if is_own and any(load.buffer in gathered for load in loads_of(other)):
            return True
    return False


def _columns_of(load: Load) -> int:
    """Return on how many column axes it depends where a load reads."""
    return sum(is_column_axis(name) for name in free_variables(load))


def _reads(body: Expr, tensors: Mapping[str, Buffer]) -> bool:
    return any(load.buffer.name in tensors for load in loads_of(body))
