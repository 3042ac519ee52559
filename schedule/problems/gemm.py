"""Matrix products: workloads of the form

    C[m, n] = epilogue(sum over k of A[m, k] * B[n, k])

Operands may be any expressions on their axes, there may be batches, and several outputs. Some sketches also take
epilogues of several such sums, of the same A with a B of their own (``gated_linear``, for example), and some pairwise
reductions, which have another function of A[m, k] and B[n, k] in place of the product, and perhaps another reduction.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod

import numpy as np
from numpy.typing import NDArray

from ...core.dtypes import float8_e4m3fn, float32
from ...core.precision import IEEE
from ...core.streams import stream
from ...ir.buffer import Buffer
from ...ir.expr import Binary, BinaryOp, Cast, Const, Expr, Load, Unary, UnaryOp, Var, index, rebuild, walk
from ...ir.gpu.tcgen05 import BLOCK_SCALED_ATOMS, BlockScaledAtom
from ...ir.linear_form import LinearForm, flat_form, linear_form
from ...ir.rewrite import free_variables, loads_of, map_loads, substitute
from ...te.contraction import Contraction, contraction_of, pairwise_reduction_of
from ...te.dynamic import row_extent
from ...te.groups import draw_sizes
from ...te.hoisted_factors import with_hoisted_factors
from ...te.inline import inline_stages
from ...te.packed_floats import e2m1_of, e8m0_of
from ...te.phases import with_phases
from ...te.workload import Axis, Reducer, Stage, Workload
from ..tile.delinearize import axis_indices
from .digits import axes_in
from .image_window import ImageWindow

LARGEST_SKINNY_M = 64
"""A product counts as skinny up to so many rows of A."""
SCATTERED_ROWS, SCATTERED_RESULTS = 8, 1 << 18
"""A skinny product with more rows than this, neighbours in the results, has at most so many results: lanes store places
of the other axis, each of which is a sector of its own (15 ps on an H200)."""
SCALED_K = 128
"""A scale within the sums is one for so many places of k."""


@dataclass(frozen=True, slots=True)
class Operand:
    """One factor of the product. ``body`` is its value on the axes ``m`` or ``n``, ``k`` and those of the batch.

    ``load``: the load that it is, apart from a cast; None where it is anything else. ``row`` and ``k``: its strides, in
    elements, along the operand's own axis and along ``k``; 0 where the axis has one element, or there is no ``load``.
    """

    body: Expr
    load: Load | None
    row: int
    k: int


@dataclass(frozen=True, slots=True)
class Result:
    """One output: ``tensor[indices] = value``, on the axes of the product. Loads of the tensor ``Gemm.accumulator`` in
    ``value`` stand for the accumulator at ``m`` and ``n``, whatever their indices. ``inside``: the conditions on which
    it has an element there, where it is a part of the product."""

    tensor: Buffer
    indices: tuple[Expr, ...]
    value: Expr
    inside: tuple[Expr, ...] = ()

    def step(self, axis: str) -> int:
        """Return the stride along ``axis``, in elements."""
        return element_form(Load(self.tensor, self.indices)).coefficient(axis)

    @property
    def phases(self) -> int:
        """How many members of the batch have an element between neighbours along ``m`` in the last dimensions, itself
        counted: the phases of a transposed convolution. 1 where it is anything else."""
        terms = self._phased.terms.items()
        if any("n" in free_variables(term) for term, _ in terms):
            return 1
        return min((step for term, step in terms if "m" in free_variables(term)), default=1)

    @property
    def _phased(self) -> LinearForm:
        """The last index. If it is a phase, the one before it is joined to it."""
        *outer, last = self.indices
        if not outer or not isinstance(last, Var) or last.name in ("m", "n"):
            return linear_form(last)
        return linear_form(outer[-1]).scaled(self.tensor.shape[-1]) + linear_form(last)

    def digits_before(self, pixel: Expr) -> int | None:
        """Return how many neighbours are a digit of ``n``, before the next ``pixel`` along the last dimensions; 1 where
        pixels are neighbours themselves, or ``phases`` apart, None where other elements are."""
        *outer, last = self.indices
        others = self._phased - linear_form(pixel).scaled(self.phases)
        if last == pixel or (self.phases > 1 and not any({"m", "n"} & free_variables(term) for term in others.terms)):
            return 1
        if _is_digit(last):
            return self.tensor.shape[-1] if outer[-1:] == [pixel] else None
        form = linear_form(last)
        for digit in filter(_is_digit, form.terms):
            step = int(digit.b.value) if isinstance(digit, Binary) and isinstance(digit.b, Const) else 0
            if form.terms[digit] == 1 and form.without([digit]) == linear_form(pixel).scaled(step):
                return step
        return None

    @property
    def last_digit(self) -> int:
        """The extent of the last dimension where its index is the last digit of ``n``; 0 where it is anything else."""
        return self.tensor.shape[-1] if self.indices and _is_digit(self.indices[-1]) else 0


def _is_digit(i: Expr) -> bool:
    """Return whether an index is the last digit of ``n``."""
    return isinstance(i, Binary) and i.op is BinaryOp.MOD and i.a == Var("n")


@dataclass(frozen=True, slots=True)
class ExtraAccumulator:
    """A further sum over the same axes, of the same A with its own ``b``. Both fields are as in ``Gemm``."""

    accumulator: Buffer
    b: Operand


@dataclass(frozen=True, slots=True)
class GroupedRows:
    """Rows of A that lie in groups: ``ends`` says where each group ends, as in ``te.groups``. B takes the variable
    ``te.contraction.GROUP`` for the group. ``skew``: how unequal the groups are."""

    ends: Buffer
    skew: float

    @property
    def count(self) -> int:
        return self.ends.elements

    def most_tiles(self, rows: int, tile: int | NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how many tiles of ``tile`` rows the groups can have at most. Each tile has rows of one group."""
        filled = min(self.count, rows)
        return (rows - filled) // np.asarray(tile, np.int64) + filled

    def likely_tiles(self, rows: int, tile: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how many tiles groups of usual sizes have."""
        sizes = draw_sizes(rows, self.count, self.skew, stream(0, "likely tiles"))
        found, where = np.unique(tile, return_inverse=True)
        return np.asarray([int((-(-sizes // extent)).sum()) for extent in found], np.int64)[where]


@dataclass(frozen=True, slots=True)
class BlockScales:
    """What the operands are multiplied with within the sums: a scale for each block of k of a row. ``name``: the
    format, a key of ``BLOCK_SCALED_ATOMS``. ``a`` and ``b`` are (row, block), bytes of powers of two, or floats of 8
    bits whose signs count as nothing."""

    name: str
    a: Buffer
    b: Buffer

    @property
    def atom(self) -> BlockScaledAtom:
        return BLOCK_SCALED_ATOMS[self.name]


@dataclass(frozen=True, slots=True)
class Gemm:
    """A workload as a product. Its expressions read the variables ``m``, ``n``, ``k`` and those of ``batch`` alone.
    ``others``: further sums that the results read. ``window``: how A is read where it is images seen through a
    window. Then ``a`` is the load of the first tap, and both operands take ``k`` for the channel alone
    (``implicit_gemm``). ``b_window``: how B is read where it is such images, and ``k`` counts output pixels
    (``weight_gradient``). ``scales``: what both operands are multiplied with within the sums, the same for
    ``SCALED_K`` places of k; that of B is the same for as many columns, too. ``precision``: which roundings the sums
    may have (``core.precision``). ``block_scales``: the scales of blocks of k, if there are any. Of a format of 4 bits
    the operands are bytes with two elements each, and ``k`` counts these bytes.
    ``groups``: the groups of rows that each have a B of their own. ``dynamic``: how many rows a call has, where these
    are a dynamic dimension; ``m`` has the most then. ``term``: what ``reducer`` combines for all ``k`` instead of
    products: an expression that reads the loads ``a.body`` and ``b.body``, and perhaps others on ``k`` and the batch
    alone. ``stored``: whether the results are stored. If not, their rows are reduced (``row_reduced_gemm``).
    ``constants``: inputs that all calls share. ``a_in_registers``: whether wgmma takes A from registers."""

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
    window: ImageWindow | None = None
    b_window: ImageWindow | None = None
    scales: tuple[Load, Load] | None = None
    block_scales: BlockScales | None = None
    precision: str = IEEE
    groups: GroupedRows | None = None
    dynamic: Expr | None = None
    term: Expr | None = None
    reducer: Reducer = Reducer.SUM
    stored: bool = True
    constants: frozenset[str] = frozenset()
    a_in_registers: bool = False

    @property
    def m_end(self) -> Expr:
        """How many rows a call has."""
        return index(self.m.extent) if self.dynamic is None else self.dynamic

    def is_constant(self, tensor: Buffer) -> bool:
        """Return whether an input stays the same from call to call."""
        return tensor.name in self.constants

    def rows_inside(self, m: Expr) -> list[Expr]:
        """Return the conditions on which ``m`` is a row of the results of a call."""
        return [m < self.m_end, *(() if self.window is None else self.window.inside(m))]

    @property
    def along_pixels(self) -> bool:
        """Whether rows are output pixels, and those are neighbours in the results, not their channels (NCHW)."""
        return self.window is not None and self.results[0].step("n") != 1

    @property
    def along_m(self) -> bool:
        """Whether places of ``m``, not of ``n``, are neighbours in the results: pixels, or where sides are swapped."""
        m, n = (self.results[0].step(axis) for axis in "mn")
        return self.along_pixels or (self.window is None and not self.others and m == 1 != n)

    @property
    def accumulators(self) -> tuple[str, ...]:
        """The names of the tensors that stand for the accumulators, in their order."""
        return (self.accumulator.name, *(o.accumulator.name for o in self.others))

    @property
    def all_b(self) -> tuple[Operand, ...]:
        """The B of each accumulator."""
        return (self.b, *(o.b for o in self.others))

    @property
    def names(self) -> set[str]:
        """All names that a kernel of this product cannot use for anything else."""
        axes = {a.name for a in (self.m, self.n, self.k, *self.batch)}
        return {b.name for b in self.inputs} | {r.tensor.name for r in self.results} | set(self.accumulators) | axes


@lru_cache(maxsize=64)  # every sketch of products asks it of a workload
def skinny_gemm_of(workload: Workload) -> Gemm | None:
    """``workload`` as a product of at most ``LARGEST_SKINNY_M`` rows, without a batch; None where it is none.

    It must have one sum of products, and its outputs must be pointwise functions of that (which may read other tensors
    too). It is none where many results of the few rows are neighbours (``SCATTERED_RESULTS``). The columns, and
    ``k``, may be several axes of the workload that are one in all tensors.
    """
    found = sides_of(workload) or sides_of(workload, joined=True)
    if found is None or found.batch:
        return None
    short, tall = sorted((found.rows, found.columns), key=lambda side: side.extent)
    product = found.product(short, tall) if short.extent <= LARGEST_SKINNY_M else None
    several = max(len(axes) for axes in (short.axes, tall.axes, found.k)) > 1
    few = short.extent <= SCATTERED_ROWS and len(short.axes) <= 1
    if several and (not few or product is None or not has_constant_strides(product)):
        return None
    if product is None or short.extent <= SCATTERED_ROWS or short.extent * tall.extent <= SCATTERED_RESULTS:
        return product
    return None if product.along_m else product


@lru_cache(maxsize=64)  # sketches of products and of convolutions ask it of a workload
def gemm_of(
    workload: Workload,
    *,
    several: bool = False,
    scaled: bool = False,
    block_scaled: bool = False,
    swapped: bool = False,
    pairwise: bool = False,
) -> Gemm | None:
    """``workload`` as a product of any size, or a batch of them; None where it is none, as in ``skinny_gemm_of``.

    Neighbouring axes that all tensors index as one are fused (height and width of an image, for a kernel of one pixel).
    If the first output is contiguous along one of the two axes, that one is ``n``, or ``m`` if the sides are
    ``swapped``. ``several``: whether there may be several sums, as long as they share their left factor, A. ``scaled``:
    whether there may be scales within the sums. ``block_scaled``: whether they may be those of a format with scales of
    blocks. ``pairwise``: whether to return the workload as a pairwise reduction (``Gemm.term``) instead.
    """
    for sides in _all_sides(workload, several, pairwise):
        product = sides.product(sides.rows, sides.columns)
        transposed = product is not None and product.results[0].step("n") != 1 and product.results[0].step("m") == 1
        if transposed != swapped and not sides.others:
            product = sides.product(sides.columns, sides.rows)
        if product is not None and scaled:
            product = _with_scales(product)
        if product is not None and block_scaled:
            product = _with_block_scales(product)
        if product is not None and has_constant_strides(product, sources=not sides.hoisted):
            return product
    return None


def _all_sides(workload: Workload, several: bool, pairwise: bool) -> "Iterator[Sides]":
    """Yield the sides of a product, as they are and with other batches; those of heads that share a factor, too."""
    for whole in (workload, with_phases(workload, whole=True)):
        found = None if whole is None else sides_of(whole, joined=True, several=several, pairwise=pairwise)
        yield from () if found is None else found.alternatives()


def with_dynamic_rows(gemm: Gemm, workload: Workload) -> Gemm | None:
    """``gemm``, which is ``workload``, with its dynamic dimension as rows. None where that is not among the rows, and
    where there is a batch or a window."""
    extent = row_extent(workload)
    if extent is None:
        return gemm
    unit, rest = divmod(gemm.m.extent, extent.most)
    first = Var("m") if unit == 1 else Binary(BinaryOp.FLOORDIV, Var("m"), index(unit))
    outermost = all(r.indices and r.indices[0] == first for r in gemm.results)
    if rest or not outermost or gemm.batch or gemm.window is not None or gemm.groups is not None:
        return None
    return replace(gemm, dynamic=Var(extent.var) if unit == 1 else Var(extent.var) * unit)


@dataclass(frozen=True, slots=True)
class Side:
    """One factor, with those of its own axes that have more than one element."""

    body: Expr
    axes: tuple[Axis, ...]

    @property
    def extent(self) -> int:
        return prod(a.extent for a in self.axes)


@dataclass(frozen=True, slots=True)
class Sides:
    """A workload after inlining, with its contraction ``stage`` taken apart.

    ``others``: further contractions with the same axes and the same ``rows``, and the other factor of each, on the axes
    of ``stage``. ``pairwise``: whether it is a pairwise reduction, of the body of ``stage``. ``hoisted``: whether
    results are multiplied by factors that stood in the sum.
    """

    inlined: Workload
    stage: Stage
    rows: Side
    columns: Side
    k: tuple[Axis, ...]
    batch: tuple[Axis, ...]
    others: tuple[tuple[Stage, Expr], ...] = ()
    pairwise: bool = False
    hoisted: bool = False

    @property
    def new_batch(self) -> tuple[Axis, ...]:
        """The axes of the batch under their names in the product."""
        return tuple(Axis(f"batch_{n}", a.extent) for n, a in enumerate(self.batch))

    @property
    def shared_indices(self) -> dict[str, Expr]:
        """The indices along all axes that are neither rows nor columns: axis -> index."""
        at: dict[str, Expr] = {a.name: index(0) for a in (*self.stage.axes, *self.stage.reduce_axes)}
        at |= {old.name: Var(new.name) for old, new in zip(self.batch, self.new_batch, strict=True)}
        return {**at, **axis_indices(Var("k"), self.k)}

    def alternatives(self) -> "Iterator[Sides]":
        """Yield the sides as they are, and with the outermost axis of one side, or of both, as an axis of the batch
        (the number of the image, which the filters do not depend on)."""
        rows, columns = self.rows.axes, self.columns.axes
        for of_rows, of_columns in ((0, 0), (1, 0), (0, 1), (1, 1)):
            if of_rows < max(len(rows), 1) and of_columns < max(len(columns), 1):
                yield replace(
                    self,
                    rows=replace(self.rows, axes=rows[of_rows:]),
                    columns=replace(self.columns, axes=columns[of_columns:]),
                    batch=(*self.batch, *rows[:of_rows], *columns[:of_columns]),
                )

    def product(
        self,
        short: Side,
        tall: Side,
        rows: Mapping[str, Expr] | None = None,
        *,
        columns: Mapping[str, Expr] | None = None,
        part: bool = False,
    ) -> Gemm | None:
        """Return the product with the axes of ``short`` as ``m`` and those of ``tall`` as ``n``; None where an output
        is not a pointwise function of it. ``rows``, ``columns``: the indices along the axes of ``short`` and ``tall``,
        where ``m`` and ``n`` do not count them in their order. ``part``: whether outputs may have a part of its
        elements."""
        stage = self.stage
        batch = self.new_batch
        rows = axis_indices(Var("m"), short.axes) if rows is None else rows
        columns = axis_indices(Var("n"), tall.axes) if columns is None else columns
        at = {**self.shared_indices, **rows, **columns}
        stages, sums = self.inlined.stages, (stage, *(s for s, _ in self.others))
        results = [_result(s, sums, at) for s in stages if s.name in self.inlined.outputs]
        inner = sum(s.name not in self.inlined.outputs for s in sums)
        if any(r is None or (r.inside and not part) for r in results) or len(stages) > len(results) + inner:
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
            precision=self.inlined.precision,
            term=substitute(stage.body, at) if self.pairwise else None,
            reducer=stage.reducer or Reducer.SUM,
            constants=self.inlined.constants,
        )


def sides_of(
    workload: Workload, *, joined: bool = False, several: bool = False, pairwise: bool = False
) -> Sides | None:
    """Return the sides of the one contraction of a workload; None where there is no contraction, or more than one.

    ``joined``: whether a side may have several axes. ``several``: whether there may be several contractions with the
    same left factor. ``pairwise``: whether a pairwise reduction is wanted instead of a contraction.
    """
    inlined, wanted = inline_stages(workload), pairwise_reduction_of if pairwise else contraction_of
    hoisted = None if pairwise else with_hoisted_factors(inlined)
    inlined = inlined if hoisted is None else inline_stages(hoisted)
    sums = [s for s in inlined.stages if s.reducer is not None]
    found = wanted(sums[0]) if len(sums) == 1 or (several and sums) else None
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
    unshared = {a.name for a in stage.reduce_axes if a.extent > 1} - set(found.shared)
    if unshared or (not joined and max(len(rows), len(columns), len(shared)) > 1):
        return None
    sides = (Side(found.left, rows), Side(found.right, columns))
    return Sides(inlined, stage, *sides, shared, batch, tuple(others), pairwise, hoisted is not None)


def _other_factor(stage: Stage, first: Contraction) -> Expr | None:
    """Return the factor that ``stage`` multiplies the left factor of ``first`` with, on the axes of ``first``. None
    where ``stage`` is no contraction over the same axes with that left factor."""
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


def _with_scales(gemm: Gemm) -> Gemm:
    """Return the product with the scales of its operands apart from them, where both have one."""
    a, b = _scale_of(gemm.a.body, "m"), _scale_of(gemm.b.body, "n")
    if a is None or b is None or gemm.others:
        return gemm
    return replace(gemm, a=operand_of(a[0], "m"), b=operand_of(b[0], "n"), scales=(a[1], b[1]))


def _scale_of(body: Expr, axis: str) -> tuple[Expr, Load] | None:
    """``body`` as a factor and its scale; None where it is anything else. The scale is the same for ``SCALED_K`` places
    of k, and, along ``n``, for as many columns."""
    if not isinstance(body, Binary) or body.op is not BinaryOp.MUL:
        return None

    def blocks(name: str) -> Expr:
        return Binary(BinaryOp.FLOORDIV, Var(name), index(SCALED_K))

    allowed = {"k": blocks("k"), axis: blocks("n") if axis == "n" else Var("m")}
    for factor, scale in ((body.a, body.b), (body.b, body.a)):
        if not isinstance(scale, Load) or scale.dtype != float32 or operand_of(factor, axis).load is None:
            continue
        varying = [i for i in scale.indices if free_variables(i) & {"k", "m", "n"}]
        if all(i in allowed.values() for i in varying):
            return factor, scale
    return None


def _with_block_scales(gemm: Gemm) -> Gemm:
    """Return the product with the scales of blocks of its operands apart from them, where both are of one format."""
    for name, atom in BLOCK_SCALED_ATOMS.items():
        a, b = _block_scaled(gemm.a.body, "m", atom), _block_scaled(gemm.b.body, "n", atom)
        if a is None or b is None or gemm.others or gemm.k.extent * atom.bits % 8:
            continue
        k = replace(gemm.k, extent=gemm.k.extent * atom.bits // 8)
        return replace(gemm, a=a[0], b=b[0], k=k, block_scales=BlockScales(name, a[1], b[1]))
    return gemm


def _block_scaled(body: Expr, axis: str, atom: BlockScaledAtom) -> tuple[Operand, Buffer] | None:
    """``body`` as an operand of a format and its scales; None where it is anything else."""
    if not isinstance(body, Binary) or body.op is not BinaryOp.MUL:
        return None
    for factor, scale in ((body.a, body.b), (body.b, body.a)):
        operand = _narrow_operand(factor, axis) if atom.bits == 8 else _packed_operand(factor, axis)
        found = e8m0_of(scale) if atom.powers_of_two else _unsigned_scale(scale)
        if operand is None or found is None:
            continue
        if list(found.indices) == [Var(axis), Binary(BinaryOp.FLOORDIV, Var("k"), index(atom.block))]:
            return operand, found.buffer
    return None


def _narrow_operand(factor: Expr, axis: str) -> Operand | None:
    """Return an operand of floats of 8 bits; None where ``factor`` is anything else."""
    operand = operand_of(factor, axis)
    return operand if operand.load is not None and operand.load.dtype.is_float8 else None


def _packed_operand(factor: Expr, axis: str) -> Operand | None:
    """Return the bytes that floats of 4 bits are unpacked from, on ``k`` of bytes; None where ``factor`` is anything
    else."""
    unpacked = e2m1_of(factor)
    if unpacked is None or unpacked[1] != Var("k"):
        return None
    load, byte = unpacked[0], Binary(BinaryOp.FLOORDIV, Var("k"), index(2))
    places = [i for i in load.indices if "k" in free_variables(i)]
    packed = Load(load.buffer, tuple(Var("k") if i == byte else i for i in load.indices))
    return operand_of(packed, axis) if places == [byte] else None


def _unsigned_scale(scale: Expr) -> Load | None:
    """Return the float of 8 bits that ``scale`` is without its sign; None where it is anything else."""
    match scale:
        case Unary(op=UnaryOp.ABS, value=Cast(value=Load() as load)) if load.dtype == float8_e4m3fn:
            return load
    return None


def has_constant_strides(p: Gemm, *, sources: bool = True) -> bool:
    """Return whether all loads and stores have one stride along each of ``m``, ``n`` and ``k``: no fused axis has to be
    split again by quotients and remainders. ``sources``: whether what results read besides must have one, too."""
    operands = [o.body for o in (p.a, *p.all_b)] + ([] if p.term is None else [p.term])
    read = [*operands, *(r.value for r in p.results)] if sources else operands
    loads = [e for body in read for e in loads_of(body) if e.buffer.name not in p.accumulators]
    stores = [Load(r.tensor, r.indices) for r in p.results]
    return all(not _has_quotients(element_form(e)) for e in (*loads, *stores))


@lru_cache(maxsize=64)  # constraints, sizes and the prior ask for the same steps again and again
def element_form(load: Load) -> LinearForm:
    """Return the offset of the element that ``load`` reads, as a linear form."""
    return flat_form(load.indices, load.buffer.strides)


def _has_quotients(form: LinearForm) -> bool:
    return any(isinstance(e, Binary) for term in form.terms for e in walk(term))


def operand_of(body: Expr, own: str) -> Operand:
    """Return a factor of the product, given on the axes of the product. ``own``: the axis that the other factor
    lacks."""
    inner = body.value if isinstance(body, Cast) else body
    if not isinstance(inner, Load):
        return Operand(body, None, 0, 0)
    form = element_form(inner)
    if any(loads_of(term) for term in form.terms):
        return Operand(body, None, 0, 0)
    return Operand(body, inner, form.coefficient(own), form.coefficient("k"))


def _result(stage: Stage, sums: Sequence[Stage], at: Mapping[str, Expr]) -> Result | None:
    """Return an output stage on ``m`` and ``n``; None where it is not a pointwise function of the sums."""
    wanted, totals = tuple(at[a.name] for a in sums[0].axes), [s.name for s in sums]
    if stage.name in totals:
        return Result(stage.tensor, wanted, Load(stage.tensor, wanted))
    found = axes_in(stage, sums[0].axes, totals, at)
    if found is None:
        return None
    own, inside = found
    value = substitute(stage.body, own)
    reads: list[tuple[Expr, ...]] = []

    def normalised(load: Load) -> Load:
        if load.buffer.name in totals:
            indices = tuple(
                index(0) if extent == 1 else i for i, extent in zip(load.indices, load.buffer.shape, strict=True)
            )
            reads.append(indices)
            return rebuild(load, wanted)  # type: ignore[return-value]
        return load

    value = map_loads(value, normalised)
    if not reads or any(r != reads[0] for r in reads):
        return None
    return Result(stage.tensor, tuple(own[a.name] for a in stage.axes), value, inside)
