"""Other forms of attention, brought to the one that ``attention_of`` reads.

    written                                              read as
    O = sum of exp(s - top) / total * V                  a sum, and an output that reads it
    sum of exp(s) * V / sum of exp(s)                    exp(s - top) in both sums, with top = max of s
    ... / (total + exp(sink - max(top, sink)))           the same quotient with ``sink`` as one more score

The second and the third hold since the quotient of two sums that are homogeneous in exp(s - top) does not depend on
``top``: any greater bound may stand in its place. Where exp(s) alone would overflow, the quotient is finite.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from ...core.dtypes import float32
from ...ir.buffer import Buffer
from ...ir.expr import Binary, BinaryOp, Expr, Load, Unary, UnaryOp, Var, walk
from ...ir.rewrite import fresh_name, loads_of, map_expr, substitute
from ...te.workload import Reducer, Stage

LOG_SUM = Buffer("log_sum#", (), float32)
"""Stands for the logarithm of the sum of the exponentials of a query's scores. No tensor has its name."""


def with_output(stages: Sequence[Stage], outputs: Sequence[str]) -> tuple[Stage, ...]:
    """``stages`` with a stage that copies the sum that is itself an output, if one is."""
    read = {b.name for s in stages for b in _buffers_read(s.body)}
    sums = [s for s in stages if s.reducer is Reducer.SUM and s.name in outputs and s.name not in read]
    if len(sums) != 1:
        return tuple(stages)
    (last,) = sums
    before = [s for s in stages if s is not last]
    name = fresh_name(f"{last.name}_sum", {s.name for s in stages} | read)
    tensor = Buffer(name, last.tensor.shape, last.tensor.dtype)
    copy = Stage(last.tensor, last.axes, Load(tensor, tuple(Var(a.name) for a in last.axes)))
    return (*before, replace(last, tensor=tensor), copy)


def with_maximum(stages: Sequence[Stage]) -> tuple[Stage, ...]:
    """``stages`` with the maximum of scores subtracted from them, where two sums of their exponentials have none."""
    reducing = [s for s in stages if s.reducer is not None]
    if len(reducing) != 3 or any(s.reducer is not Reducer.SUM for s in reducing):
        return tuple(stages)
    product, *sums = reducing
    powers = [_power_of(s.body, product.name) for s in sums]
    if any(power is None for power in powers):
        return tuple(stages)
    total = min(sums, key=lambda s: len(s.axes))
    power_of_total = powers[sums.index(total)]
    assert power_of_total is not None  # as looked up above
    score = power_of_total.value
    taken = {s.name for s in stages} | {b.name for s in stages for b in _buffers_read(s.body)}
    tensor = Buffer(fresh_name(f"{total.name}_max", taken), total.tensor.shape, float32)
    top = Stage(tensor, total.axes, score, total.reduce_axes, Reducer.MAX)
    shifted: dict[str, Stage] = {}
    for stage, power in zip(sums, powers, strict=True):
        assert power is not None  # as looked up above
        at = _axes_at(total, score, power.value, product.name)
        if at is None or substitute(score, at) != power.value:
            return tuple(stages)
        below = Load(tensor, tuple(at.get(a.name, Var(a.name)) for a in total.axes))
        shifted[stage.name] = replace(stage, body=_replaced(stage.body, power, Unary(power.op, power.value - below)))
    first = next(n for n, s in enumerate(stages) if s.name in shifted)
    return (*stages[:first], top, *(shifted.get(s.name, s) for s in stages[first:]))


