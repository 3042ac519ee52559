"""Write a workload in Python: placeholders, computed tensors, reductions, and the functions to put in them.

    A, B = placeholder((4, 8), name="A"), placeholder((8, 5), name="B")
    k = reduce_axis(8, name="k")
    C = compute((4, 5), lambda i, j: sum(A[i, k] * B[k, j], axis=k), name="C")
    w = workload([C])

While it is being written every tensor and axis is told apart by identity; ``workload`` gives the final names.
"""

import inspect
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from ..core.dtypes import INDEX, DType, int64
from ..core.errors import InvalidKernel, InvalidWorkload
from ..core.precision import IEEE
from ..ir.buffer import Buffer
from ..ir.expr import Expr, Load, Var, const, walk
from ..ir.rewrite import map_expr
from .check import check, check_size
from .functions import (
    absolute,
    all_of,
    any_of,
    bitwise_and,
    bitwise_or,
    bitwise_xor,
    cast,
    ceil,
    constant,
    cos,
    dtype_of,
    equal,
    erf,
    exp,
    exp2,
    floor,
    log,
    maximum,
    minimum,
    negated,
    not_equal,
    power,
    rint,
    rsqrt,
    select,
    shift_left,
    shift_right,
    sigmoid,
    sin,
    sqrt,
    tanh,
    within,
)
from .packed_floats import e2m1, e8m0
from .workload import Axis, DynamicDimension, Reducer, Stage, Workload

__all__ = [
    "Extent",
    "ReduceAxis",
    "Reduction",
    "Tensor",
    "absolute",
    "all_of",
    "any_of",
    "argmax",
    "argmin",
    "bitwise_and",
    "bitwise_or",
    "bitwise_xor",
    "cast",
    "ceil",
    "compute",
    "constant",
    "cos",
    "e2m1",
    "e8m0",
    "equal",
    "erf",
    "exp",
    "exp2",
    "extent",
    "floor",
    "log",
    "max",
    "maximum",
    "min",
    "minimum",
    "negated",
    "not_equal",
    "placeholder",
    "power",
    "prod",
    "reduce_axis",
    "rint",
    "rsqrt",
    "select",
    "shift_left",
    "shift_right",
    "sigmoid",
    "sin",
    "sqrt",
    "sum",
    "tanh",
    "within",
    "workload",
]

_fresh = itertools.count()
"""It numbers the provisional names of axes. ``workload`` renames them all, so that no number is ever seen."""


@dataclass(frozen=True, slots=True, eq=False)
class Tensor(Buffer):
    """A tensor under construction. Indexing it gives the Load of one element. ``stage`` is None for an input."""

    stage: "_DraftStage | None" = None
    named: bool = False
    """It says whether the user chose the name."""

    __eq__ = object.__eq__  # by identity: two tensors of one shape are two tensors
    __hash__ = object.__hash__

    def __getitem__(self, indices: Expr | int | tuple[Expr | int, ...]) -> Load:
        given = indices if isinstance(indices, tuple) else (indices,)
        if len(given) != len(self.shape):
            raise InvalidWorkload(f"{self.name} has {len(self.shape)} dimensions but is read at {len(given)} indices")
        return Load(self, tuple(i if isinstance(i, Expr) else const(i, INDEX) for i in given))

    @property
    def rank(self) -> int:
        return len(self.shape)


@dataclass(frozen=True, slots=True)
class _DraftStage:
    axes: tuple[Axis, ...]
    body: Expr
    reduce_axes: tuple[Axis, ...] = ()
    reducer: Reducer | None = None


@dataclass(frozen=True, slots=True)
class ReduceAxis(Var):
    """A range to reduce over; it can be used as an index."""

    extent: int = field(compare=False)


@dataclass(frozen=True, slots=True)
class Extent(Var):
    """The extent of a dynamic dimension in a call; it can be used in expressions. ``places`` are (input, dimension)."""

    places: tuple[tuple[Tensor, int], ...] = field(compare=False)
    representative: int = field(compare=False)


