"""Attention whose keys and values are stored in another form than they are multiplied in.

    product[m, n] = sum over k of Q[m, k] * float16(float32(K[n, k]) * float32(S[n]))
    mixed[m, d]   = sum over n of float16(w[m, n] * T[n]) * float32(V[n, d])

A tensor stands in for each factor that is more than an element of an input of 16 bits, so that what is left is
attention as ``attention_of`` reads it. A factor of the weights that depends on the key alone (``T``) is set apart.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from ...core.dtypes import DType
from ...ir.buffer import Buffer
from ...ir.expr import Binary, BinaryOp, Cast, Expr, Load, Var, walk
from ...ir.rewrite import free_variables, fresh_name, loads_of, substitute
from ...te.inline import inline_stages
from ...te.narrow_floats import narrow_value
from ...te.workload import Reducer, Stage, Workload
from .attention import Attention, attention_of


@dataclass(frozen=True, slots=True)
class StoredAttention:
    """``attention`` with tensors that stand in for operands. ``q``, ``key`` and ``v`` are these operands in ``dtype``,
    the 16-bit float that weights are rounded to, on the axes of ``attention``. Weights are multiplied with ``factor``
    before they are rounded, if there is one."""

    attention: Attention
    dtype: DType
    q: Expr
    key: Expr
    v: Expr
    factor: Expr | None


def stored_attention_of(workload: Workload) -> StoredAttention | None:
    """``workload`` as attention whose operands are computed; None where it is none, or where weights are not
    rounded."""
    inlined = inline_stages(workload)
    reader = _Reader(inlined)
    if reader.dtype is None:
        return None
    stages = tuple(map(reader.read, inlined.stages))
    given = (*inlined.inputs, *(s.tensor for s in reader.stand_ins.values()))
    p = attention_of(replace(inlined, inputs=given, stages=stages))
    if p is None or p.weights != reader.dtype:
        return None
    q, key, v = (reader.operand(load) for load in (p.q, p.key, p.v))
    factor = reader.factor
    if factor is not None:
        at = reader.places(p.v)
        if at is None or not free_variables(factor) <= set(at):
            return None
        factor = substitute(factor, at)
    if {e.dtype for e in (q, key, v)} != {reader.dtype}:
        return None
    return StoredAttention(replace(p, inputs=workload.inputs), reader.dtype, q, key, v, factor)


class _Reader:
    """Replaces operands by stand-ins, which it collects: name -> the stage that would compute one."""

    def __init__(self, workload: Workload) -> None:
        self.inputs = {b.name for b in workload.inputs}
        self.taken = self.inputs | {s.name for s in workload.stages}
        self.stand_ins: dict[str, Stage] = {}
        self.factor: Expr | None = None
        sums = [s.body for s in workload.stages if s.reducer is Reducer.SUM]
        rounded = {
            e.type
            for body in sums
            for f in _operands(body)
            if not self._is_stored(f)
            for e in walk(f)
            if isinstance(e, Cast) and e.type.is_float and e.type.bits == 16
        }
        self.dtype = next(iter(rounded)) if len(rounded) == 1 else None

    def read(self, stage: Stage) -> Stage:
        """Return a stage on stand-ins."""
        operands = list(_operands(stage.body))
        if stage.reducer is not Reducer.SUM or len(operands) != 2:
            return stage
        weights = [f for f in operands if not self._is_stored(f)]
        found = [self._without_factor(f, stage) for f in weights]
        if len(weights) == 1 and found[0][1] is not None:
            self.factor = found[0][1]
        by_key = any(factor is not None for _, factor in found)
        replaced = dict(zip(weights, (e for e, _ in found), strict=True))
        replaced |= {f: self._stand_in(f, stage, always=by_key) for f in operands if f not in replaced}
        return replace(stage, body=replaced[operands[0]] * replaced[operands[1]])

    def operand(self, load: Load) -> Expr:
        """Return what a load of an operand stands for, on the axes of the load."""
        at = self.places(load)
        return load if at is None else substitute(self.stand_ins[load.buffer.name].body, at)

    def places(self, load: Load) -> Mapping[str, Expr] | None:
        """Return where a load of a stand-in is along the axes of its stage; None for another tensor."""
        stage = self.stand_ins.get(load.buffer.name)
        return None if stage is None else {a.name: i for a, i in zip(stage.axes, load.indices, strict=True)}

    def _is_stored(self, e: Expr) -> bool:
        return {load.buffer.name for load in loads_of(e)} <= self.inputs

    def _stand_in(self, e: Expr, stage: Stage, *, always: bool) -> Expr:
        """Return an element of what stands in for ``e``; ``e`` itself where it is an element of an input of 16 bits,
        and need not be replaced ``always``."""
        plain = isinstance(e, Cast) and isinstance(e.value, Load) and e.value.dtype == self.dtype
        value = None if self.dtype is None or (plain and not always) else narrow_value(e, self.dtype)
        if value is None:
            return e
        axes = tuple(a for a in (*stage.axes, *stage.reduce_axes) if a.name in free_variables(value))
        name = fresh_name("stored", self.taken)
        self.taken.add(name)
        tensor = Buffer(name, tuple(a.extent for a in axes), value.dtype)
        self.stand_ins[name] = Stage(tensor, axes, value)
        return Cast(Load(tensor, tuple(Var(a.name) for a in axes)), e.dtype)

    def _without_factor(self, e: Expr, stage: Stage) -> tuple[Expr, Expr | None]:
        """Return weights without a factor that is read from inputs by the key, and that factor."""
        if isinstance(e, Cast):
            weight, factor = self._without_factor(e.value, stage)
            return Cast(weight, e.type), factor
        keys = {a.name for a in stage.reduce_axes}
        if isinstance(e, Binary) and e.op is BinaryOp.MUL:
            for weight, factor in ((e.a, e.b), (e.b, e.a)):
                if self._is_stored(factor) and keys <= free_variables(factor) and not self._is_stored(weight):
                    return weight, factor
        return e, None


def _operands(e: Expr) -> Iterator[Expr]:
    """Yield the factors of a product."""
    if isinstance(e, Binary) and e.op is BinaryOp.MUL:
        yield from _operands(e.a)
        yield from _operands(e.b)
    else:
        yield e
