"""A workload: a tensor expression with concrete shapes and dtypes. Plain data; its key forgets all names."""

from dataclasses import dataclass
from enum import StrEnum

from ..core.frozen import RemembersHash, with_remembered_hash
from ..core.precision import IEEE
from ..ir.buffer import Buffer
from ..ir.expr import Expr


class Reducer(StrEnum):
    """How the points of a reduction are combined. The first combination starts from 0 for sum and from 1 for prod. For
    max it starts from the lowest value of the dtype (-inf for floats), and for min from the highest (+inf).

    ``argmax`` and ``argmin`` give a position instead of a value: where along the single reduction axis the greatest
    (least) value stands, the first of equal ones. Where a value is NaN the result is some position of the range.
    """

    SUM = "sum"
    PROD = "prod"
    MAX = "max"
    MIN = "min"
    ARGMAX = "argmax"
    ARGMIN = "argmin"

    @property
    def is_position(self) -> bool:
        """Whether the result is a position (argmax, argmin)."""
        return self in (Reducer.ARGMAX, Reducer.ARGMIN)

    @property
    def extreme(self) -> "Reducer":
        """``max`` for argmax, ``min`` for argmin: what picks the value whose position is the result; else itself."""
        return {Reducer.ARGMAX: Reducer.MAX, Reducer.ARGMIN: Reducer.MIN}.get(self, self)


@dataclass(frozen=True, slots=True)
class Axis:
    """A named range ``0 <= name < extent``. The name stands in expressions as ``Var(name)``."""

    name: str
    extent: int


@with_remembered_hash
@dataclass(frozen=True, slots=True)
class Stage(RemembersHash):
    """One computed tensor.

    ``tensor[axes] = reducer over reduce_axes of body`` (without a reducer: ``= body``). There is one axis per
    dimension, in order, with the dimension's extent. ``body`` is a scalar expression over the axes. It has the tensor's
    dtype; where the result is a position (int64 or int32), it has that of any number. Its loads read inputs and earlier
    stages at affine indices of the axes. Reductions accumulate in the tensor's dtype, so an operator that accumulates
    wider than it returns has a casting stage after it.
    """

    tensor: Buffer
    axes: tuple[Axis, ...]
    body: Expr
    reduce_axes: tuple[Axis, ...] = ()
    reducer: Reducer | None = None

    @property
    def name(self) -> str:
        return self.tensor.name


@dataclass(frozen=True, slots=True)
class DynamicDimension:
    """A dimension whose extent every call gives, from 1 to the one in the shapes. ``places`` are (input, dimension).
    Kernels are measured at ``representative``. Bodies read the extent of a call as the variable ``name``; it is empty
    where none does (``te.dynamic``)."""

    places: frozenset[tuple[str, int]]
    representative: int
    name: str = ""

    @property
    def inputs(self) -> frozenset[str]:
        """The names of the inputs that have it."""
        return frozenset(name for name, _ in self.places)


@with_remembered_hash
@dataclass(frozen=True, slots=True)
class Workload(RemembersHash):
    """Inputs, stages in an order in which each reads only what stands before it, and the names of the outputs
    (stages; at least one). Axis names are unique within the workload, and differ from tensor names. ``constants``:
    inputs, such as weights, that stay the same from call to call, so that what is made of them alone may be kept.
    ``precision``: which roundings kernels may make in sums of products (``core.precision``). ``skews``: (input, skew)
    of inputs that hold the ends of groups of rows (``te.groups``), whose sizes are then in proportion to rank^-skew.
    Those that are not named have the skew 0, groups that are equally large on average. They say which inputs are
    measured with; kernels are right for all others, too. ``dynamic``: the dimensions whose extents every call gives,
    in the order in which calls give them; none where all shapes are static."""

    inputs: tuple[Buffer, ...]
    stages: tuple[Stage, ...]
    outputs: tuple[str, ...]
    constants: frozenset[str] = frozenset()
    precision: str = IEEE
    skews: frozenset[tuple[str, float]] = frozenset()
    dynamic: tuple[DynamicDimension, ...] = ()

    def stage(self, name: str) -> Stage:
        """Return the stage that computes the tensor ``name``; KeyError when there is none."""
        for stage in self.stages:
            if stage.name == name:
                return stage
        raise KeyError(name)

    @property
    def output_buffers(self) -> tuple[Buffer, ...]:
        return tuple(self.stage(name).tensor for name in self.outputs)