def without_sink(stages: Sequence[Stage]) -> tuple[tuple[Stage, ...], Expr | None]:
    """``stages`` without a score that stands beside those of the keys, and that score, on the axes of the maximum.

    It is ``sink`` where sums are divided by ``total + exp(sink - bound)`` instead of the total, and ``bound`` is either
    the maximum over keys or the greater one of that and ``sink``.
    """
    top = next((s for s in stages if s.reducer is Reducer.MAX), None)
    total = min((s for s in stages if s.reducer is Reducer.SUM), key=lambda s: len(s.axes), default=None)
    if top is None or total is None:
        return tuple(stages), None
    sinks: set[Expr] = set()

    def bound(e: Expr) -> Expr:
        """Return the maximum alone where ``e`` is the greater one of it and a sink."""
        for load, other in _operands(e, BinaryOp.MAX):
            if isinstance(load, Load) and load.buffer.name == top.name and not _buffers_read(other) & {top.tensor}:
                sinks.add(_on_axes(other, top, load))
                return load
        return e

    def whole(e: Expr) -> Expr:
        """Return the total alone where ``e`` is its sum with the weight of the sink."""
        for load, power in _operands(e, BinaryOp.ADD):
            if isinstance(load, Load) and load.buffer.name == total.name:
                found = _sink_of(power, top)
                if found is not None:
                    sinks.add(found)
                    totals.append(load)
                    return load
        return e

    totals: list[Load] = []
    bounded = [replace(s, body=map_expr(s.body, bound)) for s in stages]
    merged = tuple(replace(s, body=map_expr(s.body, whole)) for s in bounded)
    read = [e for s in bounded for e in walk(s.body) if isinstance(e, Load) and e.buffer.name == total.name]
    if len(sinks) != 1 or len(read) != len(totals):
        return tuple(stages), None
    return merged, sinks.pop()


def log_sum(body: Expr, top: str, total: str) -> Expr | None:
    """Return the value of an output in which the tensor ``LOG_SUM`` stands for ``log(total) + top``, the logarithm of
    the sum of the exponentials of all scores; None where ``body`` reads either elsewhere."""

    def found(e: Expr) -> Expr:
        for a, b in _operands(e, BinaryOp.ADD):
            if isinstance(a, Unary) and a.op is UnaryOp.LOG and isinstance(a.value, Load) and isinstance(b, Load):
                if (a.value.buffer.name, b.buffer.name) == (total, top):
                    return Load(LOG_SUM, ())
        return e

    value = map_expr(body, found)
    return None if {b.name for b in _buffers_read(value)} & {top, total} else value


def _sink_of(e: Expr, top: Stage) -> Expr | None:
    """Return ``sink`` where ``e`` is exp(sink - top), on the axes of the maximum."""
    if not isinstance(e, Unary) or e.op is not UnaryOp.EXP:
        return None
    difference = e.value
    if not isinstance(difference, Binary) or difference.op is not BinaryOp.SUB:
        return None
    sink, bound = difference.a, difference.b
    if not isinstance(bound, Load) or bound.buffer.name != top.name or top.tensor in _buffers_read(sink):
        return None
    return _on_axes(sink, top, bound)


def _on_axes(e: Expr, top: Stage, load: Load) -> Expr:
    """``e``, which is read beside ``load`` of the maximum, on the axes of the maximum."""
    return substitute(
        e, {i.name: Var(a.name) for i, a in zip(load.indices, top.axes, strict=True) if isinstance(i, Var)}
    )


def _operands(e: Expr, op: BinaryOp) -> Iterator[tuple[Expr, Expr]]:
    """Yield the operands of ``e`` in both orders, where it is an operation ``op``."""
    if isinstance(e, Binary) and e.op is op:
        yield e.a, e.b
        yield e.b, e.a


def _power_of(body: Expr, product: str) -> Unary | None:
    """Return the only exponential in ``body`` whose argument reads the product."""
    powers = {e for e in walk(body) if isinstance(e, Unary) and e.op in (UnaryOp.EXP, UnaryOp.EXP2)}
    reading = [e for e in powers if any(b.name == product for b in _buffers_read(e.value))]
    return reading[0] if len(reading) == 1 else None


def _axes_at(total: Stage, score: Expr, other: Expr, product: str) -> Mapping[str, Expr] | None:
    """Return where ``other``, the score of another sum, has the axes of ``total``, by the product that both read."""
    loads = [next(e for e in walk(body) if isinstance(e, Load) and e.buffer.name == product) for body in (score, other)]
    at: dict[str, Expr] = {}
    for own, theirs in zip(loads[0].indices, loads[1].indices, strict=True):
        if isinstance(own, Var):
            at[own.name] = theirs
    axes = {a.name for a in (*total.axes, *total.reduce_axes) if a.extent > 1}
    return at if axes <= set(at) else None


def _replaced(e: Expr, old: Expr, new: Expr) -> Expr:
    return map_expr(e, lambda node: new if node == old else node)


def _buffers_read(e: Expr) -> set[Buffer]:
    return {load.buffer for load in loads_of(e)}
