"""A workload: a tensor expression with concrete shapes and dtypes. Plain data; its key forgets all names."""

from dataclasses import dataclass
from enum import StrEnum

from ..ir.buffer import Buffer
from ..ir.expr import Expr


class Reducer(StrEnum):
    """How the points of a reduction are combined, and what an empty or first combination starts from:
    0 for sum, the lowest value of the dtype (-inf for floats) for max, the highest (+inf) for min."""

    SUM = "sum"
    MAX = "max"
    MIN = "min"


@dataclass(frozen=True, slots=True)
class Axis:
    """A named range ``0 <= name < extent``; the name appears in expressions as ``Var(name)``."""

    name: str
    extent: int


@dataclass(frozen=True, slots=True)
class Stage:
    """One computed tensor.

    ``tensor[axes] = reducer over reduce_axes of body`` (without a reducer: ``= body``). There is one axis per
    dimension, in order, with the dimension's extent. ``body`` is a scalar expression of the tensor's dtype over
    the axes; its loads read inputs and earlier stages at affine indices of the axes. Reductions accumulate in
    the tensor's dtype, so an operator that accumulates wider than it returns has a casting stage after it.
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
class Workload:
    """Inputs, stages in an order in which each reads only what stands before it, and the names of the outputs
    (stages; at least one). Axis names are unique within the workload, and differ from tensor names."""

    inputs: tuple[Buffer, ...]
    stages: tuple[Stage, ...]
    outputs: tuple[str, ...]

    def stage(self, name: str) -> Stage:
        """The stage that computes the tensor ``name``; KeyError when there is none."""
        for stage in self.stages:
            if stage.name == name:
                return stage
        raise KeyError(name)

    @property
    def output_buffers(self) -> tuple[Buffer, ...]:
        return tuple(self.stage(name).tensor for name in self.outputs)
