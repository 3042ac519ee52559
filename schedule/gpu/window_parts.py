"""Writes what kernels of windows have in common: the steps in which overlapping windows are reduced
(``problems.window_steps``), in registers of a thread, loads of filters, sums of products, and stores of outputs."""

from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack

from ...core.dtypes import DType
from ...ir.buffer import Buffer, MemoryScope
from ...ir.build import Writer
from ...ir.expr import Binary, BinaryOp, Expr, Load, index
from ...te.workload import Axis, Stage
from ..problems.window_overlap import WeightedWindow, WindowReduction
from ..problems.window_steps import Part, WindowSteps
from ..tile.masked_loads import MaskedLoad
from ..tile.names import FreshNameWriter
from ..tile.register_loads import RegisterLoad, allocate_registers, load_registers

Values = Callable[[int, Expr], Expr]
"""What is at a number and a lane."""


def reduce_parts(
    w: FreshNameWriter,
    steps: WindowSteps,
    combine: BinaryOp,
    position: Values,
    *,
    name: str,
    dtype: DType,
    lanes: int,
) -> Values:
    """Reduce windows of what ``position`` gives for a position and one of ``lanes`` neighbours. Parts are kept in a
    buffer of a name like ``name``. Return the value of a window by its number."""
    places = {part: n for n, (part, _, _) in enumerate(steps.steps)}
    parts = w.allocate(name, (len(places), lanes), dtype, MemoryScope.REGISTER)

    def of(part: Part, v: Expr) -> Expr:
        return Load(parts, (index(places[part]), v)) if part in places else position(part[0], v)

    for part, a, b in steps.steps:
        with w.vectorized("v", lanes) as v:
            w.store(parts, (index(places[part]), v), Binary(combine, of(a, v), of(b, v)))
    return lambda number, v: of(steps.windows[number], v)


FixedRegisters = Mapping[MaskedLoad, tuple[RegisterLoad, tuple[Axis, ...]]]
"""The loads that are the same for all outputs of a thread, in registers, and the axes of the reduction that index
them."""


def load_fixed(
    w: FreshNameWriter,
    problem: WeightedWindow,
    given: Collection[Axis],
    at: Mapping[str, Expr],
    lane_axis: str,
    lanes: int,
) -> FixedRegisters:
    """Load what is the same for all outputs of a thread, at every point of the axes of the reduction but for those that
    are ``given``."""
    fixed: dict[MaskedLoad, tuple[RegisterLoad, tuple[Axis, ...]]] = {}
    for masked in problem.fixed_loads:
        axes = tuple(a for a in problem.reduce_axes_of(masked) if a not in given)
        registers = allocate_registers(w, masked, [a.extent for a in axes], lane_axis, lanes)
        fixed[masked] = (registers, axes)
        with ExitStack() as loops:
            indices = [loops.enter_context(w.unrolled(f"{a.name}_u", a.extent)) for a in axes]
            here = {**at, **{a.name: i for a, i in zip(axes, indices, strict=True)}}
            load_registers(w, registers, indices, here, lane_axis, lanes)
    return fixed


def accumulate(
    w: Writer,
    problem: WindowReduction,
    at: Mapping[str, Expr],
    near: Mapping[MaskedLoad, Buffer],
    first: int,
    fixed: FixedRegisters,
    acc: Buffer,
    row: tuple[Expr, ...],
    *,
    begun: bool,
) -> None:
    """Accumulate a row of the input into a ``row`` of accumulators: those of neighbouring outputs, of which the one at
    ``at`` sees ``near``, [position], from ``first`` on. ``begun``: they have a value already."""
    width = problem.width
    for point in range(width.window_points):
        with w.unrolled("p", acc.shape[-1]) as p:
            here = {**at, width.axis.name: at[width.axis.name] + p}
            if width.window is not None:
                here[width.window.name] = index(point)
            position = p * width.stride + (first + point * width.dilation)
            values: dict[MaskedLoad, Expr] = {m: Load(buffer, (position,)) for m, buffer in near.items()}
            values |= {m: h.value([here[a.name] for a in axes], index(0)) for m, (h, axes) in fixed.items()}
            term, to = problem.term(values, here, acc.dtype), (*row, p)
            w.store(acc, to, Binary(problem.combine, Load(acc, to), term) if begun or point else term)


def store_output(
    w: Writer, problem: WindowReduction, stage: Stage, at: Mapping[str, Expr], reduced: Expr | Mapping[str, Expr]
) -> None:
    """Store an output at a point whose window gives ``reduced``: of several reductions, by name."""
    w.store(stage.tensor, tuple(at[a.name] for a in problem.axes), problem.output(stage, at, reduced))
