"""Matrix products: what the sketches for them match on.

``C[m, n] = epilogue(sum over k of tokens[m, k] * weights[n, k])``. Where there are few ``m``, the weights are read once
and make up the time; where there are many of both, arithmetic does. Some sketches also take epilogues of several such
sums, of the same tokens with weights of their own.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from ...ir.buffer import Buffer
from ...ir.expr import Binary, Cast, Expr, Load, Var, index, rebuild, walk
from ...ir.linear_form import LinearForm, flat_form
from ...ir.rewrite import free_variables, map_loads, substitute
from ...te.contraction import Contraction, contraction_of
from ...te.inline import inline_stages
from ...te.workload import Axis, Stage, Workload
from ..tile.delinearize import places

LARGEST_SKINNY_M = 64
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
    ``Gemm.accumulator``, whatever their indices."""

    tensor: Buffer
    indices: tuple[Expr, ...]
    value: Expr

    def step(self, axis: str) -> int:
        """Elements between neighbours along ``axis``."""
        return flat_steps(Load(self.tensor, self.indices)).coefficient(axis)


@dataclass(frozen=True, slots=True)
class ExtraAccumulator:
    """A further sum over the same axes, of the same tokens: ``total`` and ``weights`` as in ``Gemm``."""

    accumulator: Buffer
    b: Operand


@dataclass(frozen=True, slots=True)
class Gemm:
    """A workload as such a product. Every expression is on the variables ``m``, ``n`` and ``k``, and those of ``batch``
    alone. ``others``: further sums that the results read."""

    inputs: tuple[Buffer, ...]
    accumulator: Buffer
    a: Operand
    b: Operand
    m: Axis
    n: Axis
    k: Axis
    results: tuple[Result, ...]
    batch: tuple[Axis, ...] = ()
    others: tuple[ExtraAccumulator, ...] = ()

    @property
    def accumulators(self) -> tuple[str, ...]:
        """The names of the sums, in their order."""
        return (self.accumulator.name, *(o.accumulator.name for o in self.others))

    @property
    def all_b(self) -> tuple[Operand, ...]:
        """What each of the sums multiplies the tokens with."""
        return (self.b, *(o.b for o in self.others))

    @property
    def names(self) -> set[str]:
        """The names that are taken."""
        axes = {a.name for a in (self.m, self.n, self.k, *self.batch)}
        return {b.name for b in self.inputs} | {r.tensor.name for r in self.results} | set(self.accumulators) | axes


def skinny_gemm_of(workload: Workload) -> Gemm | None:
    """``workload`` as a product of at most ``LARGEST_SKINNY_M`` rows, batches of one included; None where it is none.

    Takes one sum of products, and outputs that are pointwise functions of it (each may read other tensors too).
    """
    found = sides_of(workload)
    if found is None or found.batch:
        return None
    short, tall = sorted((found.rows, found.columns), key=lambda side: side.extent)
    return found.product(short, tall) if short.extent <= LARGEST_SKINNY_M else None


def gemm_of(workload: Workload, *, several: bool = False) -> Gemm | None:
    """``workload`` as a product of any size, or a batch of them; None where it is none, as ``skinny_gemm_of``.
    Neighbouring
    axes that everything goes along as one (the height and width of an image, for a kernel of one pixel) are one axis.
    The elements of the first output lie along ``n``, if along one of the two. ``several``: takes more than one sum, as
    long as all are of the same tokens (the left factors)."""
    found = sides_of(workload, joined=True, several=several)
    for sides in () if found is None else found.alternatives():
        product = sides.product(sides.rows, sides.columns)
        turned = product is not None and product.results[0].step("n") != 1 and product.results[0].step("m") == 1
        if turned and not sides.others:
            product = sides.product(sides.columns, sides.rows)
        if product is not None and goes_along(product):
            return product
    return None


@dataclass(frozen=True, slots=True)
class Side:
    """One factor with its own axes that have more than one place."""

    body: Expr
    axes: tuple[Axis, ...]

    @property
    def extent(self) -> int:
        return prod(a.extent for a in self.axes)


