"""Products of a short and a tall matrix: what the sketches for them match on.

``C[m, n] = epilogue(sum over k of tokens[m, k] * weights[n, k])`` where there are few ``m``: the weights are read once
and make up the time.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from ...ir.buffer import Buffer
from ...ir.expr import Cast, Expr, Load, Var, index, rebuild
from ...ir.rewrite import map_loads, substitute
from ...te.contraction import contraction_of
from ...te.inline import inline_stages
from ...te.workload import Axis, Stage, Workload
from .registers import flat_offset

LONGEST_TOKENS = 64
"""Rows of the short matrix up to which a product counts as skinny."""


@dataclass(frozen=True, slots=True)
class Operand:
    """One factor of the product. ``body``: its value on the axes of the sum. ``load``: the load that it is, but for
    casts; None where it is more. ``row``, ``k``: elements between neighbours along its own axis (0: it has one place
    there) and along ``k`` in the tensor that ``load`` reads; 0 without one."""

    body: Expr
    load: Load | None
    row: int
    k: int


@dataclass(frozen=True, slots=True)
class Result:
    """One output: ``tensor[indices] = value``, on the product's axes. ``value`` reads the sum by loads of the tensor
    ``Product.total``, whatever their indices."""

    tensor: Buffer
    indices: tuple[Expr, ...]
    value: Expr


@dataclass(frozen=True, slots=True)
class Product:
    """A workload as such a product. Every expression is on the variables ``m``, ``n`` and ``k`` alone."""

    inputs: tuple[Buffer, ...]
    total: Buffer
    tokens: Operand
    weights: Operand
    m: Axis
    n: Axis
    k: Axis
    results: tuple[Result, ...]

    @property
    def names(self) -> set[str]:
        """The names that are taken."""
        return {b.name for b in self.inputs} | {r.tensor.name for r in self.results} | {self.total.name, "m", "n", "k"}


def product_of(workload: Workload) -> Product | None:
    """``workload`` as a product of at most ``LONGEST_TOKENS`` rows, batches of one included; None where it is none.

    Takes one sum of products, and outputs that are pointwise functions of it (each may read other tensors too).
    """
    inlined = inline_stages(workload)
    sums = [s for s in inlined.stages if s.reducer is not None]
    found = contraction_of(sums[0]) if len(sums) == 1 else None
    if found is None:
        return None
    stage = found.stage
    single = {a.name for a in (*stage.axes, *stage.reduce_axes) if a.extent == 1}
    sides = [_only(found.rows, single), _only(found.columns, single), _only(found.shared, single)]
    lonely = {a.name for a in stage.reduce_axes} - set(found.shared) - single
    if any(side is None for side in sides) or not single.issuperset(found.batch) or lonely:
        return None
    extents = {a.name: a.extent for a in (*stage.axes, *stage.reduce_axes)}
    rows, columns, shared = (side or "" for side in sides)
    tokens, weights, m, n = found.left, found.right, rows, columns
    if extents.get(m, 1) > extents.get(n, 1):
        tokens, weights, m, n = weights, tokens, n, m
    if extents.get(m, 1) > LONGEST_TOKENS:
        return None
    names = {m: Var("m"), n: Var("n"), shared: Var("k")}
    places: dict[str, Expr] = {name: names.get(name, index(0)) for name in extents}
    results = [_result(s, stage, places) for s in inlined.stages if s.name in inlined.outputs]
    if any(r is None for r in results) or len(inlined.stages) > len(results) + (stage.name not in inlined.outputs):
        return None
    return Product(
        inlined.inputs,
        stage.tensor,
        _operand(substitute(tokens, places), "m"),
        _operand(substitute(weights, places), "n"),
        Axis("m", extents.get(m, 1)),
        Axis("n", extents.get(n, 1)),
        Axis("k", extents.get(shared, 1)),
        tuple(r for r in results if r is not None),
    )


def _only(names: tuple[str, ...], single: set[str]) -> str | None:
    """The one axis of ``names`` with more than one place, "" where there is none; None where there are several."""
    long = [n for n in names if n not in single]
    return None if len(long) > 1 else (long[0] if long else "")


def _operand(body: Expr, own: str) -> Operand:
    inner = body.value if isinstance(body, Cast) else body
    if not isinstance(inner, Load):
        return Operand(body, None, 0, 0)
    place = flat_offset(inner)
    if place is None:
        return Operand(body, None, 0, 0)
    return Operand(body, inner, place.coefficient(own), place.coefficient("k"))


def _result(stage: Stage, total: Stage, places: Mapping[str, Expr]) -> Result | None:
    """An output stage on ``m`` and ``n``; None where it is no pointwise function of the sum."""
    if stage is total:
        indices = tuple(places[a.name] for a in stage.axes)
        return Result(stage.tensor, indices, Load(total.tensor, indices))
    if stage.reducer is not None:
        return None
    own = _axes_in(stage, total, places)
    if own is None:
        return None
    wanted = tuple(places[a.name] for a in total.axes)
    value = substitute(stage.body, own)
    reads: list[tuple[Expr, ...]] = []

    def spelled(load: Load) -> Load:
        if load.buffer.name == total.name:
            indices = tuple(
                index(0) if extent == 1 else i for i, extent in zip(load.indices, load.buffer.shape, strict=True)
            )
            reads.append(indices)
            return rebuild(load, indices)  # type: ignore[return-value]
        return load

    value = map_loads(value, spelled)
    if not reads or any(r != wanted for r in reads):
        return None
    return Result(stage.tensor, tuple(own[a.name] for a in stage.axes), value)


def _axes_in(stage: Stage, total: Stage, places: Mapping[str, Expr]) -> dict[str, Expr] | None:
    """The axes of an output stage as expressions on ``m`` and ``n``, by where it reads the sum."""
    own: dict[str, Expr] = {a.name: index(0) for a in stage.axes if a.extent == 1}
    load = next((e for e in _loads(stage.body) if e.buffer.name == total.name), None)
    if load is None:
        return None
    for i, axis in zip(load.indices, total.axes, strict=True):
        if axis.extent > 1:
            if not isinstance(i, Var) or i.name in own:
                return None
            own[i.name] = places[axis.name]
    return own if {a.name for a in stage.axes} == set(own) else None


def _loads(body: Expr) -> list[Load]:
    found: list[Load] = []
    map_loads(body, lambda e: found.append(e) or e)  # type: ignore[func-returns-value]
    return found
