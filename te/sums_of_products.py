"""Sums of several products, such as those of complex numbers, as sums of one product each.

Where the products have the elements of one dimension of a tensor, the sum runs over that dimension, too:

    Y[i, j] = sum over k of A[i, k, 0] * B[k, j] - A[i, k, 1] * C[k, j]

    ->  Y[i, j] = sum over k, t < 2 of A[i, k, t] * select(t == 0, B[k, j], -C[k, j])

Others are added up apart:

    Y[i, j] = sum over k of A[i, k] * B[k, j] - C[i, k] * D[k, j]

    ->  part_0[i, j] = sum over k of A[i, k] * B[k, j]
        part_1[i, j] = sum over k of C[i, k] * D[k, j]
        Y[i, j] = part_0[i, j] - part_1[i, j]
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import reduce
from operator import add

from ..ir.expr import Binary, BinaryOp, Cast, Const, Expr, Load, Select, Unary, UnaryOp, Var, const, index
from ..ir.rewrite import fresh_name, loads_of
from .contraction import contraction_of
from .contraction_path import with_own_axes
from .functions import equal, summands_of
from .workload import Axis, Reducer, Stage, Workload

MOST_PRODUCTS = 4
"""Products of a sum, and elements of a dimension that they have, at most: those of quaternions."""


def with_single_products(workload: Workload) -> Workload | None:
    """Return the workload with its sums of several products written so; None where it has none."""
    taken = {b.name for b in workload.inputs} | {s.name for s in workload.stages}
    taken |= {a.name for s in workload.stages for a in (*s.axes, *s.reduce_axes)}
    stages = tuple(part for s in workload.stages for part in single_products(s, taken))
    return None if stages == workload.stages else replace(workload, stages=stages)


def single_products(stage: Stage, taken: set[str]) -> Sequence[Stage]:
    """Return the stages that compute ``stage``, the last of which has its tensor: itself, where it is no sum of several
    products. Names of further tensors and axes are none of ``taken``, and are afterwards."""
    if stage.reducer is not Reducer.SUM or not stage.tensor.dtype.is_float or contraction_of(stage) is not None:
        return [stage]
    joined = next(_over_a_dimension(stage, taken), None)
    if joined is not None:
        return [joined]
    terms = list(summands_of(stage.body))
    if not 1 < len(terms) <= MOST_PRODUCTS or not all(_is_matrix_product(replace(stage, body=e)) for e, _ in terms):
        return [stage]
    parts, added = list[Stage](), list[Expr]()
    for e, sign in terms:
        taken.add(name := fresh_name("part", taken))
        parts.append(with_own_axes(replace(stage, tensor=replace(stage.tensor, name=name), body=e), taken))
        own = Load(parts[-1].tensor, tuple(Var(a.name) for a in stage.axes))
        added.append(own if sign > 0 else -own)
    return [*parts, Stage(stage.tensor, stage.axes, reduce(add, added))]


def _is_matrix_product(stage: Stage) -> bool:
    found = contraction_of(stage)
    return found is not None and bool(found.rows and found.columns)


def _over_a_dimension(stage: Stage, taken: set[str]) -> Iterator[Stage]:
    """Yield the stage as a sum of one product that also runs over a dimension of a tensor, of which its products have
    the elements; those with the largest tensors first."""
    loads = sorted(dict.fromkeys(loads_of(stage.body)), key=lambda load: -load.buffer.elements)
    for first in loads:
        for d, extent in enumerate(first.buffer.shape):
            places = {load: i.value for load in loads if isinstance(i := _other_index(first, load, d), Const)}
            if not 1 < len(places) <= extent <= MOST_PRODUCTS:
                continue
            found = _coefficients(stage.body, {load: int(i) for load, i in places.items()})
            if not found:
                continue
            axis = Axis(fresh_name("t", taken), extent)
            read = replace(first, indices=(*first.indices[:d], Var(axis.name), *first.indices[d + 1 :]))
            factor: Expr = found.get(extent - 1, const(0, stage.body.dtype))
            for n in reversed(range(extent - 1)):
                other = found.get(n, const(0, stage.body.dtype))
                factor = Select(equal(Var(axis.name), index(n)), other, factor)
            value = read if read.dtype == stage.body.dtype else Cast(read, stage.body.dtype)
            made = replace(stage, body=value * factor, reduce_axes=(*stage.reduce_axes, axis))
            if _is_matrix_product(made):
                taken.add(axis.name)
                yield made


def _other_index(first: Load, load: Load, d: int) -> Expr | None:
    """Return index ``d`` of a load of the same tensor as ``first`` at the same other indices; None for another load."""
    same = load.buffer == first.buffer
    same &= all(i == j for n, (i, j) in enumerate(zip(first.indices, load.indices, strict=False)) if n != d)
    return load.indices[d] if same else None


def _coefficients(e: Expr, places: dict[Load, int]) -> dict[int, Expr] | None:
    """Return what the elements ``places`` are multiplied with in ``e``, by their numbers; None where ``e`` is not a sum
    of them with such factors."""
    match e:
        case Load() | Cast(value=Load()) if (e if isinstance(e, Load) else e.value) in places:
            load = e if isinstance(e, Load) else e.value
            assert isinstance(load, Load)
            return {places[load]: const(1, e.dtype)}
        case Const(value=0):
            return {}
        case Unary(op=UnaryOp.NEG, value=value):
            found = _coefficients(value, places)
            return None if found is None else {n: -c for n, c in found.items()}
        case Binary(op=BinaryOp.ADD | BinaryOp.SUB as op, a=left, b=right):
            a, b = _coefficients(left, places), _coefficients(right, places)
            if a is None or b is None:
                return None
            b = {n: -c for n, c in b.items()} if op is BinaryOp.SUB else b
            return {**a, **b, **{n: a[n] + b[n] for n in a.keys() & b.keys()}}
        case Binary(op=BinaryOp.MUL, a=left, b=right):
            for value, factor in ((left, right), (right, left)):
                if not places.keys() & set(loads_of(factor)):
                    found = _coefficients(value, places)
                    return None if found is None else {n: _product(c, factor) for n, c in found.items()}
        case Select(condition=condition, then=then, otherwise=otherwise) if not loads_of(condition):
            a, b = _coefficients(then, places), _coefficients(otherwise, places)
            if a is None or b is None:
                return None
            zero = const(0, e.dtype)
            return {n: Select(condition, a.get(n, zero), b.get(n, zero)) for n in {**a, **b}}
    return None


def _product(a: Expr, b: Expr) -> Expr:
    return b if isinstance(a, Const) and a.value == 1 else a * b