@dataclass(frozen=True, slots=True)
class Sides:
    """A workload, inlined, with its one contraction taken apart. ``others``: further ones with the same axes and the
    same ``rows``, and what they multiply those with, on the axes of ``stage``."""

    inlined: Workload
    stage: Stage
    rows: Side
    columns: Side
    k: tuple[Axis, ...]
    batch: tuple[Axis, ...]
    others: tuple[tuple[Stage, Expr], ...] = ()

    @property
    def new_batch(self) -> tuple[Axis, ...]:
        """The axes of the batch as they are called in the product."""
        return tuple(Axis(f"batch_{n}", a.extent) for n, a in enumerate(self.batch))

    @property
    def shared_places(self) -> dict[str, Expr]:
        """The places along the axes that are neither rows nor columns."""
        at: dict[str, Expr] = {a.name: index(0) for a in (*self.stage.axes, *self.stage.reduce_axes)}
        at |= {old.name: Var(new.name) for old, new in zip(self.batch, self.new_batch, strict=True)}
        return {**at, **places(Var("k"), self.k)}

    def alternatives(self) -> "Iterator[Sides]":
        """As it is, and with the outermost axis of one side as one of the batch (images of a batch, which the filters
        do not know of)."""
        yield self
        if len(self.rows.axes) > 1:
            outer, *rest = self.rows.axes
            yield replace(self, rows=replace(self.rows, axes=tuple(rest)), batch=(*self.batch, outer))
        if len(self.columns.axes) > 1:
            outer, *rest = self.columns.axes
            yield replace(self, columns=replace(self.columns, axes=tuple(rest)), batch=(*self.batch, outer))

    def product(self, short: Side, tall: Side) -> Gemm | None:
        """The product with the axes of ``short`` as ``m`` and those of ``tall`` as ``n``; None where an output is no
        pointwise function of it."""
        stage = self.stage
        batch = self.new_batch
        at = {**self.shared_places, **places(Var("m"), short.axes), **places(Var("n"), tall.axes)}
        stages, sums = self.inlined.stages, (stage, *(s for s, _ in self.others))
        results = [_result(s, sums, at) for s in stages if s.name in self.inlined.outputs]
        inner = sum(s.name not in self.inlined.outputs for s in sums)
        if any(r is None for r in results) or len(stages) > len(results) + inner:
            return None
        return Gemm(
            self.inlined.inputs,
            stage.tensor,
            operand_of(substitute(short.body, at), "m"),
            operand_of(substitute(tall.body, at), "n"),
            Axis("m", short.extent),
            Axis("n", tall.extent),
            Axis("k", prod(a.extent for a in self.k)),
            tuple(r for r in results if r is not None),
            batch,
            tuple(ExtraAccumulator(s.tensor, operand_of(substitute(body, at), "n")) for s, body in self.others),
        )


def sides_of(workload: Workload, *, joined: bool = False, several: bool = False) -> Sides | None:
    """The one contraction of a workload; None where there is none, or more. ``joined``: sides may have several axes.
    ``several``: there may be more with the same left factor."""
    inlined = inline_stages(workload)
    sums = [s for s in inlined.stages if s.reducer is not None]
    found = contraction_of(sums[0]) if len(sums) == 1 or (several and sums) else None
    if found is None:
        return None
    others = [(s, body) for s in sums[1:] if (body := _other_factor(s, found)) is not None]
    if len(others) < len(sums) - 1:
        return None
    stage = found.stage
    long = {a.name: a for a in (*stage.axes, *stage.reduce_axes) if a.extent > 1}
    rows, columns, shared, batch = (
        tuple(long[name] for name in group if name in long)
        for group in (found.rows, found.columns, found.shared, found.batch)
    )
    lonely = {a.name for a in stage.reduce_axes if a.extent > 1} - set(found.shared)
    if lonely or (not joined and max(len(rows), len(columns), len(shared)) > 1):
        return None
    return Sides(inlined, stage, Side(found.left, rows), Side(found.right, columns), shared, batch, tuple(others))


