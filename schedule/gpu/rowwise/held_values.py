"""Which values of a row a thread holds in registers from one pass to the next, beside the row itself: those that take
several special functions, and that a later pass needs as well.

    top[i]   = max over j of 30 * tanh(X[i, j] / 30)                      holds 30 * tanh(X[i, j] / 30)
    total[i] = sum over j of exp(30 * tanh(X[i, j] / 30) - top[i])        holds exp(30 * tanh(X[i, j] / 30) - top[i])
    Y[i, j]  = exp(30 * tanh(X[i, j] / 30) - top[i]) / total[i]

There are special function units for an eighth of the lanes, so that these functions would take longer than memory.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from ....ir.buffer import Buffer
from ....ir.expr import Binary, BinaryOp, Expr, Load, Unary, UnaryOp, Var, rebuild, walk
from ....ir.rewrite import loads_of
from ...problems.row_axes import column_axis, has_column_axis
from ...problems.rowwise import RowwiseProblem
from ...tile.accumulation import register_dtype

MOST_HELD_VALUES = 32
"""A thread holds so many elements of a row at most. With more, they would not all have registers."""
_LEAST_FUNCTIONS = 2
"""A value takes so many special functions at least. One alone is hidden behind memory, and the compiler chooses."""
_FUNCTIONS = {
    **dict.fromkeys((UnaryOp.EXP, UnaryOp.EXP2, UnaryOp.LOG, UnaryOp.SQRT, UnaryOp.RSQRT), 1),
    **dict.fromkeys((UnaryOp.TANH, UnaryOp.ERF, UnaryOp.SIN, UnaryOp.COS), 2),
}
"""How many instructions of special function units a function takes, or how many are worth as much."""


@dataclass(frozen=True, slots=True)
class HeldValue:
    """A ``value`` that is computed in pass number ``first``. Passes read it, and values that have it as a part, at the
    last column axis of ``buffer``."""

    buffer: Buffer
    value: Expr
    first: int


@dataclass(frozen=True, slots=True)
class HeldValues:
    """``values``: in the order in which they are computed. ``bodies``: those of reductions and then of elementwise
    outputs, which read them. ``most_words``: how many registers a column takes at most from one pass to the next."""

    values: tuple[HeldValue, ...]
    bodies: tuple[Expr, ...]
    most_words: int


@lru_cache(maxsize=256)
def held_values(problem: RowwiseProblem) -> HeldValues:
    """Return what is held where each reduction is a pass, and all elementwise outputs together are another one."""
    passes = [[r.body] for r in problem.reductions]
    passes += [[c.body for c in problem.elementwise_outputs]] if problem.elementwise_outputs else []
    own = Var(column_axis(len(problem.columns) - 1))
    values: list[HeldValue] = []
    functions: dict[Expr, int] = {}
    for n, bodies in enumerate(passes):
        later = {e for others in passes[n + 1 :] for body in others for e in walk(body)}
        held: dict[Expr, Expr] = {}
        for e in (e for body in bodies for e in _outermost(body, later)):
            count = _functions(e, functions)
            is_worth_it = count >= _LEAST_FUNCTIONS and _functions(e, {}) > 0
            if is_worth_it and e not in held and has_column_axis(e) and _is_always_there(e, problem):
                buffer = Buffer(f"value#{len(values)}", (problem.columns[-1],), e.dtype)
                values.append(HeldValue(buffer, e, n))
                held[e] = Load(buffer, (own,))
                functions[held[e]] = count
        passes[n:] = [[_with_held(body, held) for body in others] for others in passes[n:]]
    needed = [{load.buffer for body in bodies for load in loads_of(body)} for bodies in passes]
    for v in values:
        needed[v.first] |= {load.buffer for load in loads_of(v.value)}
    words = [0]
    for n in range(len(passes) - 1):
        alive = [v for v in values if v.first <= n and any(v.buffer in read for read in needed[n + 1 :])]
        words.append(sum(-(-register_dtype(v.buffer.dtype).bytes // 4) for v in alive))
    return HeldValues(tuple(values), tuple(body for bodies in passes for body in bodies), max(words))


def _outermost(e: Expr, later: Collection[Expr]) -> Iterator[Expr]:
    """Yield the largest parts of an expression that later passes have, too, and that are computed."""
    if e in later and isinstance(e, Binary | Unary) and e.dtype.is_float:
        yield e
        return
    for child in e.children:
        yield from _outermost(child, later)


def _functions(e: Expr, known: Mapping[Expr, int]) -> int:
    """Return how many special functions an expression takes. ``known``: those of values that are held, which otherwise
    take none."""
    if e in known:
        return known[e]
    own = _FUNCTIONS.get(e.op, 0) if isinstance(e, Unary) else 0
    if isinstance(e, Binary) and e.op is BinaryOp.DIV and e.dtype.is_float and has_column_axis(e.b):
        own = 1
    return own + sum(_functions(child, known) for child in e.children)


def _is_always_there(e: Expr, problem: RowwiseProblem) -> bool:
    """Return whether an expression may be computed for each column: it reads nothing that a condition keeps inside."""
    return all(load.mask is None and load not in problem.other_loads for load in loads_of(e))


def _with_held(e: Expr, held: Mapping[Expr, Expr]) -> Expr:
    if not held or e in held:
        return held.get(e, e)
    return rebuild(e, [_with_held(child, held) for child in e.children]) if e.children else e