@dataclass(frozen=True, slots=True)
class Reduction:
    """``reducer`` over ``axes`` of ``body``. It is the whole of what a stage computes, and never part of an
    expression."""

    reducer: Reducer
    body: Expr
    axes: tuple[ReduceAxis, ...]
    dtype: DType
    """It is the dtype of the result."""


_Body: TypeAlias = Callable[..., "Expr | Reduction"]


def placeholder(shape: Sequence[int], dtype: str | DType = "float32", name: str | None = None) -> Tensor:
    """Return an input of the workload. Raises InvalidWorkload for an unknown dtype, and for a shape that is no
    sequence; ``workload`` checks its extents."""
    return Tensor(name or "input", _extents(shape), dtype_of(dtype), named=name is not None)


def compute(shape: Sequence[int], fn: _Body, name: str | None = None, axes: Sequence[str] | None = None) -> Tensor:
    """Return a tensor whose element at indices ``i, j, …`` is ``fn(i, j, …)``.

    ``fn`` returns an expression, or one reduction: ``sum``, ``prod``, ``max``, ``min``, ``argmax`` or ``argmin``. The
    axes have the names in ``axes``, else those of the parameters of ``fn``. Raises InvalidWorkload when ``fn`` returns
    neither, asks in Python whether a condition holds, or uses what is no number of a dtype.
    """
    shape = _extents(shape)
    names = _axis_names(fn, len(shape)) if axes is None else axes
    over = tuple(Axis(f"{n}#{next(_fresh)}", e) for n, e in zip(names, shape, strict=True))
    try:
        value = fn(*[Var(a.name) for a in over])
    except InvalidKernel as error:
        raise InvalidWorkload(error.message, field=error.field) from error
    if isinstance(value, Reduction):
        stage = _DraftStage(over, value.body, tuple(Axis(a.name, a.extent) for a in value.axes), value.reducer)
    elif isinstance(value, Expr):
        stage = _DraftStage(over, value)
    else:
        raise InvalidWorkload(f"compute needs an expression or a reduction, but its function gave {value!r}")
    return Tensor(name or "stage", shape, value.dtype, stage=stage, named=name is not None)


def reduce_axis(extent: int, name: str | None = None) -> ReduceAxis:
    """Return the range ``0 <= k < extent`` to reduce over."""
    return ReduceAxis(f"{name or 'k'}#{next(_fresh)}", extent)


def sum(expr: Expr, axis: ReduceAxis | Sequence[ReduceAxis]) -> Reduction:
    """Return the sum of ``expr`` over one or several reduction axes."""
    return Reduction(Reducer.SUM, expr, _axes(axis), expr.dtype)


def prod(expr: Expr, axis: ReduceAxis | Sequence[ReduceAxis]) -> Reduction:
    """Return the product of ``expr`` over one or several reduction axes."""
    return Reduction(Reducer.PROD, expr, _axes(axis), expr.dtype)


def max(expr: Expr, axis: ReduceAxis | Sequence[ReduceAxis]) -> Reduction:
    """Return the greatest ``expr`` over one or several reduction axes; of two expressions, see ``maximum``."""
    return Reduction(Reducer.MAX, expr, _axes(axis), expr.dtype)


def min(expr: Expr, axis: ReduceAxis | Sequence[ReduceAxis]) -> Reduction:
    """Return the least ``expr`` over one or several reduction axes; of two expressions, see ``minimum``."""
    return Reduction(Reducer.MIN, expr, _axes(axis), expr.dtype)


def argmax(expr: Expr, axis: ReduceAxis, dtype: str | DType = int64) -> Reduction:
    """Return the position along ``axis`` of the greatest ``expr``, the first of equal ones, as int64 or int32. Where
    ``expr`` is NaN somewhere the result is some position."""
    return Reduction(Reducer.ARGMAX, expr, _axes(axis), dtype_of(dtype))


