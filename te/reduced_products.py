"""A product for each direction in which it is reduced, so that none of them has to be stored.

    L[i, j] = sum over k of A[i, k] * B[j, k]            L[i, j] = sum over k of A[i, k] * B[j, k]
    M[i] = max over j of L[i, j]                    ->   M[i] = max over j of L[i, j]
    C[j] = max over i of L[i, j]                         L_1[i, j] = sum over k of A[i, k] * B[j, k]
                                                         C[j] = max over i of L_1[i, j]

A reduction over both sides of a product is one over its columns, and one of what that gives:

    S[] = sum over i, j of f(L[i, j])               ->   S_rows[i] = sum over j of f(L[i, j])
                                                         S[] = sum over i of S_rows[i]

Each product stands just before the first reduction that reads it, and stages that are computed from what is reduced
stand behind that.
"""

from collections.abc import Iterator
from dataclasses import replace

from ..ir.buffer import Buffer
from ..ir.expr import Load, Var
from ..ir.rewrite import fresh_name, loads_of, map_loads
from .contraction import contraction_of
from .contraction_path import with_own_axes
from .workload import Reducer, Stage, Workload

_Direction = tuple[str, frozenset[int]]
"""The name of a product, and the dimensions of it that are reduced."""


def with_reduced_products(whole: Workload) -> Workload | None:
    """Return ``whole``, whose stages are inlined, with its products so; None where none of them is reduced, or one of
    them is an output."""
    products = {s.name: s for s in whole.stages if contraction_of(s) is not None and s.name not in whole.outputs}
    taken = {b.name for b in whole.inputs} | {s.name for s in whole.stages}
    taken |= {a.name for s in whole.stages for a in (*s.axes, *s.reduce_axes)}
    parts = [part for s in whole.stages for part in _over_one_side(s, products, taken)]
    products = {name: p for name, p in products.items() if any(_direction(s, {name: p}) for s in parts)}
    if not products:
        return None
    left = [s for s in parts if s.name not in products]
    stages, known, under_way = list[Stage](), {b.name for b in whole.inputs} | set(products), list[_Direction]()
    copies = dict[str, Buffer]()
    while left:
        ready = [s for s in left if {load.buffer.name for load in loads_of(s.body)} <= known]
        stage = min(ready, key=lambda s: _turn(s, products, under_way))
        left.remove(stage)
        for name in dict.fromkeys(load.buffer.name for load in loads_of(stage.body) if load.buffer.name in products):
            direction = _direction(stage, {name: products[name]})
            if name not in copies or (direction is not None and direction not in under_way):
                made = products[name]
                if name in copies:
                    made = with_own_axes(
                        replace(made, tensor=replace(made.tensor, name=fresh_name(name, taken))), taken
                    )
                    taken.add(made.name)
                copies[name] = made.tensor
                stages.append(made)
            if direction is not None:
                under_way = [d for d in under_way if d[0] != name] + [direction]
        stages.append(replace(stage, body=map_loads(stage.body, lambda e: _of_copy(e, copies))))
        known.add(stage.name)
    return replace(whole, stages=tuple(stages))


def _of_copy(load: Load, copies: dict[str, Buffer]) -> Load:
    return replace(load, buffer=copies[load.buffer.name]) if load.buffer.name in copies else load


def _turn(stage: Stage, products: dict[str, Stage], under_way: list[_Direction]) -> int:
    """Return when a stage has its turn: what reads no product as soon as it can, then what reads one in the direction
    that is under way, then what reads elements of it, then other directions."""
    if not any(load.buffer.name in products for load in loads_of(stage.body)):
        return 0
    direction = _direction(stage, products)
    if direction is None:
        return 2 if under_way else 4
    return 1 if direction in under_way else 3


def _direction(stage: Stage, products: dict[str, Stage]) -> _Direction | None:
    """Return in which direction a stage reduces one of ``products``; None where it reduces none."""
    if stage.reducer is None or contraction_of(stage) is not None:
        return None
    reduced = [Var(a.name) for a in stage.reduce_axes]
    for load in loads_of(stage.body):
        if load.buffer.name in products and all(isinstance(i, Var) for i in load.indices):
            return load.buffer.name, frozenset(d for d, i in enumerate(load.indices) if i in reduced)
    return None


def _over_one_side(stage: Stage, products: dict[str, Stage], taken: set[str]) -> Iterator[Stage]:
    """Yield a stage; where it reduces both sides of a product, as a reduction over its columns, and another one. Sums
    that are kept in 16 bits would be rounded."""
    direction = _direction(stage, products)
    rounds = stage.tensor.dtype.is_float and stage.tensor.dtype.bits < 32
    if direction is None or stage.reducer is None or stage.reducer.is_position or (rounds and stage.reducer in _SUMS):
        yield stage
        return
    product = products[direction[0]]
    found = contraction_of(product)
    load = next(e for e in loads_of(stage.body) if e.buffer.name == product.name)
    assert found is not None
    places = {i: a.name for i, a in zip(load.indices, product.axes, strict=True)}
    columns = tuple(a for a in stage.reduce_axes if places.get(Var(a.name)) in found.columns)
    others = tuple(a for a in stage.reduce_axes if a not in columns)
    if not columns or not others:
        yield stage
        return
    kept = (*stage.axes, *others)
    tensor = Buffer(fresh_name(f"{stage.name}_rows", taken), tuple(a.extent for a in kept), stage.tensor.dtype)
    taken.add(tensor.name)
    yield with_own_axes(Stage(tensor, kept, stage.body, columns, stage.reducer), taken)
    yield replace(stage, body=Load(tensor, tuple(Var(a.name) for a in kept)), reduce_axes=others)


_SUMS = (Reducer.SUM, Reducer.PROD)
