"""The running results of a thread, in registers."""

from collections.abc import Mapping, Sequence

from ....ir.buffer import MemoryScope
from ....ir.build import Writer
from ....ir.expr import Expr, Load
from ....te.workload import Stage
from ...tile.accumulation import Accumulation
from ..block_reduce import Team, team_reduce, team_scratch


class Results:
    """A running result of the reduction ``stage`` for each element of ``shape`` (none: a single one), kept by every
    thread for itself. Each is one register, or two where positions are sought."""

    def __init__(self, w: Writer, stage: Stage, shape: Sequence[int], name: str) -> None:
        assert stage.reducer is not None
        self._w = w
        self._name = name
        self._axis = stage.reduce_axes[0].name
        self._kind = Accumulation(stage.reducer, stage.body.dtype, stage.tensor.dtype)
        self._state = [
            w.allocate(f"{name}_{n}", tuple(shape), dtype, MemoryScope.REGISTER)
            for n, dtype in enumerate(self._kind.dtypes)
        ]

    def start(self, at: Sequence[Expr]) -> None:
        """Nothing combined yet."""
        for buffer, value in zip(self._state, self._kind.neutral, strict=True):
            self._w.store(buffer, at, value)

    def add(self, at: Sequence[Expr], value: Expr, values: Mapping[str, Expr]) -> None:
        """Combine with ``value``, the point where the axes have ``values``; points come in ascending order."""
        taken = self._kind.taken(self._loaded(at), value, values[self._axis])
        for buffer, new in reversed(list(zip(self._state, taken, strict=True))):  # the second goes by the old first
            self._w.store(buffer, at, new)

    def across(self, team: Team) -> None:
        """Combine the results of the team's threads; all of them have it afterwards. Of a single element only."""
        scratch = team_scratch(self._w, self._name, team, self._kind.dtypes)
        team_reduce(self._w, self._name, team, self._state, self._kind.combined, scratch)

    def value(self, at: Sequence[Expr]) -> Expr:
        """The result, of the reduced tensor's dtype."""
        return self._kind.finished(self._loaded(at))

    def _loaded(self, at: Sequence[Expr]) -> list[Expr]:
        return [Load(buffer, tuple(at)) for buffer in self._state]