def _other_factor(stage: Stage, first: Contraction) -> Expr | None:
    """What ``stage`` multiplies the left factor of ``first`` with, on the axes of that; None where it is no such sum,
    over other axes, or of something else."""
    other = contraction_of(stage)
    if other is None or [a.extent for a in stage.axes] != [a.extent for a in first.stage.axes]:
        return None
    if [a.extent for a in stage.reduce_axes] != [a.extent for a in first.stage.reduce_axes]:
        return None
    own, wanted = (*stage.axes, *stage.reduce_axes), (*first.stage.axes, *first.stage.reduce_axes)
    at = {a.name: Var(b.name) for a, b in zip(own, wanted, strict=True)}
    left, right = substitute(other.left, at), substitute(other.right, at)
    if left != first.left:
        left, right = right, left
    return right if left == first.left and not free_variables(right) & set(first.rows) else None


def goes_along(p: Gemm) -> bool:
    """Whether everything goes along ``m``, ``n`` and ``k`` in even steps."""
    operands = [o.body for o in (p.a, *p.all_b)]
    loads = [e for body in (*operands, *(r.value for r in p.results)) for e in _loads(body)]
    stores = [Load(r.tensor, r.indices) for r in p.results]
    inner = [e for e in loads if e.buffer.name not in p.accumulators]
    return all(not _has_digits(flat_steps(e)) for e in (*inner, *stores))


def flat_steps(load: Load) -> LinearForm:
    """The element that ``load`` reads, as a linear form."""
    return flat_form(load.indices, load.buffer.strides)


def _has_digits(form: LinearForm) -> bool:
    return any(isinstance(e, Binary) for term in form.terms for e in walk(term))


def operand_of(body: Expr, own: str) -> Operand:
    """A factor of the product, on its axes; ``own``: the one that the other factor does not have."""
    inner = body.value if isinstance(body, Cast) else body
    if not isinstance(inner, Load):
        return Operand(body, None, 0, 0)
    form = flat_steps(inner)
    if any(isinstance(e, Load) for term in form.terms for e in walk(term)):
        return Operand(body, None, 0, 0)
    return Operand(body, inner, form.coefficient(own), form.coefficient("k"))


def _result(stage: Stage, sums: Sequence[Stage], at: Mapping[str, Expr]) -> Result | None:
    """An output stage on ``m`` and ``n``; None where it is no pointwise function of the sums."""
    wanted, totals = tuple(at[a.name] for a in sums[0].axes), [s.name for s in sums]
    if stage.name in totals:
        return Result(stage.tensor, wanted, Load(stage.tensor, wanted))
    own = _axes_in(stage, sums[0].axes, totals, at)
    if own is None:
        return None
    value = substitute(stage.body, own)
    reads: list[tuple[Expr, ...]] = []

    def spelled(load: Load) -> Load:
        if load.buffer.name in totals:
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


def _axes_in(
    stage: Stage, axes: Sequence[Axis], totals: Sequence[str], at: Mapping[str, Expr]
) -> dict[str, Expr] | None:
    """The axes of an output stage as expressions on ``m`` and ``n``, by where it reads a sum."""
    own: dict[str, Expr] = {a.name: index(0) for a in stage.axes if a.extent == 1}
    load = next((e for e in _loads(stage.body) if e.buffer.name in totals), None)
    if load is None:
        return None
    for i, axis in zip(load.indices, axes, strict=True):
        if axis.extent > 1:
            if not isinstance(i, Var) or i.name in own:
                return None
            own[i.name] = at[axis.name]
    return own if {a.name for a in stage.axes} == set(own) else None


def _loads(body: Expr) -> list[Load]:
    found: list[Load] = []
    map_loads(body, lambda e: found.append(e) or e)  # type: ignore[func-returns-value]
    return found
