"""Writes scatters of single numbers on a processor, where tasks share the terms:

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
from ....ir.expr import Cast, Const, Expr, Load, Select, index, maximum, minimum
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
        self.places = -(-(problem.keys + 1) // PLACES) * PLACES
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
            batch, part = task // self.parts, task % self.parts
            own = (batch, part)
            with w.loop("vector", self.places // PLACES) as vector, w.vectorized("v", PLACES) as v:
                w.store(self.totals, (*own, vector * PLACES + v), self.how.identity[0])
            if whole:
                keys = w.allocate("keys", (CHUNK,), int32, MemoryScope.LOCAL)
                values = w.allocate("values", (CHUNK,), self.dtype, MemoryScope.LOCAL)
                with w.loop("chunk", of_part) as n:
                    chunk = part * of_part + n
                    with w.when(chunk < whole if whole % self.parts else None):
                        self._load_terms(batch, chunk * CHUNK, keys, values)
                        with w.loop("n", CHUNK) as term:
                            self._add(own, Load(keys, (term,)), self.constant or Load(values, (term,)))
            if rest:
                with w.when(equal(part, self.parts - 1) if self.parts > 1 else None), w.loop("last", rest) as n:
                    self._add(own, *self._term(batch, whole * CHUNK + n))

    def _load_terms(self, batch: Expr, first: Expr, keys: Buffer, values: Buffer) -> None:
        """The simplifier leaves out values that nobody reads, because all are the same constant."""
        w, lanes = self.w, self.lanes
        for target, which in ((keys, 0), (values, 1)):
            with w.loop("vector", CHUNK // lanes) as vector, w.vectorized("v", lanes) as v:
                found = self._term(batch, first + (vector * lanes + v))[which]
                w.store(target, (vector * lanes + v,), found)

    def _term(self, batch: Expr, term: Expr) -> tuple[Expr, Expr]:
        """Return the place of a term, and its value."""
        scatter = self.p.scatter
        here: Mapping[str, Expr] = {
            **{a.name: index(0) for a in scatter.rest},
            **axis_indices(batch, scatter.batch),
            **axis_indices(term, scatter.stage.reduce_axes),
        }
        key = Cast(scalar_at(scatter.key, here), int32)
        place = Select(scalar_at(scatter.is_inside, here), key, Cast(index(self.p.keys), int32))
        number = minimum(maximum(scalar_at(scatter.key, here), index(0)), index(self.p.keys - 1))
        value = scalar_at(scatter.term, {**here, **axis_indices(number, scatter.keys)})
        return place, cast(value, self.dtype)

    def _add(self, own: tuple[Expr, ...], place: Expr, value: Expr) -> None:
        at = (*own, minimum(maximum(Cast(place, INDEX), index(0)), index(self.p.keys)))
        self.w.store(self.totals, at, self.how.combine([Load(self.totals, at)], [value])[0])

    def _write_outputs(self) -> None:
        w, p = self.w, self.p
        keys = -(-p.keys // self.tasks)
        with w.loop("range", p.batches * self.tasks, LoopKind.PARALLEL) as task, w.loop("key", keys) as n:
            batch, key = task // self.tasks, task % self.tasks * keys + n
            with w.when(key < p.keys if p.keys % keys else None):
                inside = minimum(key, index(p.keys - 1))
                total = w.allocate("total", (), self.dtype, MemoryScope.REGISTER)
                w.store(total, (), Load(self.totals, (batch, index(0), inside)))
                with w.loop("part", self.parts - 1) if self.parts > 1 else w.scope() as part:
                    if part is not None:
                        other = Load(self.totals, (batch, part + 1, inside))
                        w.store(total, (), self.how.combine([Load(total, ())], [other])[0])
                here = {
                    **{a.name: index(0) for a in p.scatter.rest},
                    **axis_indices(batch, p.scatter.batch),
                    **axis_indices(inside, p.scatter.keys),
                }
                result = self.how.result([Load(total, ())])
                for output in p.outputs:
                    place = tuple(here[a.name] for a in p.scatter.stage.axes)
                    w.store(output.tensor, place, scalar_at(p.body_of(output, result), here))
