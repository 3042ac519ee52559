"""Which of a thread's vectors has what an output reads at another column of its row.

With 128 columns, 8 threads a row and 8 elements a vector, a thread has the columns from 8 * t on and those from
64 + 8 * t on. What stands half a row further on is in its other vector then: (slot + 1) % 2.
"""

from ....ir.bounds import loop_range
from ....ir.expr import Expr, Load, Var, index, maximum, minimum
from ....ir.linear_form import LinearForm, linear_form
from ....ir.rewrite import free_variables, substitute
from ....ir.simplify import simplify
from ...problems.row_axes import column_axis, row_axis
from ...problems.rowwise import RowwiseProblem
from ...tile.load_analysis import conditions_inside
from ...tile.pieces import LANE, LoadedSpan
from .sizes import RowPartition

_SLOT, _THREAD = Var("slot#"), Var("thread#")


def held_slot(problem: RowwiseProblem, load: Load, p: RowPartition[int], slot: Expr, *, all_held: bool) -> Expr | None:
    """Return which of its vectors in registers a thread needs where ``load``, one of ``other_loads``, is read for its
    vector number ``slot``; None where it has no such vector. ``all_held``: its registers have all its vectors, and not
    this one alone."""
    span, own = problem.span_of(load, p.vector), problem.own_indices_of(load.buffer)
    if span is None or load.buffer not in problem.row_inputs or load.indices[:-1] != own[:-1]:
        return None
    if span.begins_with_vector:
        return slot
    if not all_held or len(problem.columns) > 1 or p.cluster_size > 1:
        return None
    round_of_vectors, every = p.threads_per_row * p.vector, p.vectors_per_thread
    at = {column_axis(0): _SLOT * round_of_vectors + _THREAD * p.vector + span.lowest}
    before = LinearForm({_THREAD: p.vector}, span.before)
    ranges = {_SLOT.name: loop_range(every), _THREAD.name: loop_range(p.threads_per_row)}
    form = linear_form(simplify(substitute(load.indices[-1], at), ranges)) - before
    divisible = all(c % round_of_vectors == 0 for c in (form.constant, *form.terms.values()))
    if not divisible or any(free_variables(atom) != {_SLOT.name} for atom in form.terms):
        return None
    terms = {atom: c // round_of_vectors for atom, c in form.terms.items()}
    found = substitute(LinearForm(terms, form.constant // round_of_vectors).to_expr(), {_SLOT.name: slot})
    return found if span.mask is None else minimum(maximum(found, index(0)), index(every - 1))


def columns_further(problem: RowwiseProblem, load: Load) -> int | None:
    """Return how many columns further on ``load`` reads its own row, everywhere; None where it reads anything else."""
    own = problem.own_indices_of(load.buffer) if load.buffer in problem.row_inputs else ()
    if load.mask is not None or not own or load.indices[:-1] != own[:-1]:
        return None
    column = own[-1]
    if problem.joined_extent:
        column = problem.part_begin(Var(row_axis(len(problem.rows) - 1))) + column
    apart = linear_form(load.indices[-1]) - linear_form(column)
    return None if apart.terms else apart.constant


def behind_vector(problem: RowwiseProblem, load: Load, vector: int) -> LoadedSpan | None:
    """Return what ``load`` reads behind a vector of its row, where it reads all else in the vector; None where it reads
    nothing there, and where that may be outside the tensor."""
    further = columns_further(problem, load)
    if further is None or not 0 < further < vector or conditions_inside(load, problem.extents):
        return None
    return LoadedSpan(vector - further, further, places=LinearForm({LANE: 1}, further - vector))
