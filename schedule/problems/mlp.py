"""Multilayer perceptrons: products whose rows are worked on as a whole, normalised, or multiplied again.

accumulator[m, n] = sum over k of A[m, k] * B[n, k]     a layer
mean[m]           = sum over n of accumulator[m, n]     a row statistic: a reduction of a row of accumulators
Y[m, n]           = accumulator[m, n] - mean[m] / N     an output, or the A of the next layer
"""

from collections.abc import Mapping
from dataclasses import dataclass

from ...core.dtypes import DType, float32
from ...ir.buffer import Buffer
from ...ir.expr import BinaryOp, Cast, Expr, Load, Var
from ...ir.rewrite import free_variables, loads_of, substitute
from ...te.contraction import contraction_of
from ...te.inline import inline_stages
from ...te.workload import Axis, Stage, Workload
from ..loop_nest.nest import COMBINE
from .gemm import Operand, Result, element_form, operand_of

COPY_BYTES = 16
"""How many bytes one asynchronous copy brings."""


@dataclass(frozen=True, slots=True)
class RowStatistic:
    """``tensor[m] = combine over n of body``. The body reads the layer's accumulators at (m, n), and earlier statistics
    at m."""

    tensor: Buffer
    combine: BinaryOp
    body: Expr


@dataclass(frozen=True, slots=True)
class MlpLayer:
    """``accumulator[m, n] = sum over k of A[m, k] * B[n, k]``. ``value`` is the A of the next layer, an expression on
    ``m`` and ``n`` that reads the accumulators and the statistics of this one; None in the last layer."""

    accumulator: Buffer
    b: Operand
    n: Axis
    k: Axis
    statistics: tuple[RowStatistic, ...]
    value: Expr | None

    @property
    def own(self) -> frozenset[str]:
        """The names of the tensors that this layer computes."""
        return frozenset((self.accumulator.name, *(s.tensor.name for s in self.statistics)))


@dataclass(frozen=True, slots=True)
class Mlp:
    """``a`` goes through ``layers``, and ``results`` are the outputs of the last one. All expressions are on the
    variables ``m``, ``n`` and ``k``."""

    inputs: tuple[Buffer, ...]
    m: Axis
    a: Operand
    layers: tuple[MlpLayer, ...]
    results: tuple[Result, ...]

    @property
    def dtype(self) -> DType:
        """The element type of the operands of all products."""
        assert self.a.load is not None
        return self.a.load.buffer.dtype

    @property
    def names(self) -> set[str]:
        """The names that are taken."""
        taken = {b.name for b in self.inputs} | {r.tensor.name for r in self.results} | {"m", "n", "k"}
        return taken.union(*(layer.own for layer in self.layers))


def column_vectors_of(p: Mlp, layer: MlpLayer) -> tuple[Load, ...]:
    """Return the loads of vectors along ``n`` (bias, scale) that asynchronous copies can bring to shared memory, where
    all rows read them."""
    made = tuple(r.value for r in p.results) if layer.value is None else (layer.value,)
    found: dict[Load, None] = {}
    for load in (e for body in (*(s.body for s in layer.statistics), *made) for e in loads_of(body)):
        form, size = element_form(load), load.buffer.dtype.bytes
        plain = load.buffer in p.inputs and load.mask is None and dict(form.terms) == {Var("n"): 1}
        whole = size in (2, 4) and form.constant * size % COPY_BYTES == layer.n.extent * size % COPY_BYTES == 0
        if plain and whole:
            found[load] = None
    return tuple(found)


def mlp_of(workload: Workload) -> Mlp | None:
    """``workload`` as layers: products, reductions of their rows, and outputs that are pointwise functions of the last
    ones. None where it is something else, or a single product without statistics."""
    stages = inline_stages(workload).stages
    for transposed in (False, True):
        found = _MlpReader(workload, transposed).read(stages)
        if found is not None and (len(found.layers) > 1 or found.layers[0].statistics):
            return found
    return None


