"""Workloads that are one scan, with what is computed before and behind it for each element.

    up_to[i, j] = sum over k of select(k <= j, exp(X[i, k]), 0)
    Y[i, j] = up_to[i, j] * B[j]

Here j is the scanned axis. The other axes number the lines. Where the scanned axis is the last one, lines are rows;
otherwise the lines of neighbouring columns lie next to each other, so that they are read together.
"""

from dataclasses import dataclass
from math import prod

from ...ir.buffer import Buffer
from ...ir.expr import Expr, Load
from ...ir.rewrite import loads_of
from ...te.inline import inline_stages
from ...te.scan import scan_of
from ...te.workload import Axis, Stage, Workload
from ..tile.accumulation import Accumulation
from ..tile.load_analysis import flat_offset
from ..tile.masked_loads import MaskedLoad, masked_loads_of
from ..tile.register_loads import depends_on, without_unneeded_mask
from .outputs import outputs_of_reduction


@dataclass(frozen=True)
class ScanProblem:
    """A scan along ``axis``. ``outer`` and ``inner`` are the axes in front of it and behind it.

    ``body`` computes the values to combine, and ``outputs`` what is stored; both are on the axes, and outputs load
    ``result`` at their own point. ``reverse``, ``exclusive``: as in ``te.scan.Scan``. ``loads``: the masked loads of
    the body and the outputs, without those of ``result`` -> the same loads without the masks that nothing needs.
    """

    workload: Workload
    outer: tuple[Axis, ...]
    axis: Axis
    inner: tuple[Axis, ...]
    body: Expr
    result: Buffer
    accumulation: Accumulation
    reverse: bool
    exclusive: bool
    outputs: tuple[Stage, ...]
    loads: dict[MaskedLoad, MaskedLoad]

    @property
    def along_rows(self) -> bool:
        """Whether neighbours along the scanned axis are neighbours in memory."""
        return prod(a.extent for a in self.inner) == 1

    @property
    def axes(self) -> tuple[Axis, ...]:
        return (*self.outer, self.axis, *self.inner)

    @property
    def lines(self) -> int:
        """How many scans there are."""
        return prod(a.extent for a in (*self.outer, *self.inner))

    @property
    def length(self) -> int:
        """How many elements each scan has."""
        return self.axis.extent

    @property
    def lane_axis(self) -> Axis:
        """The axis whose neighbours are neighbours in memory: the scanned one, or the innermost one longer than 1."""
        return next((a for a in reversed(self.inner) if a.extent > 1), self.axis)

    @property
    def body_loads(self) -> tuple[MaskedLoad, ...]:
        """The distinct loads of the body."""
        return tuple(dict.fromkeys(self.loads[m] for m in masked_loads_of(self.body)))

    @property
    def later_loads(self) -> tuple[MaskedLoad, ...]:
        """The distinct loads that outputs alone need."""
        return tuple(m for m in dict.fromkeys(self.loads.values()) if m not in self.body_loads)

    @property
    def body_bytes(self) -> int:
        """The sizes of the elements that the body reads for each element of a line, together."""
        return sum(m.load.dtype.bytes for m in self.body_loads if depends_on(m, self.lane_axis.name))

    @property
    def element_bytes(self) -> tuple[int, ...]:
        """The element sizes of the outputs and of what is loaded as vectors."""
        loads = (m.load.dtype.bytes for m in self.loads.values() if depends_on(m, self.lane_axis.name))
        return (*(s.tensor.dtype.bytes for s in self.outputs), *loads)

    def vectors(self, widest: int) -> tuple[int, ...]:
        """Return how many neighbours in memory may be taken as one vector, the most first. The vector has up to
        ``widest`` bytes of the widest element. It is 1 alone where something is read in another order than it lies in
        memory."""
        lane = self.lane_axis
        if any(_is_scattered(m.load, lane) for m in self.loads.values()):
            return (1,)
        bytes = max(self.element_bytes)
        return tuple(v for v in (16, 8, 4, 2, 1) if lane.extent % v == 0 and (v * bytes <= widest or v == 1))


def scan_problem(workload: Workload) -> ScanProblem | None:
    """Return the workload as one scan, or None where it is anything else."""
    inlined = inline_stages(workload)
    reductions = [s for s in inlined.stages if s.reducer is not None]
    scan = scan_of(reductions[0]) if len(reductions) == 1 else None
    outputs = None if scan is None else outputs_of_reduction(inlined, reductions[0])
    if scan is None or outputs is None:
        return None
    stage = scan.stage
    d = stage.axes.index(scan.axis)
    bodies = (scan.body, *(s.body for s in outputs))
    found = [m for body in bodies for m in masked_loads_of(body) if m.load.buffer != stage.tensor]
    return ScanProblem(
        workload,
        stage.axes[:d],
        scan.axis,
        stage.axes[d + 1 :],
        scan.body,
        stage.tensor,
        Accumulation(scan.reducer, stage.body.dtype, stage.tensor.dtype),
        scan.reverse,
        scan.exclusive,
        outputs,
        {m: without_unneeded_mask(m, stage.axes) for m in found},
    )


def _is_scattered(load: Load, lane: Axis) -> bool:
    """Return whether neighbours along ``lane`` are read from places that are neither neighbours nor the same."""
    offset = flat_offset(load)
    if offset is None or any(loads_of(i) for i in load.indices):
        return True
    return offset.coefficient(lane.name) not in (0, 1)
