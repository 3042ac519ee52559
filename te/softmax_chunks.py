"""A softmax of long rows in chunks, so that memory is read twice and not three times.

    top[i]   = max over k of X[i, k]
    total[i] = sum over k of exp(X[i, k] - top[i])

    ->  top_c[i, c]   = max over q of X[i, c * 4096 + q]                          step 1: a chunk stays in the nearest
        total_c[i, c] = sum over q of exp(X[i, c * 4096 + q] - top_c[i, c])               cache for both
        top[i]   = max over c of top_c[i, c]                                      step 2
        total[i] = sum over c of total_c[i, c] * exp(top_c[i, c] - top[i])
        what is computed from them                                                step 3

The maximum and the sum of a chunk are neighbours in one tensor, so that one kernel writes both.
"""

from itertools import pairwise

import numpy as np

from ..core.dtypes import float32, float64
from ..core.errors import InvalidWorkload
from ..ir.buffer import Buffer
from ..ir.expr import Compare, CompareOp, Load, Select, Unary, UnaryOp, Var, const, index, maximum
from ..ir.rewrite import fresh_name, substitute
from .contraction_path import with_own_axes
from .inline import inline_stages
from .steps import run_of
from .workload import Axis, Reducer, Stage, Workload

LONG_ROW_BYTES = 1 << 20
"""The second-level cache of a core holds shorter rows between the passes over them."""
CHUNKS = (4096, 1024, 16384)
"""How many elements a chunk has: the first of these that divides a row."""

_LOWEST = {float32: float(np.finfo(np.float32).min), float64: float(np.finfo(np.float64).min)}


def softmax_chunk_steps(workload: Workload) -> list[tuple[str, tuple[Workload, ...]]]:
    """Return the decomposition by its name, if the workload is such a softmax, or reads its maximum and sum."""
    whole = inline_stages(workload)
    tops = [s for s in whole.stages if s.reducer is not None]
    if workload.dynamic or workload.skews or len(tops) != 2 or not _are_softmax(*tops):
        return []
    (top, total), rest = tops, [s for s in whole.stages if s.reducer is None]
    (axis,) = top.reduce_axes
    length = next((n for n in CHUNKS if axis.extent % n == 0 and axis.extent > n), 0)
    is_long = axis.extent * top.tensor.dtype.bytes >= LONG_ROW_BYTES
    if not length or not is_long or whole.stages[:2] != (top, total):
        return []
    stages = [*_in_chunks(whole, top, total, length), *rest]
    ends = [0, *(n for n in (3, 5) if n < len(stages)), len(stages)]
    try:
        steps = tuple(run_of(whole, stages, begin, end) for begin, end in pairwise(ends))
    except InvalidWorkload:  # a tensor beyond the limits
        return []
    return [("softmax_chunks", steps)]


def _are_softmax(top: Stage, total: Stage) -> bool:
    """Return whether the second stage adds up the exponentials of what is below the first one."""
    if (top.reducer, total.reducer) != (Reducer.MAX, Reducer.SUM) or top.tensor.dtype not in _LOWEST:
        return False
    if len(top.reduce_axes) != 1 or len(total.reduce_axes) != 1 or top.tensor.shape != total.tensor.shape:
        return False
    axes = zip((*top.axes, *top.reduce_axes), (*total.axes, *total.reduce_axes), strict=True)
    below = substitute(top.body, {a.name: Var(b.name) for a, b in axes})
    at_row = Load(top.tensor, tuple(Var(a.name) for a in total.axes))
    return total.reduce_axes[0].extent == top.reduce_axes[0].extent and total.body == Unary(UnaryOp.EXP, below - at_row)


def _in_chunks(whole: Workload, top: Stage, total: Stage, length: int) -> list[Stage]:
    """Return the stages of the first two steps."""
    taken = {b.name for b in whole.inputs} | {s.name for s in whole.stages}
    taken |= {a.name for s in whole.stages for a in (*s.axes, *s.reduce_axes)}

    def fresh(base: str) -> str:
        taken.add(name := fresh_name(base, taken))
        return name

    (axis,), dtype = top.reduce_axes, top.tensor.dtype
    chunk, place, which = Axis(fresh("chunk"), axis.extent // length), Axis(fresh("place"), length), Axis(fresh("p"), 2)
    rows = (*top.axes, chunk)
    shape = tuple(a.extent for a in rows)
    tops, totals = (Buffer(fresh(f"{s.name}_of_chunk"), shape, dtype) for s in (top, total))
    both = Buffer(fresh("of_chunk"), (*shape, 2), dtype)
    body = substitute(top.body, {axis.name: Var(chunk.name) * length + Var(place.name)})
    at_chunk = tuple(Var(a.name) for a in rows)
    # A chunk that is hidden wholly has no exponentials; minus infinity less minus infinity would be none either.
    lowest = maximum(Load(tops, at_chunk), const(_LOWEST[dtype], dtype))
    pair = Select(Compare(CompareOp.EQ, Var(which.name), index(0)), Load(tops, at_chunk), Load(totals, at_chunk))
    of_top, of_total = (Load(both, (*at_chunk, index(n))) for n in range(2))
    at_row = Load(top.tensor, at_chunk[:-1])
    found = [
        Stage(tops, rows, body, (place,), Reducer.MAX),
        Stage(totals, rows, Unary(UnaryOp.EXP, body - lowest), (place,), Reducer.SUM),
        Stage(both, (*rows, which), pair),
        Stage(top.tensor, top.axes, of_top, (chunk,), Reducer.MAX),
        Stage(total.tensor, top.axes, of_total * Unary(UnaryOp.EXP, of_top - at_row), (chunk,), Reducer.SUM),
    ]
    return [with_own_axes(stage, taken) for stage in found]