def argmin(expr: Expr, axis: ReduceAxis, dtype: str | DType = int64) -> Reduction:
    """Return the position along ``axis`` of the least ``expr``; otherwise like ``argmax``."""
    return Reduction(Reducer.ARGMIN, expr, _axes(axis), dtype_of(dtype))


def extent(name: str, places: Mapping[Tensor, int], representative: int) -> Extent:
    """Return the extent of a dynamic dimension, which is the dimension ``places[t]`` of each input ``t``, counted from
    0. The shapes have the largest extent, and kernels are measured at ``representative``. ``name`` ends in
    ``_extent``."""
    return Extent(name, tuple(places.items()), representative)


def workload(
    outputs: Tensor | Sequence[Tensor],
    inputs: Sequence[Tensor] | None = None,
    constants: Sequence[Tensor] = (),
    precision: str = IEEE,
    skews: Mapping[Tensor, float] | None = None,
    dynamic: Sequence[Extent] = (),
) -> Workload:
    """Return the checked workload that computes ``outputs``.

    ``inputs`` fixes their order and may hold inputs that are not read; without it they come in the order in which
    they are met. ``constants`` are the inputs that stay the same from call to call. ``precision``: which roundings
    kernels may make in sums of products. ``skews``: how unequal groups of rows are, by the input with their ends.
    ``dynamic``: the extents that every call gives, in their order.
    Tensors without a name get one; axes that share a name are numbered. Raises InvalidWorkload for whatever ``check``
    refuses, for two tensors given one name, for an input that is read but not listed, and for a constant, a skewed or a
    dynamic tensor that is no input.
    """
    results = (outputs,) if isinstance(outputs, Tensor) else tuple(outputs)
    for t in results:
        if not isinstance(t, Tensor):
            raise InvalidWorkload(f"output {t!r} is no tensor", field="/outputs")
    found, stages = _ordered(results)
    if inputs is not None:
        missing = [t.name for t in found if t not in inputs]
        if missing:
            raise InvalidWorkload(f"{', '.join(missing)} is read but not among the inputs", field="/inputs")
        found = list(inputs)
    places = [t for e in dynamic for t, _ in e.places]
    for what, given in (("constant", constants), ("skewed", skews or ()), ("dynamic", places)):
        strange = [t.name for t in given if t not in found]
        if strange:
            raise InvalidWorkload(f"{what} {', '.join(strange)} is no input", field="/inputs")
    for t in results:
        if t.stage is None:
            raise InvalidWorkload(f"output {t.name} is an input: outputs are computed", field="/outputs")
    buffers = _named([*found, *stages])
    extents = {e.name: e.name for e in dynamic}
    axis_names = _axis_renaming([t.stage for t in stages if t.stage], {b.name for b in buffers.values()} | set(extents))
    axis_names = [extents | names for names in axis_names]
    return check(
        Workload(
            inputs=tuple(buffers[t] for t in found),
            stages=tuple(_finished(buffers[t], t.stage, buffers, axis_names) for t in stages if t.stage),
            outputs=tuple(buffers[t].name for t in results),
            constants=frozenset(buffers[t].name for t in constants),
            precision=precision,
            skews=frozenset((buffers[t].name, float(skew)) for t, skew in (skews or {}).items()),
            dynamic=tuple(
                DynamicDimension(frozenset((buffers[t].name, d) for t, d in e.places), e.representative, e.name)
                for e in dynamic
            ),
        )
    )


def _extents(shape: Sequence[int]) -> tuple[int, ...]:
    try:
        return tuple(shape)
    except TypeError:
        raise InvalidWorkload(f"shape is {shape!r}; allowed: a sequence of extents, like (8,)", field="shape") from None


