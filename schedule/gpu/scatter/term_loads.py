"""How a thread loads a few terms, with the elements that they belong to, where each term is a few numbers at most."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from ....core.dtypes import INDEX, int32
from ....ir.buffer import Buffer, MemoryScope
from ....ir.expr import Cast, Expr, Load, Select, index, logical_and, maximum, minimum
from ....ir.stmt import LoopKind
from ....te.functions import cast
from ...problems.scatter import ScatterProblem
from ...tile.delinearize import axis_indices
from ...tile.names import FreshNameWriter
from ...tile.stage_body import scalar_at


class LoadSizes(Protocol):
    """Each of ``threads`` threads of ``parts`` blocks loads ``unroll`` vectors of ``vector_width`` numbers at once."""

    @property
    def threads(self) -> int: ...
    @property
    def vector_width(self) -> int: ...
    @property
    def unroll(self) -> int: ...
    @property
    def parts(self) -> int: ...


@dataclass(frozen=True)
class TermLoads:
    """The numbers of a batch are those of all terms in all columns, the columns of a term next to each other. Blocks
    share them, each a run of vectors, which lie along the columns where there are several, else along the terms."""

    w: FreshNameWriter
    problem: ScatterProblem
    sizes: LoadSizes

    @property
    def _vectors(self) -> int:
        return self.problem.terms * self.problem.columns // self.sizes.vector_width

    def load(self, batch: Expr, part: Expr, trip: Expr, thread: Expr) -> tuple[Buffer, list[Buffer]]:
        """Return the elements along the keys of some terms, [vector, lane], -1 for none; and the values that each
        scatter reduces."""
        w, s, scatter = self.w, self.sizes, self.problem.scatter
        shape, of_part = (s.unroll, s.vector_width), -(-self._vectors // s.parts)
        keys = w.allocate("keys", shape, int32, MemoryScope.REGISTER)
        each = [(p.scatter.term, p.accumulation.accumulator_dtype) for p in self.problem.each]
        values = [w.allocate("values", shape, dtype, MemoryScope.REGISTER) for _, dtype in each]
        with w.unrolled("u", s.unroll) as u:
            place = (trip * s.unroll + u) * s.threads + thread
            exists = logical_and(place < of_part, part * of_part + place < self._vectors)
            at = self.at(batch, part, trip, thread, u)
            with w.loop("lane", s.vector_width, LoopKind.VECTORIZED) as lane:
                here = self.at_lane(at, lane)
                key = Select(
                    logical_and(exists, scalar_at(scatter.is_inside, here)), scalar_at(scatter.key, here), index(-1)
                )
                w.store(keys, (u, lane), Cast(key, int32))
            for target, (term, dtype) in zip(values, each, strict=True):
                with w.loop("lane", s.vector_width, LoopKind.VECTORIZED) as lane:
                    own = axis_indices(self.inside(Load(keys, (u, lane))), scatter.keys)
                    w.store(target, (u, lane), cast(scalar_at(term, {**self.at_lane(at, lane), **own}), dtype))
        return keys, values

    def at(self, batch: Expr, part: Expr, trip: Expr, thread: Expr, u: Expr) -> Mapping[str, Expr]:
        """Return the axes but for the keys at the first number of a vector that exists."""
        s, p = self.sizes, self.problem
        place = (trip * s.unroll + u) * s.threads + thread
        number = minimum(part * -(-self._vectors // s.parts) + place, index(self._vectors - 1)) * s.vector_width
        return {
            **axis_indices(number % p.columns if p.columns > 1 else index(0), p.scatter.rest),
            **axis_indices(batch, p.scatter.batch),
            **axis_indices(number // p.columns if p.columns > 1 else number, p.scatter.stage.reduce_axes),
        }

    def at_lane(self, at: Mapping[str, Expr], lane: Expr) -> Mapping[str, Expr]:
        """Return the axes at a lane of the vector that begins at ``at``."""
        name = vector_axis(self.problem)
        return at if name is None else {**at, name: at[name] + lane}

    def inside(self, key: Expr) -> Expr:
        """Return a loaded element along the keys as an index."""
        return minimum(maximum(cast(key, INDEX), index(0)), index(self.problem.keys - 1))


def vector_axis(problem: ScatterProblem) -> str | None:
    """Return the axis along which vectors of numbers lie; None where columns are not next to each other."""
    if problem.columns == 1:
        return problem.scatter.stage.reduce_axes[-1].name
    return None if problem.lane_axis is None else problem.lane_axis.name


def vector_extent(problem: ScatterProblem) -> int:
    """Return what widths of vectors divide."""
    axes = {a.name: a.extent for a in (*problem.scatter.stage.axes, *problem.scatter.stage.reduce_axes)}
    name = vector_axis(problem)
    return 1 if name is None else axes[name]
