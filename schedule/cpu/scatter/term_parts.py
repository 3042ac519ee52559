"""Writes scatters of a few numbers each on a processor, where tasks share the terms:

    parallel for each task:
      own totals = the identity
      for each chunk of its terms:
        for each vector of terms:  keys, values = of these terms          # the place behind the last one for no element
        for each term:  own totals[key] = own totals[key] combined with the value
    parallel for each range of elements:
      outputs = f(own totals of all tasks, combined in their order)

No term asks whether it is the task's own, which a processor would guess wrong half of the time.
"""

from collections.abc import Mapping

from ....core.dtypes import INDEX, int32
from ....ir.buffer import Buffer, MemoryScope
from ....ir.expr import Cast, Const, Expr, Load, Select, const, index, maximum, minimum
from ....ir.simplify import simplify
from ....ir.stmt import Kernel, LoopKind
from ....te.functions import cast, equal
from ...loop_nest.nest import KERNEL_NAME
from ...problems.scatter import ScatterProblem
from ...tile.delinearize import axis_indices
from ...tile.names import FreshNameWriter
from ...tile.stage_body import scalar_at

CHUNK = 256
"""Terms whose keys and values are computed before the first is added."""
PLACES = 16
"""Totals of a task begin at multiples of so many, and those of a range of elements, too."""


def lower_term_parts(problem: ScatterProblem, parts: int, lanes: int, tasks: int) -> Kernel:
    """Return a kernel in which ``parts`` tasks share the terms of a batch, and ``tasks`` write the outputs of all
    batches. Keys and values of ``lanes`` terms are computed at once, which divides ``CHUNK``."""
    return _TermPartsWriter(problem, parts, lanes, tasks).kernel()