def _axis_names(fn: _Body, rank: int) -> list[str]:
    parameters = list(inspect.signature(fn).parameters.values())
    named = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return named[:rank] + [f"i{n}" for n in range(len(named), rank)]
    if len(named) != rank:
        raise InvalidWorkload(f"the function of a tensor of {rank} dimensions takes {len(named)} indices")
    return named


def _axes(axis: ReduceAxis | Sequence[ReduceAxis]) -> tuple[ReduceAxis, ...]:
    return (axis,) if isinstance(axis, ReduceAxis) else tuple(axis)


def _ordered(outputs: Iterable[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """Inputs in the order met, and stages each after what it reads. Iterative: chains of stages may be long."""
    inputs: dict[Tensor, None] = {}
    done: dict[Tensor, None] = {}
    for output in outputs:
        todo = [output]
        while todo:
            tensor = todo[-1]
            if tensor in done or tensor in inputs:
                todo.pop()
            elif tensor.stage is None:
                inputs[tensor] = None
            else:
                before = [t for t in reads(tensor) if t not in done and t not in inputs]
                if before:
                    todo.extend(reversed(before))
                else:
                    done[tensor] = None
    return list(inputs), list(done)


def reads(tensor: Tensor) -> list[Tensor]:
    """Return the tensors that ``tensor`` is computed from directly, in the order met; none for an input."""
    if tensor.stage is None:
        return []
    body = tensor.stage.body
    check_size(body)  # first: shared subexpressions can make a small program a huge tree
    found: dict[Tensor, None] = {}
    for e in walk(body):
        if isinstance(e, Load) and isinstance(e.buffer, Tensor):
            found[e.buffer] = None
    return list(found)


def _named(tensors: Sequence[Tensor]) -> dict[Tensor, Buffer]:
    taken = [t.name for t in tensors if t.named]
    twice = {n for n in taken if taken.count(n) > 1}
    if twice:
        raise InvalidWorkload(f"two tensors are called {', '.join(sorted(twice))}")
    names = _Names(taken)
    return {t: Buffer(t.name if t.named else names.numbered(t.name), t.shape, t.dtype) for t in dict.fromkeys(tensors)}


def _axis_renaming(stages: Sequence[_DraftStage], taken: Iterable[str]) -> list[dict[str, str]]:
    """For each stage, provisional axis name -> final name."""
    names = _Names(taken)
    return [{a.name: names.unlike(a.name.split("#")[0]) for a in (*s.axes, *s.reduce_axes)} for s in stages]


class _Names:
    """Hands out each name once."""

    def __init__(self, taken: Iterable[str]) -> None:
        self._taken = set(taken)

    def numbered(self, stem: str) -> str:
        return self._first(f"{stem}{n}" for n in itertools.count())

    def unlike(self, name: str) -> str:
        return self._first(itertools.chain([name], (f"{name}_{n}" for n in itertools.count(1))))

    def _first(self, candidates: Iterable[str]) -> str:
        name = next(n for n in candidates if n not in self._taken)
        self._taken.add(name)
        return name


def _finished(
    buffer: Buffer, stage: _DraftStage, buffers: Mapping[Tensor, Buffer], axes: list[dict[str, str]]
) -> Stage:
    names = axes.pop(0)

    def final(e: Expr) -> Expr:
        if isinstance(e, Var):
            if e.name not in names:
                name = e.name.split("#")[0]
                raise InvalidWorkload(f"{buffer.name} uses the axis {name}, which is not one of its own")
            return Var(names[e.name])
        if isinstance(e, Load) and isinstance(e.buffer, Tensor):
            return Load(buffers[e.buffer], e.indices)
        return e

    return Stage(
        tensor=buffer,
        axes=tuple(Axis(names[a.name], a.extent) for a in stage.axes),
        body=map_expr(stage.body, final),
        reduce_axes=tuple(Axis(names[a.name], a.extent) for a in stage.reduce_axes),
        reducer=stage.reducer,
    )
