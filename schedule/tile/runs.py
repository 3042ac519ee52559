"""Vectors whose elements a load mostly reads from contiguous places, and what tells at run time that it does.

The index ``(j + 1000) % 8191`` grows by one from ``j`` to ``j + 1``, but at the end of a row:

    run_of(X[i, (j + 1000) % 8191], "j", 8)    ->    where (j + 1000) % 8191 + 7 < 8191

Where columns of several tensors are interleaved, every second element is in such a run.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ...ir.bounds import loop_range
from ...ir.expr import (
    Binary,
    BinaryOp,
    Compare,
    CompareOp,
    Const,
    Expr,
    Load,
    Logic,
    LogicOp,
    Unary,
    UnaryOp,
    Var,
    conjunction,
    index,
    logical_and,
)
from ...ir.rewrite import free_variables
from ...ir.simplify import prove, simplify
from ...te.functions import negated
from .masked_loads import MaskedLoad, conjuncts
from .stage_body import scalar_at

CHUNK_BYTES = 16
"""Bytes of an aligned access. Two hold a vector of so many bytes at any offset."""
_ORDERS = (CompareOp.LT, CompareOp.LE, CompareOp.GT, CompareOp.GE)


@dataclass(frozen=True, slots=True)
class Run:
    """How ``lanes`` elements of ``masked`` follow each other along ``axis``. Where ``conditions`` hold, they are
    contiguous (``stride`` is 1), contiguous in reverse (-1), or all the same element (0), and each conjunct of the mask
    changes at most once from the first of them to the last one. They are the elements ``phase``, ``phase + phases``, …
    of a vector; ``axis`` counts them alone."""

    masked: MaskedLoad
    axis: str
    lanes: int
    conditions: tuple[Expr, ...]
    stride: int = 1
    phases: int = 1
    phase: int = 0

    def offset(self, at: Mapping[str, Expr]) -> Expr:
        """Return the lowest offset in the buffer of the elements from a point of the axes on."""
        load = self.masked.load
        total: Expr = index(min(self.stride * (self.lanes - 1), 0))
        for i, stride in zip(load.indices, load.buffer.strides, strict=True):
            total = total + scalar_at(i, at) * stride
        return total

    @property
    def last_offset(self) -> int:
        """The highest offset, such that all elements lie in whole chunks of the buffer, where each chunk has as many
        elements as the run, or 16 bytes."""
        buffer = self.masked.load.buffer
        if self.stride == 0:
            return buffer.elements - 1
        chunk = min(self.lanes, CHUNK_BYTES // buffer.dtype.bytes)
        return buffer.elements // chunk * chunk - self.lanes

    def in_buffer(self, at: Mapping[str, Expr]) -> Expr | None:
        """Return whether the elements from a point on are in the buffer, the first one of which is; None where that
        always is so."""
        if self.stride == 0:
            return None
        offset = self.offset(at)
        return offset <= self.last_offset if self.stride > 0 else logical_and(offset >= 0, offset <= self.last_offset)

    def all_inside(self, at: Mapping[str, Expr], last: Expr) -> Expr | None:
        """Return whether the conditions hold from a point of the axes on, and the mask is true from there up to
        the index ``last`` along the axis; None where that always is so."""
        tests = [scalar_at(c, at) for c in self.conditions]
        for c in conjuncts(self.masked.mask):
            tests.append(scalar_at(c, at))
            if self.axis in free_variables(c):
                tests.append(scalar_at(c, {**at, self.axis: last}))
        return conjunction(*tests)

    def all_outside(self, at: Mapping[str, Expr], last: Expr) -> Expr:
        """Return whether one conjunct of the mask is false from a point of the axes up to the index ``last``."""
        result: Expr | None = None
        for c in conjuncts(self.masked.mask):
            ends = dict.fromkeys((scalar_at(c, at), scalar_at(c, {**at, self.axis: last})))
            outside = logical_and(*[scalar_at(e, at) for e in self.conditions], *[negated(e) for e in ends])
            result = outside if result is None else Logic(LogicOp.OR, result, outside)
        assert result is not None
        return result


def run_of(masked: MaskedLoad, axis: str, lanes: int) -> Run | None:
    """Return how ``lanes`` elements of a load follow each other along ``axis``; None where they have another stride, or
    where it is not known."""
    stride, conditions = 0, list[Expr]()
    for i, step in zip(masked.load.indices, masked.load.buffer.strides, strict=True):
        known = _stride(i, axis, lanes, conditions)
        if known is None:
            return None
        stride += known * step
    if stride not in (-1, 0, 1) or not all(_is_monotonic(c, axis, lanes, conditions) for c in conjuncts(masked.mask)):
        return None
    return Run(masked, axis, lanes, tuple(dict.fromkeys(conditions)), stride)


def _stride(e: Expr, axis: str, lanes: int, conditions: list[Expr]) -> int | None:
    """Return by how much an index grows from each of ``lanes`` points along ``axis`` to the next one, and add to
    ``conditions`` where that is so; None where it is not known."""
    if axis not in free_variables(e):
        return 0
    match e:
        case Var():
            return 1
        case Binary(op=BinaryOp.ADD | BinaryOp.SUB as op, a=a, b=b):
            first, second = _stride(a, axis, lanes, conditions), _stride(b, axis, lanes, conditions)
            if first is None or second is None:
                return None
            return first + second if op is BinaryOp.ADD else first - second
        case Binary(op=BinaryOp.MUL, a=a, b=Const(value=factor)) | Binary(op=BinaryOp.MUL, a=Const(value=factor), b=a):
            stride = _stride(a, axis, lanes, conditions)
            return None if stride is None else stride * int(factor)
        case Binary(op=BinaryOp.MOD | BinaryOp.FLOORDIV as op, a=a, b=Const(value=value) as b):
            stride, reach = _stride(a, axis, lanes, conditions), int(value)
            if stride is None or abs(stride) * (lanes - 1) >= reach:
                return None
            last = Binary(BinaryOp.MOD, a, b) + stride * (lanes - 1)
            conditions.append(last < reach if stride >= 0 else last >= 0)
            return stride if op is BinaryOp.MOD else 0
    return None


def _is_monotonic(condition: Expr, axis: str, lanes: int, conditions: list[Expr]) -> bool:
    """Return whether a condition changes at most once along ``axis``, where ``conditions`` hold, to which it adds."""
    match condition:
        case _ if axis not in free_variables(condition):
            return True
        case Compare(op=op, a=a, b=b) if op in _ORDERS:
            return all(_stride(e, axis, lanes, conditions) is not None for e in (a, b))
        case Unary(op=UnaryOp.NOT, value=value):
            return _is_monotonic(value, axis, lanes, conditions)
    return False


def runs_of(masked: MaskedLoad, axis: str, lanes: int, extents: Mapping[str, int]) -> tuple[Run, ...]:
    """Return the runs that ``lanes`` elements of a load along ``axis`` are in: a single one, or one of every second or
    fourth element. Vectors begin at multiples of ``lanes`` along an axis, or where another one ended. There is no run
    of elements whose mask is never true, and none at all where single elements would be left. ``extents`` are those of
    all axes."""
    whole = run_of(masked, axis, lanes)
    if whole is not None:
        return (whole,)
    for phases in (2, 4):
        if extents[axis] % phases == 0 and lanes % (2 * phases) == 0:
            found = [_run_of_phase(masked, axis, lanes, extents, phases, n) for n in range(phases)]
            if None not in found:
                return tuple(run for run in found if isinstance(run, Run))
    return ()


def _run_of_phase(
    masked: MaskedLoad, axis: str, lanes: int, extents: Mapping[str, int], phases: int, phase: int
) -> Run | bool | None:
    """Return the run of the elements of one phase; False where the mask is true for none of them, and None where they
    are in no run."""
    counted = f"{axis}/{phases}"
    at = {axis: Var(counted) * phases + phase}
    ranges = {**{a: loop_range(n) for a, n in extents.items()}, counted: loop_range(extents[axis] // phases)}
    kept: list[Expr] = []
    for c in conjuncts(masked.mask):
        here = scalar_at(c, at)
        known = prove(here, ranges)
        if known is False:
            return False
        kept += [simplify(here, ranges)] if known is None else []
    load = Load(masked.load.buffer, tuple(simplify(scalar_at(i, at), ranges) for i in masked.load.indices))
    mask = conjunction(*kept)
    found = run_of(MaskedLoad(load, mask, masked.other), counted, lanes // phases)
    return None if found is None else replace(found, phases=phases, phase=phase)
