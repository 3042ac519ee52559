"""Random workloads: valid, small, odd. Every layer is tried on them, so they reach into the corners: extents of 1 and
primes, zero dimensions, transposed, strided, reversed, shifted and guarded reads, quotients and remainders of axes,
windows, broadcasts, reductions over one or two axes, selects on axes and on data, casts between all dtypes, wrapping
integers, several outputs, outputs read by later stages, inputs that nobody reads, floats of 8 bits, precisions.

They are numerically tame: floats stay far from overflow and from the poles of functions, and only exact values (loads
and extremes of them) are compared, rounded to whole numbers or cast to integers: a right kernel meets the tolerance.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from math import prod

import numpy as np

from tilewright.core.dtypes import DTYPES, INPUT_DTYPES, DType, int64
from tilewright.core.streams import stream
from tilewright.ir.buffer import Buffer
from tilewright.ir.expr import Expr, Load, walk
from tilewright.ir.rewrite import map_loads
from tilewright.te import build as te
from tilewright.te.check import check
from tilewright.te.workload import Reducer, Workload

MAX_POINTS = 3000
"""Points of a stage, reduction axes included."""

_EXTENTS = (1, 1, 2, 3, 4, 5, 7, 8, 11, 13, 16, 17, 23, 31, 32, 37)
_FLOATS = ("float32", "float32", "float32", "float64", "float16", "bfloat16")
_INTEGERS = ("int32", "int8", "int64", "uint8")
_PRECISIONS = ("tf32", "bf16x6")
_LARGEST = 64.0
"""Magnitude beyond which floats are scaled down."""


@dataclass(frozen=True)
class _Value:
    """An expression with a bound on its magnitude; ``exact``: no rounding went into it."""

    expr: Expr
    magnitude: float
    exact: bool

    @property
    def dtype(self) -> DType:
        return self.expr.dtype


@dataclass(frozen=True)
class _Known:
    """A tensor that can be read, with the same two facts about its elements."""

    tensor: te.Tensor
    magnitude: float
    exact: bool


@dataclass
class _Stage:
    """The axes that an expression may use while it is being written."""

    axes: list[tuple[Expr, int]]
    reads: int = 0


@dataclass
class _Writer:
    draw: np.random.Generator
    floating: str
    inputs: list[_Known] = field(default_factory=list)
    stages: list[_Known] = field(default_factory=list)

    def chance(self, probability: float) -> bool:
        return bool(self.draw.random() < probability)

    def integer(self, low: int, high: int) -> int:
        return int(self.draw.integers(low, high + 1))

    def choice(self, things: "list[str] | tuple[str, ...]") -> str:
        return things[self.integer(0, len(things) - 1)]

    # Shapes and reads

    def shape(self, limit: int) -> tuple[int, ...]:
        """Up to three extents of at most ``limit`` points."""
        rank = self.integer(0, 3) if self.chance(0.3) else self.integer(1, 3)
        extents: list[int] = []
        for _ in range(rank):
            room = limit // prod(extents)
            fitting = [e for e in _EXTENTS if e <= room]
            extents.append(fitting[self.integer(0, len(fitting) - 1)])
        return tuple(extents)

    def load(self, stage: _Stage) -> _Value:
        """An element of an earlier stage, a known input or a new one."""
        stage.reads += 1
        if self.stages and self.chance(0.6):
            known = self.stages[self.integer(0, len(self.stages) - 1)]
            return self.known(stage, known)
        if self.inputs and self.chance(0.4):
            return self.known(stage, self.inputs[self.integer(0, len(self.inputs) - 1)])
        return self.fresh(stage)

    def fresh(self, stage: _Stage) -> _Value:
        """A new input, of a shape that fits the indices drawn for it."""
        indices, extents = [], []
        order = self.draw.permutation(len(stage.axes))[: 3 if self.chance(0.8) else 1]
        for n in order:
            axis, extent = stage.axes[int(n)]
            index, last = self.index(axis, extent)
            if self.chance(0.2) and stage.axes:
                other, other_extent = stage.axes[self.integer(0, len(stage.axes) - 1)]
                index, last = index + other, last + other_extent - 1
            indices.append(index)
            extents.append(last + 1 + (self.integer(0, 2) if self.chance(0.3) else 0))
        if prod(extents) > 4 * MAX_POINTS:
            indices, extents = indices[:1], extents[:1]
        dtype = self.floating if self.chance(0.7) else self.choice((*_FLOATS, *_INTEGERS, "bool"))
        tensor = te.placeholder(extents, dtype)
        magnitude = {"f": 1.0, "i": 1000.0, "u": 255.0, "b": 1.0}[dtype[0]]
        known = _Known(tensor, 128.0 if dtype == "int8" else magnitude, True)
        self.inputs.append(known)
        return _Value(tensor[tuple(indices)], known.magnitude, True)

    def index(self, axis: Expr, extent: int) -> tuple[Expr, int]:
        """A function of one axis with its greatest value; the least is not below 0."""
        kind = self.integer(0, 9)
        if kind == 0:
            return axis * 2, 2 * (extent - 1)
        if kind == 1:
            return axis + 3, extent + 2
        if kind == 2:
            return (extent - 1) - axis, extent - 1
        if kind == 3 and extent > 1:
            return axis // 3, (extent - 1) // 3
        if kind == 4 and extent > 4:
            return (axis + 1) % 4, 3
        return axis, extent - 1

    def known(self, stage: _Stage, known: _Known) -> _Value:
        """An element of a tensor whose shape is given: guarded where the index may leave it."""
        tensor = known.tensor
        indices: list[Expr | int] = []
        guards: list[Expr] = []
        for extent in tensor.shape:
            fitting = [(a, e) for a, e in stage.axes if e <= extent]
            if not fitting or self.chance(0.1):
                loose = [a for a, e in stage.axes if e > extent]
                if loose and self.chance(0.5):
                    shift = self.integer(0, 2)
                    index = loose[self.integer(0, len(loose) - 1)] - shift
                    guards += [index >= 0, index < extent]
                    indices.append(index)
                else:
                    indices.append(self.integer(0, extent - 1))
                continue
            axis, own = fitting[self.integer(0, len(fitting) - 1)]
            stride = 2 if 2 * (own - 1) < extent and self.chance(0.2) else 1
            index = axis * stride if stride > 1 else axis
            room = extent - 1 - stride * (own - 1)
            indices.append(index + self.integer(1, room) if room and self.chance(0.4) else index)
        loaded: Expr = tensor[tuple(indices)]
        if guards:
            loaded = te.select(te.all_of(*guards), loaded, te.constant(tensor.dtype.is_bool and False, tensor.dtype))
        return _Value(loaded, known.magnitude, known.exact)

    # Expressions

    def value(self, stage: _Stage, dtype: str, depth: int) -> _Value:
        """An expression of ``dtype``."""
        wanted = DTYPES[dtype]
        if wanted.is_bool:
            return _Value(self.condition(stage, depth), 1.0, True)
        if depth == 0 or self.chance(0.15):
            return self.leaf(stage, wanted)
        if self.chance(0.12):
            a, b = self.value(stage, dtype, depth - 1), self.value(stage, dtype, depth - 1)
            chosen = te.select(self.condition(stage, 1), a.expr, b.expr)
            return _Value(chosen, max(a.magnitude, b.magnitude), a.exact and b.exact)
        return self.float_operation(stage, dtype, depth) if wanted.is_float else self.int_operation(stage, dtype, depth)

    def leaf(self, stage: _Stage, wanted: DType) -> _Value:
        if stage.reads and self.chance(0.15):
            number = self.integer(-8, 8) / 4 if wanted.is_float else self.integer(0, 7)
            return _Value(te.constant(number, wanted), 2.0 if wanted.is_float else 7.0, True)
        if stage.axes and self.chance(0.05):
            axis, extent = stage.axes[self.integer(0, len(stage.axes) - 1)]
            return _Value(te.cast(axis, wanted) * (0.125 if wanted.is_float else 1), float(extent), extent <= 128)
        return self.converted(self.load(stage), wanted)

    def converted(self, v: _Value, wanted: DType) -> _Value:
        """``v`` in another dtype; floats become integers only when exact, after a scaling that is exact too."""
        given = v.dtype
        if given == wanted:
            return v
        if wanted.is_integer:
            if not given.is_float:
                return _Value(te.cast(v.expr, wanted), _magnitude(wanted), True)
            if not v.exact:
                return _Value(te.constant(3, wanted), 3.0, True)
            return _Value(te.cast(v.expr * 16.0, wanted), 255.0, True)
        if given.is_integer:
            e = v.expr % 61 if v.magnitude > 100 else v.expr  # keeps half floats exact, and their products finite
            return _Value(te.cast(e, wanted) * 0.125, 16.0, True)
        exact = v.exact and (given.is_bool or given.bits < wanted.bits)
        return _Value(te.cast(v.expr, wanted), v.magnitude, exact)

    def float_operation(self, stage: _Stage, dtype: str, depth: int) -> _Value:
        a = self.value(stage, dtype, depth - 1)
        if self.chance(0.5):
            b = self.value(stage, dtype, depth - 1)
            both = a.magnitude + b.magnitude
            name = self.choice(("add", "sub", "mul", "mul", "max", "min", "div"))
            if name == "max":
                return _Value(te.maximum(a.expr, b.expr), both, a.exact and b.exact)
            if name == "min":
                return _Value(te.minimum(a.expr, b.expr), both, a.exact and b.exact)
            if name == "add":
                return self.tamed(a.expr + b.expr, both)
            if name == "sub":
                return self.tamed(a.expr - b.expr, both)
            if name == "div":
                return self.tamed(a.expr / (te.absolute(b.expr) + 0.5), 2 * a.magnitude)
            return self.tamed(a.expr * b.expr, a.magnitude * b.magnitude)
        if a.exact and self.chance(0.1):
            rounding = (te.floor, te.ceil, te.rint)[self.integer(0, 2)]
            return _Value(rounding(a.expr), a.magnitude + 1, True)
        functions: dict[str, tuple[Callable[[Expr], Expr], float]] = {
            "exp": (lambda e: te.exp(te.minimum(e, 2.0)), 8.0),
            "log": (lambda e: te.log(te.absolute(e) + 0.5), 6.0),
            "tanh": (te.tanh, 1.0),
            "erf": (te.erf, 1.0),
            "sqrt": (lambda e: te.sqrt(te.absolute(e) + 0.25), 9.0),
            "rsqrt": (lambda e: te.rsqrt(te.absolute(e) + 0.25), 2.0),
            "sin": (te.sin, 1.0),
            "cos": (te.cos, 1.0),
            "sigmoid": (te.sigmoid, 1.0),
            "power": (lambda e: te.power(te.absolute(te.tanh(e)) + 0.5, 1.5), 2.0),
            "negative": (lambda e: -e, a.magnitude),
            "absolute": (te.absolute, a.magnitude),
        }
        name = self.choice(tuple(functions))
        function, magnitude = functions[name]
        return _Value(function(a.expr), magnitude, a.exact and name in ("negative", "absolute"))

    def tamed(self, e: Expr, magnitude: float) -> _Value:
        while magnitude > _LARGEST:
            e, magnitude = e * 0.0625, magnitude / 16
        return _Value(e, magnitude, False)

    def int_operation(self, stage: _Stage, dtype: str, depth: int) -> _Value:
        a = self.value(stage, dtype, depth - 1)
        b = self.value(stage, dtype, depth - 1)
        operations: dict[str, Callable[[], Expr]] = {
            "add": lambda: a.expr + b.expr,
            "sub": lambda: a.expr - b.expr,
            "mul": lambda: a.expr * b.expr,
            "max": lambda: te.maximum(a.expr, b.expr),
            "min": lambda: te.minimum(a.expr, b.expr),
            "floordiv": lambda: a.expr // 3,
            "mod": lambda: a.expr % 7,
            "negative": lambda: -a.expr,
            "absolute": lambda: te.absolute(a.expr),
        }
        return _Value(operations[self.choice(tuple(operations))](), _magnitude(DTYPES[dtype]), True)

    def condition(self, stage: _Stage, depth: int) -> Expr:
        """A bool: of axes, or of exact values."""
        if depth > 0 and self.chance(0.3):
            a, b = self.condition(stage, depth - 1), self.condition(stage, depth - 1)
            kind = self.integer(0, 2)
            return te.negated(a) if kind == 0 else te.all_of(a, b) if kind == 1 else te.any_of(a, b)
        if stage.axes and self.chance(0.6):
            axis, extent = stage.axes[self.integer(0, len(stage.axes) - 1)]
            other, _ = stage.axes[self.integer(0, len(stage.axes) - 1)]
            kind = self.integer(0, 3)
            if kind == 0:
                return axis < self.integer(0, extent)
            if kind == 1:
                return other * 2 >= axis + 1
            return te.equal(axis % 2, 0) if kind == 2 else te.not_equal(axis, other)
        read = self.load(stage)
        if read.dtype.is_bool:
            return read.expr
        if not read.exact:
            return te.negated(te.constant(False, "bool"))
        return read.expr > 0 if self.chance(0.5) else te.equal(read.expr, self.integer(0, 2))

    # Stages

    def plain(self) -> None:
        shape = self.shape(MAX_POINTS)
        dtype = self.dtype(booleans=True)
        facts: list[_Value] = []

        def body(*axes: Expr) -> Expr:
            value = self.value(_Stage(list(zip(axes, shape, strict=True))), dtype, self.integer(0, 3))
            facts.append(value)
            return value.expr

        tensor = te.compute(shape, body)
        self.stages.append(_Known(tensor, facts[0].magnitude, facts[0].exact))

    def reduction(self) -> None:
        shape = self.shape(MAX_POINTS // 8)
        dtype = self.dtype(booleans=False)
        over = [te.reduce_axis(e) for e in self.shape(MAX_POINTS // prod(shape)) or (self.integer(1, 7),)][:2]
        length = prod(a.extent for a in over)
        kind = self.integer(0, 3)
        facts: list[_Value] = []

        def body(*axes: Expr) -> te.Reduction:
            known: list[tuple[Expr, int]] = list(zip(axes, shape, strict=True))
            stage = _Stage(known + [(a, a.extent) for a in over])
            value = self.value(stage, dtype, self.integer(0, 2))
            if kind <= 1 and self.chance(0.6):
                other = self.value(stage, dtype, 1)
                value = _Value(value.expr * other.expr, value.magnitude * other.magnitude, False)
            if kind > 1:
                facts.append(value)
                return (te.max if kind == 2 else te.min)(value.expr, axis=over)
            if value.dtype.is_float:
                value = self.tamed(value.expr, value.magnitude)
            scaled = value.expr * (1.0 / 16) if value.dtype.is_float and length > 16 else value.expr
            facts.append(_Value(scaled, value.magnitude * max(length / 16, 16.0), not value.dtype.is_float))
            return te.sum(scaled, axis=over)

        tensor = te.compute(shape, body)
        self.stages.append(_Known(tensor, facts[0].magnitude, facts[0].exact))

    def dtype(self, *, booleans: bool) -> str:
        if self.chance(0.7):
            return self.floating
        return self.choice((*_FLOATS, *_INTEGERS, "bool") if booleans else (*_FLOATS, *_INTEGERS))


def _magnitude(dtype: DType) -> float:
    return 128.0 if dtype.bits == 8 else 2.0**40


@cache
def random_workload(seed: int) -> Workload:
    """The random workload numbered ``seed``: 1 to 4 stages, checked."""
    draw = stream(seed, "random_workload")
    writer = _Writer(draw, _FLOATS[int(draw.integers(0, len(_FLOATS)))])
    for _ in range(writer.integer(1, 4)):
        if writer.chance(0.45):
            writer.reduction()
        else:
            writer.plain()
    read = _read_by_stages(writer)
    outputs = [s.tensor for s in writer.stages if s.tensor not in read or writer.chance(0.25)]
    inputs = [i.tensor for i in writer.inputs]
    if writer.chance(0.1):
        inputs.append(te.placeholder((3,), "float32", "unread"))
    precision = _PRECISIONS[seed % 10 // 2] if seed % 10 < 2 * len(_PRECISIONS) else "ieee"
    workload = te.workload(outputs, inputs=inputs, precision=precision)
    return _with_narrow_inputs(workload, "float8_e4m3fn" if seed % 2 else "float8_e5m2") if seed % 3 == 0 else workload


def _with_narrow_inputs(workload: Workload, dtype: str) -> Workload:
    """``workload`` with floats of 8 bits for inputs of 16-bit floats, which are exact in those."""
    inputs = {t.name: t for t in workload.inputs}
    for t in workload.inputs:
        if t.dtype.name in ("float16", "bfloat16"):
            inputs[t.name] = replace(t, dtype=INPUT_DTYPES[dtype])

    def narrowed(load: Load) -> Expr:
        tensor = inputs.get(load.buffer.name, load.buffer)
        return load if tensor == load.buffer else te.cast(Load(tensor, load.indices), load.dtype)

    stages = tuple(replace(s, body=map_loads(s.body, narrowed)) for s in workload.stages)
    return check(replace(workload, inputs=tuple(inputs.values()), stages=stages))


def _read_by_stages(writer: _Writer) -> set[te.Tensor]:
    found: set[te.Tensor] = set()
    for known in writer.stages:
        found.update(te.reads(known.tensor))
    return found


def other_reducers(workload: Workload) -> Workload | None:
    """``workload`` with products for sums of integers and positions for extremes along one axis, in the stages that no
    other reads; None where there is no such stage."""
    read = {e.buffer.name for s in workload.stages for e in walk(s.body) if isinstance(e, Load)}
    stages = []
    for s in workload.stages:
        new = s
        if s.name not in read and s.reducer is Reducer.SUM and s.tensor.dtype.is_integer:
            new = replace(s, reducer=Reducer.PROD)
        elif s.name not in read and s.reducer in (Reducer.MAX, Reducer.MIN) and len(s.reduce_axes) == 1:
            finds = Reducer.ARGMAX if s.reducer is Reducer.MAX else Reducer.ARGMIN
            new = replace(s, reducer=finds, tensor=Buffer(s.name, s.tensor.shape, int64))
        stages.append(new)
    changed = replace(workload, stages=tuple(stages))
    return None if changed == workload else check(changed)
