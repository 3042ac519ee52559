"""The rules that a legal workload keeps. Everything that comes after ``check`` may rely on them."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..core.dtypes import DType, int32, int64
from ..core.errors import InvalidWorkload
from ..core.precision import PRECISIONS
from ..ir.buffer import Buffer, MemoryScope
from ..ir.expr import (
    BITWISE,
    FLOAT_ONLY,
    Binary,
    BinaryOp,
    Cast,
    Compare,
    CompareOp,
    Const,
    Expr,
    Load,
    Logic,
    Select,
    Unary,
    UnaryOp,
    Var,
    rebuild,
)
from .dynamic import SUFFIX, check_dynamic
from .functions import within
from .groups import MAX_SKEW, all_row_groups
from .index import Index, index_of, index_with_one_end, loaded_index
from .limits import (
    MAX_COEFFICIENT,
    MAX_DEPTH,
    MAX_ELEMENTS,
    MAX_EXTENT,
    MAX_NODES,
    MAX_POINTS,
    MAX_RANK,
    MAX_TENSORS,
    NAME_PATTERN,
)
from .region import Box, Region
from .triton import TritonWorkload, triton_workload
from .triton_json import triton_from_json, triton_to_json
from .workload import Axis, Stage, Workload

_NAME = re.compile(NAME_PATTERN[:-1] + r"\Z")


def check(workload: Workload) -> Workload:
    """``workload`` with every index in its one spelling (terms in the order of the axes, then the constant).

    Raises InvalidWorkload whose ``field`` is a JSON pointer into the workload's JSON (expressions: ``/body``, then
    ``/args/n`` or ``/at/n``) unless all of this holds:

    - constants are inputs; those with a skew hold the ends of groups of rows, and it is above 0, at most ``MAX_SKEW``;
    - names match ``NAME_PATTERN``; each names one tensor or one axis; the numbers of ``limits`` are kept;
    - a stage has one axis per dimension with its extent, its body has its dtype, and it reads only inputs and
      earlier stages; it is read or an output; a reducer goes with reduction axes, and reduces numbers, not bools;
      argmax and argmin have one reduction axis, a tensor of int64 or int32, and a body of any number's dtype;
    - floats of 8 bits are those of inputs, and are cast to another type wherever they are read;
    - operands have the dtypes that ``ir.expr`` asks for; ``floordiv`` and ``mod`` divide by a positive constant
      (machines trap on 0); constants fit their dtype, and are not NaN;
    - a Triton kernel is what ``te.triton_json`` takes;
    - dynamic dimensions are what ``te.dynamic`` says; the names of their extents end in ``_extent``;
    - indices are sums as in ``index``, and in bounds wherever the conditions of the enclosing selects hold, as far as
      those are affine and joined by and, or, not; or any integer that ``functions.within`` keeps in bounds.
    """
    if isinstance(workload, TritonWorkload):
        return triton_workload(triton_from_json(triton_to_json(workload.triton)))
    if workload.precision not in PRECISIONS:
        given = _short(workload.precision)
        raise InvalidWorkload(f"{given} is no precision; allowed: {', '.join(PRECISIONS)}", field="/precision")
    _count(workload.inputs, "/inputs", 0, MAX_TENSORS)
    _count(workload.stages, "/stages", 1, MAX_TENSORS)
    _count(workload.outputs, "/outputs", 1, MAX_TENSORS)
    taken: set[str] = set()
    tensors: dict[str, Buffer] = {}
    for n, tensor in enumerate(workload.inputs):
        _check_tensor(tensor, f"/inputs/{n}", taken)
        tensors[tensor.name] = tensor
    for n, stage in enumerate(workload.stages):  # all tensor names before any axis takes one of them
        _check_tensor(stage.tensor, f"/stages/{n}", taken)
        if stage.tensor.dtype.is_float8:
            raise InvalidWorkload(f"{stage.tensor.dtype} is computed; only inputs hold it", field=f"/stages/{n}/dtype")
    read: set[str] = set()
    checked: list[Stage] = []
    extents = _dynamic_extents(workload, taken)
    for n, stage in enumerate(workload.stages):
        checked.append(_StageCheck(stage, tensors, taken, f"/stages/{n}", extents).run(read))
        tensors[stage.name] = stage.tensor
    _check_outputs(workload, read)
    unknown = workload.constants - {t.name for t in workload.inputs}
    if unknown:
        raise InvalidWorkload(f"constant {', '.join(sorted(unknown))} is no input", field="/inputs")
    workload = replace(workload, stages=tuple(checked))
    _check_skews(workload)
    check_dynamic(workload)
    return workload


def _dynamic_extents(workload: Workload, taken: set[str]) -> dict[str, tuple[int, int]]:
    """Return the names of dynamic extents with the bounds of their values."""
    most = {(t.name, d): extent for t in workload.inputs for d, extent in enumerate(t.shape)}
    found: dict[str, tuple[int, int]] = {}
    for n, dynamic in enumerate(workload.dynamic):
        if not dynamic.name:
            continue
        field = "/dynamic/name" if len(workload.dynamic) == 1 else f"/dynamic/{n}/name"
        _check_name(dynamic.name, field, taken)
        if not dynamic.name.endswith(SUFFIX):
            raise InvalidWorkload(f"{dynamic.name!r} is no name of an extent; it ends in {SUFFIX}", field=field)
        found[dynamic.name] = (1, max((most.get(place, 1) for place in dynamic.places), default=1))
    return found


def _check_skews(workload: Workload) -> None:
    ends = all_row_groups(workload) if workload.skews else {}
    for name, skew in sorted(workload.skews):
        if name not in ends:
            raise InvalidWorkload(f"{name} has a skew and is no input with the ends of groups of rows", field="/inputs")
        if not 0 < skew <= MAX_SKEW:
            raise InvalidWorkload(
                f"the skew of {name} is {skew!r}; allowed: above 0, at most {MAX_SKEW}", field="/inputs"
            )
    if len(dict(workload.skews)) < len(workload.skews):
        raise InvalidWorkload("an input has two skews", field="/inputs")


def check_size(body: Expr, field: str = "") -> None:
    """Raise InvalidWorkload when ``body`` has too many nodes or is too deep.

    The walk never goes further than the bounds, however large the expression is. Shared parts count each time they are
    used.
    """
    nodes = 0
    todo = [(body, 1)]
    while todo:
        e, depth = todo.pop()
        nodes += 1
        if nodes > MAX_NODES:
            raise InvalidWorkload(f"expression with more than {MAX_NODES} nodes", field=field)
        if depth > MAX_DEPTH:
            raise InvalidWorkload(f"expression nested deeper than {MAX_DEPTH}", field=field)
        todo.extend((c, depth + 1) for c in e.children)


def _count(values: Sequence[object], field: str, low: int, high: int) -> None:
    if not low <= len(values) <= high:
        raise InvalidWorkload(f"{len(values)} {field[1:]}; allowed: {low} to {high}", field=field)


def _check_name(name: str, field: str, taken: set[str]) -> None:
    if not isinstance(name, str) or not _NAME.match(name):
        raise InvalidWorkload(f"{name!r} is no name; allowed: {NAME_PATTERN}", field=field)
    if name in taken:
        raise InvalidWorkload(f"{name} is already the name of another tensor, axis or extent", field=field)
    taken.add(name)


def _check_extent(extent: int, field: str) -> None:
    if not isinstance(extent, int) or isinstance(extent, bool) or not 1 <= extent <= MAX_EXTENT:
        raise InvalidWorkload(f"extent {extent!r}; allowed: whole numbers 1 to {MAX_EXTENT}", field=field)


def _check_tensor(tensor: Buffer, field: str, taken: set[str]) -> None:
    _check_name(tensor.name, f"{field}/name", taken)
    if len(tensor.shape) > MAX_RANK:
        raise InvalidWorkload(f"{len(tensor.shape)} dimensions; allowed: at most {MAX_RANK}", field=f"{field}/shape")
    for d, extent in enumerate(tensor.shape):
        _check_extent(extent, f"{field}/shape/{d}")
    if tensor.elements >= MAX_ELEMENTS:
        raise InvalidWorkload(f"{tensor.elements} elements; allowed: under {MAX_ELEMENTS}", field=f"{field}/shape")
    if tensor.scope is not MemoryScope.GLOBAL:
        raise InvalidWorkload(f"scope {tensor.scope}; tensors of a workload are global", field=field)


def _check_outputs(workload: Workload, read: set[str]) -> None:
    computed = {s.name for s in workload.stages}
    for n, name in enumerate(workload.outputs):
        if name not in computed:
            raise InvalidWorkload(f"{name!r} is not computed by any stage", field=f"/outputs/{n}")
        if name in workload.outputs[:n]:
            raise InvalidWorkload(f"{name} is an output twice", field=f"/outputs/{n}")
    for n, stage in enumerate(workload.stages):
        if stage.name not in read and stage.name not in workload.outputs:
            raise InvalidWorkload(f"{stage.name} is neither an output nor read", field=f"/stages/{n}")


@dataclass(frozen=True, slots=True)
class _StageCheck:
    stage: Stage
    tensors: Mapping[str, Buffer]
    taken: set[str]
    field: str
    extents: dict[str, tuple[int, int]]

    def run(self, read: set[str]) -> Stage:
        stage, field = self.stage, self.field
        self._axes("axes", stage.axes)
        self._axes("reduce_axes", stage.reduce_axes)
        if tuple(a.extent for a in stage.axes) != stage.tensor.shape:
            raise InvalidWorkload(
                f"axes of extents {[a.extent for a in stage.axes]} for shape {list(stage.tensor.shape)}",
                field=f"{field}/axes",
            )
        points = math.prod(a.extent for a in (*stage.axes, *stage.reduce_axes))
        if points >= MAX_POINTS:
            raise InvalidWorkload(f"{points} points to compute; allowed: under {MAX_POINTS}", field=f"{field}/axes")
        if (stage.reducer is None) != (not stage.reduce_axes):
            raise InvalidWorkload("a reducer needs reduction axes, and they need a reducer", field=f"{field}/reducer")
        if stage.reducer is not None and stage.tensor.dtype.is_bool:
            raise InvalidWorkload("bools cannot be reduced; cast them", field=f"{field}/reducer")
        check_size(stage.body, f"{field}/body")
        box = {a.name: (0, a.extent - 1) for a in (*stage.axes, *stage.reduce_axes)} | self.extents
        body = self._expr(stage.body, Region(box), f"{field}/body", read)
        if body.dtype.is_float8:
            raise InvalidWorkload(f"{body.dtype} is read without a cast", field=f"{field}/body")
        if stage.reducer is not None and stage.reducer.is_position:
            self._position(body)
        elif body.dtype != stage.tensor.dtype:
            raise InvalidWorkload(
                f"the body has dtype {body.dtype}, the tensor {stage.tensor.dtype}", field=f"{field}/body"
            )
        return Stage(stage.tensor, stage.axes, body, stage.reduce_axes, stage.reducer)

    def _position(self, body: Expr) -> None:
        stage, field = self.stage, self.field
        if len(stage.reduce_axes) != 1:
            raise InvalidWorkload(
                f"{stage.reducer} over {len(stage.reduce_axes)} axes; allowed: 1", field=f"{field}/reduce_axes"
            )
        if stage.tensor.dtype not in (int64, int32):
            raise InvalidWorkload(
                f"{stage.reducer} gives positions, as {stage.tensor.dtype}; allowed: int64, int32",
                field=f"{field}/dtype",
            )
        if body.dtype.is_bool:
            raise InvalidWorkload("bools cannot be reduced; cast them", field=f"{field}/body")

    def _axes(self, member: str, axes: tuple[Axis, ...]) -> None:
        if len(axes) > MAX_RANK:
            raise InvalidWorkload(f"{len(axes)} axes; allowed: at most {MAX_RANK}", field=f"{self.field}/{member}")
        for n, axis in enumerate(axes):
            _check_name(axis.name, f"{self.field}/{member}/{n}/name", self.taken)
            _check_extent(axis.extent, f"{self.field}/{member}/{n}/extent")

    def _expr(self, e: Expr, region: Region, field: str, read: set[str]) -> Expr:
        """``e``, checked, and with its indices in their one spelling. ``region`` is where it is evaluated."""
        match e:
            case Var(name=name):
                if name not in region.box:
                    raise InvalidWorkload(f"{name!r} is no axis of {self.stage.name}", field=field)
                return e if type(e) is Var else Var(name)
            case Const(value=value, type=dtype):
                check_constant(value, dtype, field)
                return e
            case Load():
                read.add(e.buffer.name)
                return self._load(e, region, field, read)
            case Select(condition=condition, then=then, otherwise=otherwise):
                children: list[Expr] = [
                    self._expr(condition, region, f"{field}/args/0", read),
                    self._expr(then, region.where(condition, True), f"{field}/args/1", read),
                    self._expr(otherwise, region.where(condition, False), f"{field}/args/2", read),
                ]
            case Binary() | Compare() | Logic() | Unary() | Cast():
                children = [self._expr(c, region, f"{field}/args/{n}", read) for n, c in enumerate(e.children)]
            case _:
                raise InvalidWorkload(f"{type(e).__name__} has no place in a tensor expression", field=field)
        e = rebuild(e, children)
        wrong = _dtype_fault(e)
        if wrong:
            raise InvalidWorkload(wrong, field=field)
        return e

    def _load(self, e: Load, region: Region, field: str, read: set[str]) -> Expr:
        tensor = self.tensors.get(e.buffer.name)
        if tensor is None:
            raise InvalidWorkload(
                f"{e.buffer.name!r} is neither an input nor an earlier stage of {self.stage.name}",
                field=f"{field}/load",
            )
        if tensor != e.buffer or e.mask is not None:
            raise InvalidWorkload(f"{e.buffer.name} is read as another tensor than it is", field=f"{field}/load")
        if len(e.indices) != len(tensor.shape):
            raise InvalidWorkload(
                f"{tensor.name} has {len(tensor.shape)} dimensions but is read at {len(e.indices)} indices",
                field=f"{field}/at",
            )
        order = list(region.box)
        indices: list[Expr] = []
        for d, (i, extent) in enumerate(zip(e.indices, tensor.shape, strict=True)):
            loaded = loaded_index(i, extent)
            if loaded is not None:
                indices.append(within(self._expr(loaded, region, f"{field}/at/{d}/within", read), extent))
                continue
            clamped = index_with_one_end(i, extent)
            if clamped is not None:
                op, moved = clamped
                self._bounds(
                    checked_index(moved, region.box, f"{field}/at/{d}"),
                    extent,
                    tensor.name,
                    region,
                    f"{field}/at/{d}",
                    op,
                )
                indices.append(within(self._expr(moved, region, f"{field}/at/{d}/within", read), extent))
                continue
            index = checked_index(i, region.box, f"{field}/at/{d}")
            self._bounds(index, extent, tensor.name, region, f"{field}/at/{d}")
            indices.append(index.expr(order))
        return Load(tensor, tuple(indices))

    def _bounds(
        self, index: Index, extent: int, name: str, region: Region, field: str, kept: BinaryOp | None = None
    ) -> None:
        """Check that an index is inside of a dimension. ``kept``: at which end it is kept inside in any case, by a
        maximum with 0 or a minimum with the last index."""
        if region.is_empty:
            return
        low, high = index.bounds(region)
        if kept is BinaryOp.MAX:
            low, high = max(low, 0), max(high, 0)
        if kept is BinaryOp.MIN:
            low, high = min(low, extent - 1), min(high, extent - 1)
        if low < 0 or high >= extent:
            raise InvalidWorkload(
                f"{name} is read at {low} to {high} along a dimension of {extent}, as far as its conditions show",
                field=field,
            )


def checked_index(e: Expr, box: Box, field: str) -> Index:
    """``e`` as a function of the axes of ``box``. Raises InvalidWorkload when it cannot be an index."""
    found = index_of(e)
    if found is None:
        raise InvalidWorkload(
            "an index must be a sum of whole multiples of axes, of quotients and remainders of such sums by positive "
            "whole numbers, and a whole number",
            field=field,
        )
    if found.depth > MAX_RANK or found.breadth > MAX_RANK:
        raise InvalidWorkload(
            f"an index {found.depth} deep, with {found.breadth} parts in a sum; allowed: at most {MAX_RANK} of either",
            field=field,
        )
    for name in sorted(found.variables):
        if name not in box:
            raise InvalidWorkload(f"{name!r} is no axis here; axes: {', '.join(box) or 'none'}", field=field)
    for number in found.numbers:
        if abs(number) > MAX_COEFFICIENT:
            raise InvalidWorkload(f"{number} in an index; allowed: at most {MAX_COEFFICIENT} either way", field=field)
    return found


def check_constant(value: object, dtype: DType, field: str) -> None:
    """Raise InvalidWorkload unless ``value`` is a number of ``dtype``: a bool for bool, and any number but NaN for
    floats."""
    if dtype.is_bool:
        right = isinstance(value, bool)
    elif dtype.is_float:
        right = isinstance(value, float) and not math.isnan(value)
        if right and isinstance(value, float) and math.isfinite(value):
            with np.errstate(over="ignore"):
                right = bool(np.isfinite(np.float64(value).astype(dtype.numpy)))
    else:
        low, high = dtype.integer_range
        right = isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
    if not right:
        raise InvalidWorkload(f"{_short(value)} is no {dtype}", field=field)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."


def _dtype_fault(e: Expr) -> str:
    """Return a message that says what is wrong with the dtypes of ``e``'s operands. It is empty when nothing is
    wrong."""
    given = [c.dtype for c in e.children]
    narrow = next((d for d in (e.dtype, *given) if d.is_float8 and not (isinstance(e, Cast) and d == given[0])), None)
    if narrow is not None:
        return f"{narrow} is computed with; only inputs hold it (cast them to a wider float)"
    match e:
        case Binary(op=op):
            if given[0] != given[1]:
                return f"{op} of {given[0]} and {given[1]}; operands must have one dtype (cast one)"
            if op in (BinaryOp.DIV, BinaryOp.POW):
                return "" if given[0].is_float else f"{op} of {given[0]}; allowed: floats"
            if op in (BinaryOp.FLOORDIV, BinaryOp.MOD):
                divisor = e.b.value if isinstance(e.b, Const) else 0
                if not given[0].is_integer:
                    return f"{op} of {given[0]}; allowed: integers"
                return "" if divisor > 0 else f"{op} by other than a positive constant"
            if op in BITWISE:
                return "" if given[0].is_integer else f"{op} of {given[0]}; allowed: integers"
            return f"{op} of bools; use and, or, not" if given[0].is_bool else ""
        case Compare(op=compare):
            if given[0] != given[1]:
                return f"{compare} of {given[0]} and {given[1]}; operands must have one dtype (cast one)"
            ordered = compare not in (CompareOp.EQ, CompareOp.NE)
            return f"{compare} of bools; allowed: eq, ne" if ordered and given[0].is_bool else ""
        case Logic(op=logic):
            return "" if all(d.is_bool for d in given) else f"{logic} of {given[0]} and {given[1]}; allowed: bool"
        case Unary(op=unary):
            if unary is UnaryOp.NOT:
                return "" if given[0].is_bool else f"not of {given[0]}; allowed: bool"
            if unary in FLOAT_ONLY:
                return "" if given[0].is_float else f"{unary} of {given[0]}; allowed: floats"
            return f"{unary} of bool" if given[0].is_bool else ""
        case Select():
            if not given[0].is_bool:
                return f"select on {given[0]}; the condition must be bool"
            if given[1] != given[2]:
                return f"select between {given[1]} and {given[2]}; both must have one dtype (cast one)"
    return ""
