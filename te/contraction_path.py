"""Contraction paths: the orders in which the axes of a sum of products can be summed.

    out[i, l] = sum over j, k of A[i, j] * B[j, k] * C[k, l]

    (0*1)*2     T[i, k] = sum over j of A[i, j] * B[j, k]      out[i, l] = sum over k of T[i, k] * C[k, l]
    0*(1*2)     T[l, j] = sum over k of B[j, k] * C[k, l]      out[i, l] = sum over j of A[i, j] * T[l, j]

With 512 elements along every axis, the sum as it is written has 3 * 512^4 operations, and each path 4 * 512^3. A path
is named as ``opt_einsum`` and ``numpy.einsum_path`` think of it: the factors are numbered in their order, and a
parenthesis is summed over all axes that nothing outside of it has. Names of tensors and axes play no part.

That a factor may be moved out of a sum is the distributive law. It holds exactly for integers, which wrap. For floats
another order rounds otherwise, and its intermediate may overflow where the sum as written would not.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, reduce
from itertools import permutations
from math import prod

from ..ir.buffer import Buffer
from ..ir.expr import Binary, BinaryOp, Expr, Load, Var, walk
from ..ir.rewrite import fresh_name, loads_of, substitute
from .workload import Reducer, Stage

MOST_PATHS = 4
"""So many paths of a sum are looked at, those with the fewest multiplications."""
_MOST_GROUPS = 5
"""Sums over more groups of axes have no path: there are too many orders to compare."""
INTERMEDIATE = "contraction"
"""Names of intermediate tensors begin so."""


@dataclass(frozen=True, slots=True)
class ContractionPath:
    """One order. ``stages`` compute the tensor of the sum, which the last of them has. They have axes of their own. At
    least two of them are sums. There may be one more behind them, a product of tensors without a sum.
    ``multiplications`` counts those of all stages."""

    name: str
    stages: tuple[Stage, ...]
    multiplications: int

    @property
    def intermediates(self) -> tuple[Buffer, ...]:
        """The tensors that are computed before the last one, in their order."""
        return tuple(s.tensor for s in self.stages[:-1])


def factors_of(body: Expr) -> Iterator[Expr]:
    """The factors of a product, in their order; a body that is no product is one factor."""
    if isinstance(body, Binary) and body.op is BinaryOp.MUL:
        yield from factors_of(body.a)
        yield from factors_of(body.b)
    else:
        yield body


@lru_cache(maxsize=256)
def contraction_paths(stage: Stage, taken: frozenset[str] = frozenset()) -> tuple[ContractionPath, ...]:
    """The paths of a stage that need fewer multiplications than the sum as it is written, the fewest first, at most
    ``MOST_PATHS``. There are none where the stage is no sum of products, and where no order saves anything.

    ``taken``: names that intermediate tensors and axes must not have, besides those that the stage itself reads.
    """
    if stage.reducer is not Reducer.SUM or len(stage.reduce_axes) < 2:
        return ()
    terms = [_Term.of(str(n), n, factor, stage) for n, factor in enumerate(factors_of(stage.body))]
    groups = _groups(terms, stage)
    if len(terms) < 2 or not 2 <= len(groups) <= _MOST_GROUPS:
        return ()
    names = {*taken, stage.name, *(load.buffer.name for load in loads_of(stage.body))}
    written = len(terms) * prod(a.extent for a in (*stage.axes, *stage.reduce_axes))
    found: dict[str, ContractionPath] = {}
    for order in permutations(groups):
        path = _path(stage, terms, order, names)
        if sum(s.reducer is not None for s in path.stages) > 1 and path.multiplications < written:
            found.setdefault(path.name, path)
    return tuple(sorted(found.values(), key=lambda p: (p.multiplications, p.name))[:MOST_PATHS])


def path_as_written(stage: Stage) -> str:
    """The name of the path that sums over all axes at once."""
    return "*".join(str(n) for n, _ in enumerate(factors_of(stage.body)))


@dataclass(frozen=True, slots=True)
class _Term:
    """A factor, or a sum of products of some. ``first``: the number of its first factor. ``axes``: those it has."""

    name: str
    first: int
    value: Expr
    axes: frozenset[str]

    @classmethod
    def of(cls, name: str, first: int, value: Expr, stage: Stage) -> "_Term":
        own = {a.name for a in (*stage.axes, *stage.reduce_axes)}
        return cls(name, first, value, frozenset(v.name for v in walk(value) if isinstance(v, Var)) & own)


def _groups(terms: Sequence[_Term], stage: Stage) -> list[frozenset[str]]:
    """The axes of the sum; those that the same factors have are always summed together."""
    found: dict[frozenset[str], set[str]] = {}
    for axis in stage.reduce_axes:
        having = frozenset(t.name for t in terms if axis.name in t.axes)
        found.setdefault(having, set()).add(axis.name)
    return [frozenset(group) for group in found.values()]


def _path(
    stage: Stage, terms: Sequence[_Term], order: Sequence[frozenset[str]], names: Collection[str]
) -> ContractionPath:
    """Sum over one group of axes after the other. Each sum multiplies all factors that have axes of the group."""
    remaining, stages, count, taken = list(terms), list[Stage](), 0, set(names)
    left = {a.name for a in stage.reduce_axes}
    for group in order:
        if not group & left:
            continue  # another sum had it to itself
        members = [t for t in remaining if t.axes & group]
        if not members:
            continue  # no factor has the axis: the first sum repeats its terms
        others = [t for t in remaining if not t.axes & group]
        gone = left - frozenset().union(*(t.axes for t in others))
        inside = frozenset().union(*(t.axes for t in members))
        over = tuple(a for a in stage.reduce_axes if a.name in gone)
        kept = tuple(a for a in (*stage.axes, *stage.reduce_axes) if a.name in inside - gone)
        tensor = Buffer(fresh_name(INTERMEDIATE, taken), tuple(a.extent for a in kept), stage.tensor.dtype)
        taken.add(tensor.name)
        stages.append(Stage(tensor, kept, _product(members), over, Reducer.SUM))
        count += len(members) * prod(a.extent for a in (*kept, *over))
        left -= gone
        name = f"({'*'.join(t.name for t in members)})"
        value = Load(tensor, tuple(Var(a.name) for a in kept))
        joined = _Term(name, min(t.first for t in members), value, frozenset(a.name for a in kept))
        remaining = sorted([*others, joined], key=lambda t: t.first)
    if len(remaining) == 1 and {a.name for a in stage.axes if a.extent > 1} <= remaining[0].axes:
        stages[-1] = replace(stages[-1], tensor=stage.tensor, axes=stage.axes)
        name = remaining[0].name[1:-1]
    else:
        stages.append(Stage(stage.tensor, stage.axes, _product(remaining)))
        count += (len(remaining) - 1) * stage.tensor.elements
        name = "*".join(t.name for t in remaining)
    return ContractionPath(name, tuple(_with_own_axes(s, taken) for s in stages), count)


def _with_own_axes(stage: Stage, taken: set[str]) -> Stage:
    """The stage with axes whose names are not ``taken``. They are afterwards."""
    new: dict[str, str] = {}
    for axis in (*stage.axes, *stage.reduce_axes):
        new[axis.name] = fresh_name(axis.name, taken)
        taken.add(new[axis.name])
    axes, over = (tuple(replace(a, name=new[a.name]) for a in group) for group in (stage.axes, stage.reduce_axes))
    body = substitute(stage.body, {old: Var(name) for old, name in new.items()})
    return replace(stage, axes=axes, reduce_axes=over, body=body)


def _product(terms: Sequence[_Term]) -> Expr:
    return reduce(lambda a, b: a * b, (t.value for t in terms))