class _MlpReader:
    """Goes through the stages in order. ``transposed``: A is the right factor of the first product."""

    def __init__(self, workload: Workload, transposed: bool) -> None:
        self.workload, self.transposed = workload, transposed
        self.read_at: dict[str, tuple[Expr, ...]] = {}
        """The indices at which the tensors of the layer under way are read."""
        self.m: Axis | None = None
        self.a: Operand | None = None
        self.layers: list[MlpLayer] = []
        self.results: list[Result] = []

    def read(self, stages: tuple[Stage, ...]) -> Mlp | None:
        for stage in stages:
            is_output = stage.name in self.workload.outputs
            if stage.reducer is None:
                matches = is_output and self._output(stage)
            elif is_output or self.results or stage.tensor.dtype != float32:
                matches = False
            elif len(stage.axes) == 1:
                matches = self._statistic(stage)
            else:
                matches = self._product(stage)
            if not matches:
                return None
        if self.m is None or self.a is None or not self.results:
            return None
        return Mlp(self.workload.inputs, self.m, self.a, tuple(self.layers), tuple(self.results))

    def _product(self, stage: Stage) -> bool:
        found = contraction_of(stage)
        if found is None or found.batch or len(stage.axes) != 2 or len(stage.reduce_axes) != 1:
            return False
        if not len(found.rows) == len(found.columns) == len(found.shared) == 1:
            return False
        rows, columns, left, right = found.rows[0], found.columns[0], found.left, found.right
        inner = bool(self.layers) and not any(e.buffer.name in self.read_at for e in loads_of(left))
        if inner or (not self.layers and self.transposed):
            rows, columns, left, right = columns, rows, right, left
        at: dict[str, Expr] = {rows: Var("m"), columns: Var("n"), found.shared[0]: Var("k")}
        extents = {a.name: a.extent for a in (*stage.axes, *stage.reduce_axes)}
        m, n, k = (Axis(new, extents[old]) for new, old in (("m", rows), ("n", columns), ("k", found.shared[0])))
        if self.layers:
            before = self.layers[-1]
            value = _narrow(substitute(left, {**at, found.shared[0]: Var("n")}))
            if (m, k.extent) != (self.m, before.n.extent) or not self._reads(value) or "k" in free_variables(value):
                return False
            self.layers[-1] = MlpLayer(before.accumulator, before.b, before.n, before.k, before.statistics, value)
        else:
            self.m, self.a = m, operand_of(substitute(left, at), "m")
        self.layers.append(MlpLayer(stage.tensor, operand_of(substitute(right, at), "n"), n, k, (), None))
        self.read_at = {stage.name: tuple(at[a.name] for a in stage.axes)}
        return not any(e.buffer.name not in self._inputs for e in loads_of(right))

    def _statistic(self, stage: Stage) -> bool:
        if not self.layers or len(stage.reduce_axes) != 1 or stage.reducer not in COMBINE:
            return False
        layer, (axis,), (over,) = self.layers[-1], stage.axes, stage.reduce_axes
        if self.m is None or (axis.extent, over.extent) != (self.m.extent, layer.n.extent):
            return False
        body = substitute(stage.body, {axis.name: Var("m"), over.name: Var("n")})
        if not self._reads(body):
            return False
        statistics = (*layer.statistics, RowStatistic(stage.tensor, COMBINE[stage.reducer], body))
        self.layers[-1] = MlpLayer(layer.accumulator, layer.b, layer.n, layer.k, statistics, None)
        self.read_at[stage.name] = (Var("m"),)
        return True

    def _output(self, stage: Stage) -> bool:
        if not self.layers or self.m is None or len(stage.axes) != 2:
            return False
        total = self.layers[-1].accumulator
        load = next((e for e in loads_of(stage.body) if e.buffer.name == total.name), None)
        if load is None:
            return False
        at: Mapping[str, Expr] = {
            i.name: here for i, here in zip(load.indices, self.read_at[total.name], strict=True) if isinstance(i, Var)
        }
        if {a.name for a in stage.axes} != set(at):
            return False
        value = substitute(stage.body, at)
        self.results.append(Result(stage.tensor, tuple(at[a.name] for a in stage.axes), value))
        return self._reads(value)

    @property
    def _inputs(self) -> set[str]:
        return {b.name for b in self.workload.inputs}

    def _reads(self, body: Expr) -> bool:
        """Return whether ``body`` reads the accumulators of the layer under way, and everything but inputs at (m, n) or
        m."""
        loads = list(loads_of(body))
        matches = all(e.buffer.name in self._inputs or self.read_at.get(e.buffer.name) == e.indices for e in loads)
        return matches and any(e.buffer.name == self.layers[-1].accumulator.name for e in loads)


def _narrow(value: Expr) -> Expr:
    """``value`` without a cast to float32 of what has 16 bits."""
    return value.value if isinstance(value, Cast) and value.dtype == float32 and value.value.dtype.bits == 16 else value
