"""Writes scatters on a processor. A task has a range of elements and a part of their columns:

    parallel for each task:
      for each element of its range:  totals = the identity
      for each term:
        if its element is in the range:
          for each vector of columns:  totals[element] = totals[element] combined with the term
      for each element of its range:  outputs = f(totals)

Nobody else writes what a task has, and terms come in their order, so that results are the same bits every time.
Where the output is the reduction itself, it holds the totals.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

from ....ir.buffer import Buffer
from ....ir.expr import Expr, Load, index, maximum, minimum
from ....ir.stmt import Kernel, LoopKind
from ....te.workload import Axis
from ...loop_nest.nest import KERNEL_NAME
from ...problems.scatter import ScatterProblem
from ...space.columns import Ints
from ...tile.delinearize import axis_indices
from ...tile.names import FreshNameWriter
from ...tile.stage_body import scalar_at

N = TypeVar("N", int, Ints)


@dataclass(frozen=True, eq=False)
class CpuScatterSizes(Generic[N]):
    """The sizes of one setting (ints) or of many (columns). ``key_parts`` ranges of ``keys`` elements cover those of a
    batch; ``column_parts`` parts of ``vectors`` vectors of ``vector`` columns are those of an element. Where
    ``term_parts`` is not 0, so many tasks share the terms of a batch instead. ``tasks`` counts those of all batches."""

    vector: N
    key_parts: N
    column_parts: N
    term_parts: N
    keys: N
    vectors: N
    tasks: N


def lower_scatter(problem: ScatterProblem, sizes: CpuScatterSizes[int]) -> Kernel:
    """Return the kernel of one setting."""
    return _ScatterWriter(problem, sizes).kernel()


def totals_of(problem: ScatterProblem) -> Buffer | None:
    """Return the output that is the reduction itself; None where there is none."""
    stage, dtype = problem.scatter.stage, problem.accumulation.accumulator_dtype
    own = [o.tensor for o in problem.outputs if isinstance(o.body, Load) and o.body.buffer == stage.tensor]
    return next((tensor for tensor in own if tensor.dtype == dtype), None)


class _ScatterWriter:
    def __init__(self, problem: ScatterProblem, sizes: CpuScatterSizes[int]) -> None:
        self.p, self.s, self.w = problem, sizes, FreshNameWriter(problem.names)
        self.stored = totals_of(problem)
        shape, dtype = problem.scatter.stage.tensor.shape, problem.accumulation.accumulator_dtype
        self.totals = self.stored or Buffer(self.w.fresh("totals"), shape, dtype)

    def kernel(self) -> Kernel:
        p, s, w = self.p, self.s, self.w
        workspace = () if self.stored is not None else (self.totals,)
        with w.loop("task", s.tasks, LoopKind.PARALLEL) as task:
            owners, part = task // s.column_parts, task % s.column_parts
            batch, first = owners // s.key_parts, owners % s.key_parts * s.keys
            own = axis_indices(batch, p.scatter.batch)
            with self._elements(first) as key:
                self._set(own, key, part)
            self._add_terms(own, first, part)
            with self._elements(first) as key:
                self._write_outputs(own, key, part)
        outputs = tuple(dict.fromkeys(p.workload.output_buffers))
        return Kernel(KERNEL_NAME, p.workload.inputs, outputs, workspace, w.finish())

    @contextmanager
    def _elements(self, first: Expr) -> Iterator[Expr]:
        """Write what follows for each element of a range."""
        p, s, w = self.p, self.s, self.w
        with w.loop("key", s.keys) as n, w.when(None if p.keys % s.keys == 0 else first + n < p.keys):
            yield first + n

    @contextmanager
    def _columns(self, own: Mapping[str, Expr], key: Expr, part: Expr) -> Iterator[dict[str, Expr]]:
        """Write what follows for each column of a part; yields the axes of the element there."""
        p, s, w = self.p, self.s, self.w
        at = {**own, **axis_indices(key, p.scatter.keys)}
        with w.loop("vector", s.vectors) as vector:
            lane = p.lane_axis
            rest = [Axis(a.name, a.extent // s.vector) if a == lane else a for a in p.scatter.rest]
            at |= axis_indices(part * s.vectors + vector, rest)
            if lane is None or s.vector == 1:
                yield at
                return
            with w.vectorized("v", s.vector) as v:
                yield {**at, lane.name: at[lane.name] * s.vector + v}

    def _place(self, at: Mapping[str, Expr]) -> tuple[Expr, ...]:
        return tuple(at[a.name] for a in self.p.scatter.stage.axes)

    def _set(self, own: Mapping[str, Expr], key: Expr, part: Expr) -> None:
        (identity,) = self.p.accumulation.identity
        with self._columns(own, key, part) as at:
            self.w.store(self.totals, self._place(at), identity)

    def _add_terms(self, own: Mapping[str, Expr], first: Expr, part: Expr) -> None:
        p, s, w = self.p, self.s, self.w
        with ExitStack() as loops:
            terms = {a.name: loops.enter_context(w.loop(a.name, a.extent)) for a in p.scatter.stage.reduce_axes}
            here = {**own, **terms, **{a.name: index(0) for a in p.scatter.rest}}
            number = scalar_at(p.scatter.key, here)
            inside = scalar_at(p.scatter.is_inside, here)
            loops.enter_context(w.when(inside, number >= first, number < first + s.keys))
            key = minimum(maximum(number, index(0)), index(p.keys - 1))  # which the verifier can see
            with self._columns(own, key, part) as at:
                value = scalar_at(p.scatter.term, {**at, **terms})
                total = Load(self.totals, self._place(at))
                w.store(self.totals, self._place(at), p.accumulation.accumulate([total], value, index(0))[0])

    def _write_outputs(self, own: Mapping[str, Expr], key: Expr, part: Expr) -> None:
        p, w, outputs = self.p, self.w, [o for o in self.p.outputs if o.tensor != self.stored]
        if not outputs:
            return
        with self._columns(own, key, part) as at:
            result = p.accumulation.result([Load(self.totals, self._place(at))])
            for output in outputs:
                w.store(output.tensor, self._place(at), scalar_at(p.body_of(output, result), at))
