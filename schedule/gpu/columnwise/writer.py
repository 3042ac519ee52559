"""What the parts of a column-wise kernel share: names, states of reductions, and the outputs of a column."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from ....ir.buffer import Buffer, MemoryScope
from ....ir.build import Writer
from ....ir.expr import Expr, Load, index
from ....te.workload import Workload
from ...problems.columnwise import ColumnwiseProblem, outer_axis
from ...problems.row_axes import column_axis
from ...tile.accumulation import store_state
from ...tile.delinearize import delinearize
from ...tile.names import free_prefix
from ...tile.stage_body import scalar_at
from .sizes import ColumnwiseSizes

State = Sequence[Buffer]
"""The numbers of a reduction's state, in registers or in shared memory."""


@dataclass
class ColumnwiseWriter:
    """Statements for one problem and one setting, written through ``w``."""

    workload: Workload
    problem: ColumnwiseProblem
    sizes: ColumnwiseSizes[int]
    w: Writer = field(default_factory=Writer)

    def __post_init__(self) -> None:
        self.tensors = frozenset(b.name for b in (*self.workload.inputs, *self.workload.output_buffers))
        self.accumulations = [r.accumulation for r in self.problem.reductions]

    def name(self, base: str) -> str:
        """``base``, or a name close to it that no tensor has."""
        return free_prefix(base, self.tensors)

    def combined(self, name: str, n: int, first: Sequence[Expr], others: Sequence[Sequence[Expr]]) -> list[Buffer]:
        """Return one state of reduction ``n`` from several, in registers: ``first`` and then each of ``others``."""
        w, how = self.w, self.accumulations[n]
        state = [
            w.allocate(self.name(f"{name}{n}_{k}"), (), d, MemoryScope.REGISTER) for k, d in enumerate(how.state_dtypes)
        ]
        for buffer, value in zip(state, first, strict=True):
            w.store(buffer, (), value)
        for other in others:
            store_state(w, state, (), how.combine([Load(b, ()) for b in state], other))
        return state

    def kept_axes(self, outer: Expr, column: Expr, element: Expr) -> dict[str, Expr]:
        """Axis -> its index, at an element of the vector that begins at a flat ``outer`` index and ``column``."""
        if self.sizes.shifted:  # a vector may begin in front of the columns, and go on from one row of them to the next
            columns = delinearize(column + element, self.problem.columns)
        else:
            columns = delinearize(column, self.problem.columns)
            columns = (*columns[:-1], columns[-1] + element)
        return {outer_axis(n): i for n, i in enumerate(delinearize(outer, self.problem.outer))} | {
            column_axis(n): i for n, i in enumerate(columns)
        }

    def write_outputs(self, states: Sequence[State], outer: Expr, column: Expr) -> None:
        """The outputs of one column, from the state of every reduction."""
        results = {
            r.tensor.name: how.result([Load(b, ()) for b in state])
            for r, how, state in zip(self.problem.reductions, self.accumulations, states, strict=True)
        }
        axes = self.kept_axes(outer, column, index(0))
        indices = (*delinearize(outer, self.problem.outer), *delinearize(column, self.problem.columns))
        for output in self.problem.outputs:
            value = scalar_at(output.body, axes, lambda load: results.get(load.buffer.name, load))
            self.w.store(output.tensor, indices, value)
