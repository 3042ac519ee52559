"""Contraction paths: the orders in which the factors of a sum of products can be multiplied and summed.

    out[i, l] = sum over j, k of A[i, j] * B[j, k] * C[k, l]

    (0*1)*2     T[i, k] = sum over j of A[i, j] * B[j, k]      out[i, l] = sum over k of T[i, k] * C[k, l]
    0*(1*2)     T[l, j] = sum over k of B[j, k] * C[k, l]      out[i, l] = sum over j of A[i, j] * T[l, j]

With 512 elements along every axis, the sum as it is written has 3 * 512^4 operations, and each of these 4 * 512^3.
``opt_einsum`` and ``numpy.einsum_path`` know the same paths. In their names the factors are numbered in their order,
and a parenthesis is a tensor, which is summed over all axes that nothing outside of it has. Some have none:
``(0*2)*1`` of a bilinear form first multiplies both vectors. Names of tensors and axes play no part.

That a factor may be moved out of a sum is the distributive law. It holds exactly for integers, which wrap. For floats
another order rounds otherwise, and its intermediate may overflow where the sum as written would not.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, reduce
from math import prod

from ..ir.buffer import Buffer
from ..ir.expr import Binary, BinaryOp, Expr, Load, Var, walk
from ..ir.rewrite import fresh_name, loads_of, substitute
from .workload import Reducer, Stage

MOST_PATHS = 4
"""So many paths of a sum are looked at, those with the fewest operations."""
_MOST_FACTORS = 5
"""Sums of products with more factors that have axes of the sum have no path: there are too many orders to compare."""
INTERMEDIATE = "contraction"
"""Names of intermediate tensors begin so."""


@dataclass(frozen=True, slots=True)
class ContractionPath:
    """One order. ``stages`` compute the tensor of the sum, which the last of them has. They have axes of their own. At
    least two of them have an axis of the sum. There may be one more behind them, a product of tensors that have none.
    ``operations``: the multiplications and additions of all stages."""

    name: str
    stages: tuple[Stage, ...]
    operations: int

    @property
    def intermediates(self) -> tuple[Buffer, ...]:
        """The tensors that are computed before the last one, in their order."""
        return tuple(s.tensor for s in self.stages[:-1])


def factors_of(body: Expr) -> Iterator[Expr]:
    """Yield the factors of a product, in their order; a body that is no product is one factor."""
    if isinstance(body, Binary) and body.op is BinaryOp.MUL:
        yield from factors_of(body.a)
        yield from factors_of(body.b)
    else:
        yield body


@lru_cache(maxsize=256)
def contraction_paths(stage: Stage, taken: frozenset[str] = frozenset()) -> tuple[ContractionPath, ...]:
    """Return the paths of a stage that need fewer operations than the sum as it is written, the fewest first, at most
    ``MOST_PATHS``. There are none where the stage is no sum of products, and where no order saves anything.

    ``taken``: names that intermediate tensors and axes must not have, besides those that the stage itself reads.
    """
    if stage.reducer is not Reducer.SUM:
        return ()
    factors = [_ProductFactor.of(number, value, stage) for number, value in enumerate(factors_of(stage.body))]
    reduced = {a.name for a in stage.reduce_axes}
    if reduced - set().union(*(f.axes for f in factors)):
        return ()  # the sum repeats its terms
    if len(factors) < 2 or sum(bool(f.axes & reduced) for f in factors) > _MOST_FACTORS:
        return ()
    written = len(factors) * prod(a.extent for a in (*stage.axes, *stage.reduce_axes))
    names = frozenset({*taken, stage.name, *(load.buffer.name for load in loads_of(stage.body))})
    start = _Partial(stage, tuple(_Term((f,), f.axes) for f in factors), (), 0, names)
    found: dict[str, ContractionPath] = {}
    waiting = [start.with_lone_sums()]
    while waiting:
        partial = waiting.pop()
        if partial.operations >= written:
            continue
        following = list(partial.following())
        waiting += following
        if not following and len(partial.stages) > 1:
            path = partial.finished()
            if path.operations < written:
                found.setdefault(path.name, path)
    return tuple(sorted(found.values(), key=lambda p: (p.operations, p.name))[:MOST_PATHS])


def path_as_written(stage: Stage) -> str:
    """Return the name of the path that sums over all axes at once."""
    return "*".join(str(n) for n, _ in enumerate(factors_of(stage.body)))


@dataclass(frozen=True, slots=True)
class _ProductFactor:
    """A factor of the sum, or a tensor that was made from some. ``first``: the number of its first factor."""

    name: str
    first: int
    value: Expr
    axes: frozenset[str]

    @classmethod
    def of(cls, number: int, value: Expr, stage: Stage) -> "_ProductFactor":
        own = {a.name for a in (*stage.axes, *stage.reduce_axes)}
        return cls(str(number), number, value, frozenset(v.name for v in walk(value) if isinstance(v, Var)) & own)


@dataclass(frozen=True, slots=True)
class _Term:
    """Factors that are multiplied where they are read, in their order. One of them has all ``axes``."""

    factors: tuple[_ProductFactor, ...]
    axes: frozenset[str]

    @property
    def name(self) -> str:
        return "*".join(f.name for f in self.factors)

    @property
    def value(self) -> Expr:
        return reduce(lambda a, b: a * b, (f.value for f in self.factors))

    def times(self, other: "_Term") -> "_Term":
        factors = sorted((*self.factors, *other.factors), key=lambda f: f.first)
        return _Term(tuple(factors), self.axes | other.axes)


@dataclass(frozen=True, slots=True)
class _Partial:
    """The beginning of a path: the ``terms`` that are left to be multiplied, and the stages so far."""

    stage: Stage
    terms: tuple[_Term, ...]
    stages: tuple[Stage, ...]
    operations: int
    taken: frozenset[str]

    def with_lone_sums(self) -> "_Partial":
        """With each term summed over the axes that no other term has."""
        found = self
        for term in self.terms:
            if len(self.terms) > 1 and found._gone(term):
                found = found._stored(term, [t for t in found.terms if t is not term])
        return found

    def following(self) -> Iterator["_Partial"]:
        """Yield what may come next: two terms that have axes of the sum are multiplied."""
        reduced = {a.name for a in self.stage.reduce_axes}
        for n, one in enumerate(self.terms):
            for other in self.terms[n + 1 :]:
                if not (one.axes & reduced and other.axes & reduced):
                    continue
                term, rest = one.times(other), [t for t in self.terms if t is not one and t is not other]
                within = one.axes <= other.axes or other.axes <= one.axes
                if not self._gone(term, rest) and within:
                    yield replace(self, terms=(*rest, term))  # read where it is needed: a factor with its scale
                else:
                    yield self._stored(term, rest)

    def finished(self) -> ContractionPath:
        """Return the path, where no term is left that has an axis of the sum."""
        stages, count, stage = list(self.stages), self.operations, self.stage
        terms = sorted(self.terms, key=lambda t: t.factors[0].first)
        name = "*".join(t.name for t in terms)
        if len(terms) == 1 and {a.name for a in stage.axes if a.extent > 1} <= terms[0].axes:
            stages[-1] = replace(stages[-1], tensor=stage.tensor, axes=stage.axes)
            name = name[1:-1]
        else:
            stages.append(Stage(stage.tensor, stage.axes, reduce(lambda a, b: a * b, (t.value for t in terms))))
            count += (len(terms) - 1) * stage.tensor.elements
        taken = set(self.taken)
        return ContractionPath(name, tuple(with_own_axes(s, taken) for s in stages), count)

    def _gone(self, term: _Term, others: Sequence[_Term] | None = None) -> set[str]:
        """Return the axes that ``term`` can be summed over, as the ``others`` have none of them."""
        others = [t for t in self.terms if t is not term] if others is None else others
        elsewhere: set[str] = set().union(*(t.axes for t in others))
        return {a.name for a in self.stage.reduce_axes if a.name in term.axes} - elsewhere

    def _stored(self, term: _Term, others: Sequence[_Term]) -> "_Partial":
        """With ``term`` as a tensor of its own."""
        gone = self._gone(term, others)
        over = tuple(a for a in self.stage.reduce_axes if a.name in gone)
        kept = tuple(a for a in (*self.stage.axes, *self.stage.reduce_axes) if a.name in term.axes - gone)
        tensor = Buffer(fresh_name(INTERMEDIATE, self.taken), tuple(a.extent for a in kept), self.stage.tensor.dtype)
        stage = Stage(tensor, kept, term.value, over, Reducer.SUM if over else None)
        points = prod(a.extent for a in (*kept, *over))
        value = Load(tensor, tuple(Var(a.name) for a in kept))
        axes = frozenset(a.name for a in kept)
        factor = _ProductFactor(f"({term.name})", term.factors[0].first, value, axes)
        return replace(
            self,
            terms=(*others, _Term((factor,), axes)),
            stages=(*self.stages, stage),
            operations=self.operations + points * (len(term.factors) - (not over)),
            taken=self.taken | {tensor.name},
        )


def with_own_axes(stage: Stage, taken: set[str]) -> Stage:
    """Return the stage with axes whose names are not ``taken``. They are afterwards."""
    new: dict[str, str] = {}
    for axis in (*stage.axes, *stage.reduce_axes):
        new[axis.name] = fresh_name(axis.name, taken)
        taken.add(new[axis.name])
    axes, over = (tuple(replace(a, name=new[a.name]) for a in group) for group in (stage.axes, stage.reduce_axes))
    body = substitute(stage.body, {old: Var(name) for old, name in new.items()})
    return replace(stage, axes=axes, reduce_axes=over, body=body)
