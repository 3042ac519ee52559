"""Writes the accumulators of a thread, in registers."""

from collections.abc import Mapping, Sequence

from ....ir.buffer import MemoryScope
from ....ir.build import Writer
from ....ir.expr import Expr, Load
from ....te.workload import Stage
from ...tile.accumulation import Accumulation, store_state
from ..block_reduce import ThreadGroup, group_reduce, group_scratch


class ThreadAccumulators:
    """An accumulator of the reduction ``stage`` for each element of ``shape`` (a single one where it is empty), private
    to a thread. Each is one register, or two where the position of the best value is sought."""

    def __init__(self, w: Writer, stage: Stage, shape: Sequence[int], name: str) -> None:
        assert stage.reducer is not None
        self._w = w
        self._name = name
        self._axis = stage.reduce_axes[0].name
        self._kind = Accumulation(stage.reducer, stage.body.dtype, stage.tensor.dtype)
        self._state = [
            w.allocate(f"{name}_{n}", tuple(shape), dtype, MemoryScope.REGISTER)
            for n, dtype in enumerate(self._kind.state_dtypes)
        ]

    def initialise(self, at: Sequence[Expr]) -> None:
        """Give the accumulator at the indices ``at`` the neutral value."""
        for buffer, value in zip(self._state, self._kind.identity, strict=True):
            self._w.store(buffer, at, value)

    def accumulate(self, at: Sequence[Expr], value: Expr, values: Mapping[str, Expr]) -> None:
        """Combine with ``value``, which is that of the point ``values`` (axis name -> index). Points must come in
        ascending order."""
        new = self._kind.accumulate(self._loaded(at), value, values[self._axis])
        store_state(self._w, self._state, tuple(at), new)

    def reduce_across(self, group: ThreadGroup) -> None:
        """Combine the single accumulators of the group's threads, after which all of them have the result."""
        scratch = group_scratch(self._w, self._name, group, self._kind.state_dtypes)
        group_reduce(self._w, self._name, group, self._state, self._kind.combine, scratch)

    def value(self, at: Sequence[Expr]) -> Expr:
        """Return the result at the indices ``at``, of the dtype of the reduced tensor."""
        return self._kind.result(self._loaded(at))

    def _loaded(self, at: Sequence[Expr]) -> list[Expr]:
        return [Load(buffer, tuple(at)) for buffer in self._state]