class _TermPartsWriter:
    def __init__(self, problem: ScatterProblem, parts: int, lanes: int, tasks: int) -> None:
        self.p, self.parts, self.tasks = problem, parts, tasks
        self.lanes = lanes if len(problem.scatter.stage.reduce_axes) == 1 else 1
        self.w, self.how = FreshNameWriter(problem.names), problem.accumulation
        self.dtype = self.how.accumulator_dtype
        term = simplify(cast(problem.scatter.term, self.dtype), {})
        self.constant = term if isinstance(term, Const) else None
        self.places = -(-(problem.keys + 1) * problem.columns // PLACES) * PLACES
        self.totals = Buffer(self.w.fresh("totals"), (problem.batches, parts, self.places), self.dtype)

    def kernel(self) -> Kernel:
        self._add_terms()
        self._write_outputs()
        p, outputs = self.p, tuple(dict.fromkeys(self.p.workload.output_buffers))
        return Kernel(KERNEL_NAME, p.workload.inputs, outputs, (self.totals,), self.w.finish())

    def _add_terms(self) -> None:
        w, p = self.w, self.p
        whole, rest = divmod(p.terms, CHUNK)
        of_part = -(-whole // self.parts)
        with w.loop("task", p.batches * self.parts, LoopKind.PARALLEL) as task:
            own = batch, part = task // self.parts, task % self.parts
            with w.loop("vector", self.places // PLACES) as vector, w.vectorized("v", PLACES) as v:
                w.store(self.totals, (*own, vector * PLACES + v), self.how.identity[0])
            if whole:
                keys = w.allocate("keys", (CHUNK,), int32, MemoryScope.LOCAL)
                with w.loop("chunk", of_part) as n:
                    chunk = part * of_part + n
                    with w.when(chunk < whole if whole % self.parts else None):
                        self._add_chunk(own, chunk * CHUNK, keys)
            if rest:
                with w.when(equal(part, self.parts - 1) if self.parts > 1 else None), w.loop("last", rest) as n:
                    term = whole * CHUNK + n
                    self._add(own, term, self._place(batch, term))

    def _add_chunk(self, own: tuple[Expr, Expr], first: Expr, keys: Buffer) -> None:
        w, lanes = self.w, self.lanes
        with w.loop("vector", CHUNK // lanes) as vector, w.vectorized("v", lanes) as v:
            w.store(keys, (vector * lanes + v,), self._place(own[0], first + (vector * lanes + v)))
        values = None
        if self.p.columns == 1 and self.constant is None:
            values = w.allocate("values", (CHUNK,), self.dtype, MemoryScope.LOCAL)
            with w.loop("vector", CHUNK // lanes) as vector, w.vectorized("v", lanes) as v:
                w.store(values, (vector * lanes + v,), self._value(own[0], first + (vector * lanes + v), index(0)))
        with w.loop("n", CHUNK) as n:
            self._add(own, first + n, Load(keys, (n,)), None if values is None else Load(values, (n,)))

    def _at(self, batch: Expr, term: Expr, column: Expr) -> Mapping[str, Expr]:
        """Return the axes but for the keys."""
        scatter = self.p.scatter
        return {
            **axis_indices(column, scatter.rest),
            **axis_indices(batch, scatter.batch),
            **axis_indices(term, scatter.stage.reduce_axes),
        }

    def _place(self, batch: Expr, term: Expr) -> Expr:
        scatter, here = self.p.scatter, self._at(batch, term, index(0))
        inside, key = scalar_at(scatter.is_inside, here), Cast(scalar_at(scatter.key, here), int32)
        return Select(inside, key, const(self.p.keys, int32))

    def _value(self, batch: Expr, term: Expr, column: Expr) -> Expr:
        """Return the value of a term, also where it belongs to no element."""
        scatter, here = self.p.scatter, self._at(batch, term, column)
        key = minimum(maximum(scalar_at(scatter.key, here), index(0)), index(self.p.keys - 1))
        return cast(scalar_at(scatter.term, {**here, **axis_indices(key, scatter.keys)}), self.dtype)

    def _add(self, own: tuple[Expr, Expr], term: Expr, place: Expr, value: Expr | None = None) -> None:
        """Add a term to the totals of its element. ``value``: that of its one column, where it is known already."""
        w, columns = self.w, self.p.columns
        first = minimum(maximum(Cast(place, INDEX), index(0)), index(self.p.keys)) * columns
        lane = self.p.lane_axis
        is_vector = lane is not None and lane.extent == columns > 1
        with w.loop("column", columns, LoopKind.VECTORIZED if is_vector else LoopKind.SERIAL) as column:
            at, new = (*own, first + column), value or self.constant or self._value(own[0], term, column)
            w.store(self.totals, at, self.how.combine([Load(self.totals, at)], [new])[0])

    def _write_outputs(self) -> None:
        w, p = self.w, self.p
        points = p.keys * p.columns
        each = -(-points // self.tasks)
        with w.loop("range", p.batches * self.tasks, LoopKind.PARALLEL) as task, w.loop("point", each) as n:
            batch, point = task // self.tasks, task % self.tasks * each + n
            with w.when(point < points if points % each else None):
                inside = minimum(point, index(points - 1))
                total = w.allocate("total", (), self.dtype, MemoryScope.REGISTER)
                w.store(total, (), Load(self.totals, (batch, index(0), inside)))
                if self.parts > 1:
                    with w.loop("part", self.parts - 1) as part:
                        other = Load(self.totals, (batch, part + 1, inside))
                        w.store(total, (), self.how.combine([Load(total, ())], [other])[0])
                here = {
                    **axis_indices(inside % p.columns, p.scatter.rest),
                    **axis_indices(batch, p.scatter.batch),
                    **axis_indices(inside // p.columns, p.scatter.keys),
                }
                result = self.how.result([Load(total, ())])
                for output in p.outputs:
                    place = tuple(here[a.name] for a in p.scatter.stage.axes)
                    w.store(output.tensor, place, scalar_at(p.body_of(output, result), here))
