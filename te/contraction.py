"""Contractions: sums of products that run as matrix products, so that the reference of a matmul or a convolution is
quick. Pairwise reductions are what kernels of such products take, too: distances, for example."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np

from ..ir.expr import Expr, Load, Var, const, index, walk
from ..ir.rewrite import free_variables, loads_of, map_expr, map_loads, substitute
from .evaluate import Array, Evaluator
from .functions import factors_of, uncast
from .index import loaded_index
from .threads import thread_count
from .workload import Reducer, Stage

_LIMIT = 1 << 22
"""How many points of the larger operand a thread holds at once: 32 MiB of float64."""

_EXACT = float(1 << 53)

_Factor = tuple[Expr, set[str]]
"""A factor, and the axes that it depends on."""


@dataclass(frozen=True, slots=True)
class Contraction:
    """A stage as the sum of ``left * right``, where neither factor depends on all axes, or as another reduction of a
    function of these two (``pairwise_reduction_of``). The other fields are names of axes. Those of the sum come in the
    order in which both factors have them in memory, if there is one, in the stage, too."""

    stage: Stage
    left: Expr
    right: Expr
    batch: tuple[str, ...]
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    shared: tuple[str, ...]


def contraction_of(stage: Stage, free: str = "") -> Contraction | None:
    """Return the stage as a contraction. It is None when the stage is no contraction, or gains nothing from being one.
    ``free``: the name of a variable that is no axis."""
    if stage.reducer is not Reducer.SUM:
        return None
    groups = _groups(stage.body, _axes_of_one(stage), free)
    return None if len(groups) != 2 else _contraction(stage, *groups)


def pairwise_reduction_of(stage: Stage) -> Contraction | None:
    """Return the stage as a reduction of some function of two loads, ``left`` and ``right``: the sum of
    ``abs(left - right)``, for example, or the least ``left + right``. It may read further tensors at axes that both of
    them have, such as weights: ``W[k] * tanh(left + right)``. It is None when the stage is no such reduction, or when
    one of the loads depends on all axes."""
    loads = {load: free_variables(load) for load in loads_of(stage.body)}
    sides = [load for load, axes in loads.items() if not all(axes <= others for others in loads.values())]
    if stage.reducer is None or stage.reducer.is_position or len(sides) != 2:
        return None
    if free_variables(map_loads(stage.body, lambda e: const(0, e.dtype))):
        return None
    return _contraction(stage, *_with_axes(sides, _axes_of_one(stage), ""))


def _contraction(stage: Stage, left: _Factor, right: _Factor) -> Contraction | None:
    """Return the contraction of two factors; None where it gains nothing from being one."""
    (a, in_left), (b, in_right) = left, right
    reduced = {a.name for a in stage.reduce_axes}
    everything = reduced | {a.name for a in stage.axes}
    shared = in_left & in_right & reduced
    if in_left == everything or in_right == everything or in_left | in_right != everything or not shared:
        return None
    in_memory = _axes_in_memory(a, shared)
    if set(in_memory) == reduced and in_memory == _axes_in_memory(b, shared):
        stage = replace(
            stage, reduce_axes=tuple(sorted(stage.reduce_axes, key=lambda axis: in_memory.index(axis.name)))
        )

    def ordered(names: set[str]) -> tuple[str, ...]:
        return tuple(a.name for a in (*stage.axes, *stage.reduce_axes) if a.name in names)

    return Contraction(
        stage,
        a,
        b,
        batch=ordered((in_left & in_right) - reduced),
        rows=ordered(in_left - in_right - reduced),
        columns=ordered(in_right - in_left - reduced),
        shared=ordered(shared),
    )


def _axes_in_memory(factor: Expr, axes: set[str]) -> list[str]:
    """Return those of ``axes`` that an element of a tensor, or a cast of one, has as indices, in their order."""
    element = uncast(factor)
    indices = element.indices if isinstance(element, Load) else ()
    return [i.name for i in indices if isinstance(i, Var) and i.name in axes]


@dataclass(frozen=True, slots=True)
class GroupedContraction:
    """A stage that is a contraction for all rows of which ``group``, an index on the axis ``row`` alone, has the same
    value (a grouped product). ``contraction`` has the variable ``GROUP`` in its place."""

    contraction: Contraction
    group: Expr
    row: str


GROUP = "row group"
"""No axis has this name."""


def grouped_contraction_of(stage: Stage) -> GroupedContraction | None:
    """Return the stage as a contraction of rows in groups, where one of its factors is read at an index that is loaded
    for each row; None where it is anything else."""
    if stage.reducer is not Reducer.SUM:
        return None
    places = [(i, n) for e in loads_of(stage.body) for i, n in zip(e.indices, e.buffer.shape, strict=True)]
    loaded = {i: inner for i, n in places if (inner := loaded_index(i, n)) is not None}
    if len(loaded) != 1:
        return None
    ((group, inner),) = loaded.items()
    rows = free_variables(inner)
    if len(rows) != 1:
        return None
    body = map_expr(stage.body, lambda e: Var(GROUP) if e == group else e)
    found = contraction_of(replace(stage, body=body), GROUP)
    (row,) = rows
    if found is None or row not in (*found.rows, *found.columns):
        return None
    return GroupedContraction(found, group, row)


def product_of(stage: Stage) -> Contraction | None:
    """Return the stage as a contraction, or as one of rows in groups; None where it is neither."""
    found = contraction_of(stage)
    if found is not None:
        return found
    grouped = grouped_contraction_of(stage)
    return None if grouped is None else grouped.contraction


def _axes_of_one(stage: Stage) -> set[str]:
    """Return the axes of the output that have one element."""
    return {a.name for a in stage.axes if a.extent == 1}


def _with_axes(factors: Iterable[Expr], single: set[str], free: str) -> list[_Factor]:
    """Return factors with their axes. Those of one element (``single``) that no factor names belong to the one with the
    fewest axes. ``free``: the name of a variable that is no axis."""
    found = [(f, {v.name for v in walk(f) if isinstance(v, Var)} - {free}) for f in factors]
    fewest = min(found, key=lambda f: len(f[1]))[1]
    fewest |= single.difference(*(axes for _, axes in found))
    return found


def _groups(body: Expr, single: set[str], free: str) -> list[_Factor]:
    """Return the factors of a product, each with the axes that it depends on. A factor whose axes another has too is
    joined to it: of A[i, k] * S[i, k] * B[j, k] the second one to the first. The others are as in ``_with_axes``."""
    factors = _with_axes(factors_of(body), single, free)
    first = [n for n, (_, axes) in enumerate(factors) if all(axes != other for _, other in factors[:n])]
    order = sorted(range(len(factors)), key=lambda n: (-len(factors[n][1]), n not in first))
    factors = [factors[n] for n in order]
    groups: list[_Factor] = []
    for factor, axes in factors:
        for n, (other, other_axes) in enumerate(groups):
            if axes <= other_axes and (len(axes) < len(other_axes) or len(groups) == 2):
                groups[n] = (other * factor, other_axes)
                break
        else:
            groups.append((factor, axes))
    return groups


def contract(
    c: Contraction,
    tensors: Mapping[str, Array],
    threads: int | None = 1,
    box: Mapping[str, tuple[int, int]] = MappingProxyType({}),
    origins: Mapping[str, tuple[int, ...]] = MappingProxyType({}),
) -> Array:
    """Return the stage's tensor: float64 for floats, exact for integers (modulo the dtype).

    Its parts do not depend on the number of ``threads``, which compute that many parts at once; None: as in
    ``reference``. Where ``box`` has a range (start, stop) for an axis, only that part is computed. ``origins``: see
    ``Evaluator``.
    """
    ranges = {a.name: box.get(a.name, (0, a.extent)) for a in c.stage.axes}
    result = _empty(c.stage, [stop - start for start, stop in ranges.values()])
    _contract(c, tensors, threads, result, ranges, origins, {name: start for name, (start, _) in ranges.items()})
    return result


def contract_groups(g: GroupedContraction, tensors: Mapping[str, Array], threads: int | None = 1) -> Array:
    """Return what ``contract`` gives, of rows in groups: neighbours of one group are multiplied together."""
    c = g.contraction
    extent = next(a.extent for a in c.stage.axes if a.name == g.row)
    with np.errstate(all="ignore"):
        groups = np.broadcast_to(Evaluator(tensors, {g.row: (0, extent)})(g.group), (extent,))
    ends = [*(np.flatnonzero(np.diff(groups)) + 1).tolist(), extent]
    result = _empty(c.stage, c.stage.tensor.shape)
    for start, stop in zip([0, *ends], ends, strict=False):
        at = {GROUP: index(int(groups[start]))}
        own = replace(c, left=substitute(c.left, at), right=substitute(c.right, at))
        _contract(own, tensors, threads, result, {g.row: (start, stop)}, {}, {})
    return result


def _empty(stage: Stage, shape: Sequence[int]) -> Array:
    dtype = np.dtype(np.float64) if stage.tensor.dtype.is_float else stage.tensor.dtype.numpy
    return np.empty(shape, dtype)


def _contract(
    c: Contraction,
    tensors: Mapping[str, Array],
    threads: int | None,
    result: Array,
    box: Mapping[str, tuple[int, int]],
    origins: Mapping[str, tuple[int, ...]],
    begin: Mapping[str, int],
) -> None:
    """Compute the part ``box`` of ``result``: axes in it go from ``start`` to before ``stop``. ``begin``: where axes of
    ``result`` begin, if not at 0."""
    stage, dtype = c.stage, result.dtype
    ranges = {a.name: (0, a.extent) for a in (*stage.axes, *stage.reduce_axes)} | dict(box)
    order = [n for n in (*c.batch, *c.rows, *c.columns)]
    back = [order.index(a.name) for a in stage.axes]

    def fill(part: Mapping[str, tuple[int, int]]) -> None:
        with np.errstate(all="ignore"):  # here: the setting is a thread's own
            evaluate = Evaluator(tensors, part, origins)
            left = _matrix(evaluate(c.left), part, c.batch, c.rows, c.shared)
            right = _matrix(evaluate(c.right), part, c.batch, c.columns, c.shared)
            product = _product(left, np.swapaxes(right, -1, -2)).astype(dtype, copy=False)
        product = product.reshape([part[n][1] - part[n][0] for n in order]).transpose(back)
        result[tuple(slice(*(end - begin.get(a.name, 0) for end in part[a.name])) for a in stage.axes)] = product

    parts = list(_parts(c, ranges))
    count = thread_count(threads) if len(parts) > 1 else 1
    if count == 1:
        for part in parts:
            fill(part)
        return
    with ThreadPoolExecutor(min(count, len(parts))) as pool:
        for done in [pool.submit(fill, part) for part in parts]:
            done.result()


def _parts(c: Contraction, ranges: Mapping[str, tuple[int, int]]) -> Iterator[dict[str, tuple[int, int]]]:
    """Yield the boxes of ``ranges`` after cutting the axes of the output until no operand has more than ``_LIMIT``
    points."""
    part = dict(ranges)
    length = {n: stop - start for n, (start, stop) in part.items()}
    sides = [(c.rows, math.prod(length[n] for n in (*c.batch, *c.rows, *c.shared)))]
    sides.append((c.columns, math.prod(length[n] for n in (*c.batch, *c.columns, *c.shared))))
    side, points = max(sides, key=lambda s: s[1])
    longest = max((*c.batch, *side), key=lambda n: length[n], default=None)
    if points <= _LIMIT or longest is None or length[longest] == 1:
        yield part
        return
    start, stop = part[longest]
    middle = (start + stop) // 2
    yield from _parts(c, {**part, longest: (start, middle)})
    yield from _parts(c, {**part, longest: (middle, stop)})


def _matrix(
    value: Array, part: Mapping[str, tuple[int, int]], batch: Sequence[str], own: Sequence[str], shared: Sequence[str]
) -> Array:
    """``value`` as an array [batch, own, shared]. Reduction axes that the other operand does not have are summed
    first."""
    names = list(part)
    kept = (*batch, *own, *shared)
    alone = tuple(d for d, n in enumerate(names) if n not in kept)
    if any(value.shape[d] > 1 for d in alone):
        value = np.add.reduce(value, axis=alone, dtype=value.dtype, keepdims=True)
    lengths = [part[n][1] - part[n][0] for n in kept]
    value = value.transpose([*[names.index(n) for n in kept], *alone]).reshape(lengths)
    sizes = [math.prod(part[n][1] - part[n][0] for n in group) for group in (batch, own, shared)]
    return value.reshape(sizes)


def _product(a: Array, b: Array) -> Array:
    """``a @ b``. Integers go through float64 where every sum stays exact there, else through wrapping int64."""
    if a.dtype == np.float64:
        return np.asarray(np.matmul(a, b))
    largest = [float(np.max(np.abs(x.astype(np.float64)), initial=0.0)) for x in (a, b)]
    if largest[0] * largest[1] * a.shape[-1] < _EXACT:
        return np.asarray(np.matmul(a.astype(np.float64), b.astype(np.float64)).astype(np.int64))
    return np.asarray(np.matmul(a.astype(np.int64), b.astype(np.int64)))
