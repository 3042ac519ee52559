"""Matrix products: what the sketches for them match on.

``C[m, n] = epilogue(sum over k of tokens[m, k] * weights[n, k])``. Where there are few ``m``, the weights are read once
and make up the time; where there are many of both, arithmetic does.
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
    """A workload as such a product. Every expression is on the variables ``m``, ``n`` and ``k``, and those of ``batch``
    alone."""

    inputs: tuple[Buffer, ...]
    total: Buffer
    tokens: Operand
    weights: Operand
    m: Axis
    n: Axis
    k: Axis
    results: tuple[Result, ...]
    batch: tuple[Axis, ...] = ()

    @property
    def names(self) -> set[str]:
        """The names that are taken."""
        axes = {a.name for a in (self.m, self.n, self.k, *self.batch)}
        return {b.name for b in self.inputs} | {r.tensor.name for r in self.results} | {self.total.name} | axes


def product_of(workload: Workload) -> Product | None:
    """``workload`` as a product of at most ``LONGEST_TOKENS`` rows, batches of one included; None where it is none.

    Takes one sum of products, and outputs that are pointwise functions of it (each may read other tensors too).
    """
    found = _sides_of(workload)
    if found is None or found.batch:
        return None
    short, tall = sorted((found.rows, found.columns), key=lambda side: side.extent)
    return found.product(short, tall) if short.extent <= LONGEST_TOKENS else None


def matrix_product_of(workload: Workload) -> Product | None:
    """``workload`` as a product of any size, or a batch of them; None where it is none, as ``product_of``. The elements
    of the first output lie along ``n``, if along one of the two."""
    found = _sides_of(workload)
    if found is None:
        return None
    product = found.product(found.rows, found.columns)
    if product is None or not product.results[0].indices or product.results[0].indices[-1] != Var("m"):
        return product
    return found.product(found.columns, found.rows)


@dataclass(frozen=True, slots=True)
class _Side:
    """One factor with its own axis ("" where it has one place there)."""

    body: Expr
    axis: str
    extent: int


@dataclass(frozen=True, slots=True)
class _Sides:
    """A workload, inlined, with its one contraction taken apart."""

    inlined: Workload
    stage: Stage
    rows: _Side
    columns: _Side
    k: str
    batch: tuple[str, ...]

    def product(self, short: _Side, tall: _Side) -> Product | None:
        """The product with the axis of ``short`` as ``m`` and that of ``tall`` as ``n``; None where an output is no
        pointwise function of it."""
        stage = self.stage
        extents = {a.name: a.extent for a in (*stage.axes, *stage.reduce_axes)}
        batch = {name: f"batch_{n}" for n, name in enumerate(self.batch)}
        names = {short.axis: "m", tall.axis: "n", self.k: "k", **batch}
        places: dict[str, Expr] = {a: Var(names[a]) if a in names else index(0) for a in extents}
        stages = self.inlined.stages
        results = [_result(s, stage, places) for s in stages if s.name in self.inlined.outputs]
        inner = stage.name not in self.inlined.outputs
        if any(r is None for r in results) or len(stages) > len(results) + inner:
            return None
        return Product(
            self.inlined.inputs,
            stage.tensor,
            _operand(substitute(short.body, places), "m"),
            _operand(substitute(tall.body, places), "n"),
            Axis("m", short.extent),
            Axis("n", tall.extent),
            Axis("k", extents.get(self.k, 1)),
            tuple(r for r in results if r is not None),
            tuple(Axis(new, extents[old]) for old, new in batch.items()),
        )


def _sides_of(workload: Workload) -> _Sides | None:
    inlined = inline_stages(workload)
    sums = [s for s in inlined.stages if s.reducer is not None]
    found = contraction_of(sums[0]) if len(sums) == 1 else None
    if found is None:
        return None
    stage = found.stage
    extents = {a.name: a.extent for a in (*stage.axes, *stage.reduce_axes)}
    single = {name for name, extent in extents.items() if extent == 1}
    rows, columns, shared = (_only(group, single) for group in (found.rows, found.columns, found.shared))
    lonely = {a.name for a in stage.reduce_axes} - set(found.shared) - single
    if rows is None or columns is None or shared is None or lonely:
        return None
    return _Sides(
        inlined,
        stage,
        _Side(found.left, rows, extents.get(rows, 1)),
        _Side(found.right, columns, extents.get(columns, 1)),
        shared,
        tuple(name for name in found.batch if name not in single),
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
