"""Recognises reductions over windows that are long along one axis, such as filters of many taps, in a workload."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from ...core.dtypes import INDEX, float32
from ...ir.buffer import Buffer
from ...ir.expr import Binary, BinaryOp, Cast, Const, Expr, Load, Select, const, rebuild
from ...ir.gpu.mma import WARP_MMA_ATOMS, MmaAtom
from ...ir.rewrite import free_variables, loads_of
from ...te.borders import with_borders
from ...te.flipped_windows import unflipped
from ...te.workload import Axis, Stage, Workload
from ..tile.load_analysis import flat_offset, in_bounds
from ..tile.masked_loads import MaskedLoad, masked_loads_of, replace_masked_loads
from .outputs import single_reduction
from .window_overlap import WindowAxis, WindowReduction, address_forms, window_axis

LEAST_POINTS, LEAST_DILATED_POINTS, LEAST_SPAN = 24, 8, 65
"""Points of a window along its axis, at least, or of a dilated one that spans so many positions. Registers hold others
with all that they see."""
LEAST_OUTPUTS = 16
"""Outputs along the axis of the window, at least, since they share positions and taps."""
MOST_FILTERS = 8
"""Outputs that see the same positions, at most. With more, these are products of matrices."""
MOST_STRIDE = 4
"""Positions from one output to the next, at most."""


@dataclass(frozen=True)
class LongWindow(WindowReduction):
    """A reduction over windows that are long along one axis, ``width``, and what is computed from it.

    ``lane_axis``: the innermost axis, where neighbours along it are neighbours in memory and windows move along
    another; None where windows move along the innermost axis itself. The term of a point is ``term_body``, which loads
    what depends on the position that the point sees alone from the buffers that are the keys of ``positions``, and what
    depends on the point of the window alone (its taps) from those of ``taps``. The values say how these are computed,
    on the axes of the reduction: those of positions from what the buffers of ``loaded`` have of the sliding loads.
    """

    lane_axis: Axis | None
    term_body: Expr
    loaded: Mapping[Buffer, MaskedLoad]
    positions: Mapping[Buffer, Expr]
    taps: Mapping[Buffer, Expr]

    @property
    def window(self) -> Axis:
        """The axis of the reduction along which windows are long."""
        assert self.width.window is not None
        return self.width.window

    @property
    def row_axes(self) -> tuple[Axis, ...]:
        """The axes of the outputs along which no window moves and no lanes lie."""
        return tuple(a for a in self.reduction.axes if a not in (self.width.axis, self.lane_axis))

    @property
    def outer_axes(self) -> tuple[Axis, ...]:
        """The other axes of the reduction, such as the rows of a window of a plane."""
        return tuple(a for a in self.reduction.reduce_axes if a != self.window)

    @property
    def phases(self) -> int:
        """How many outputs lie side by side between two that see each other's positions: those of all lanes, or the
        phases of a dilated window."""
        return self.lane_axis.extent if self.lane_axis is not None else self.width.dilation

    @property
    def residues(self) -> int:
        """How many sets of outputs along the axis of the window, besides phases, share no positions."""
        return self.width.dilation if self.lane_axis is not None else 1

    @property
    def steps(self) -> int:
        """The outputs of a phase that share positions."""
        return -(-self.width.axis.extent // self.width.dilation)

    @property
    def toeplitz_atom(self) -> MmaAtom | None:
        """The matrix instruction that multiplies positions by Toeplitz matrices of taps; None where there is none.
        Terms are products of a position and a tap, 16-bit floats that are multiplied as float32 and summed."""
        position, tap = (self.narrowed(slots) for slots in (self.positions, self.taps))
        if position is None or tap is None or position.dtype != tap.dtype or self.combine is not BinaryOp.ADD:
            return None
        factors = {Load(b, ()) for b in (*self.positions, *self.taps)}
        body = self.term_body
        if not (isinstance(body, Binary) and body.op is BinaryOp.MUL and {body.a, body.b} == factors):
            return None
        if self.reduction.tensor.dtype != float32 or self.width.stride != 1:
            return None
        return next((a for a in WARP_MMA_ATOMS.values() if a.operand == position.dtype and a.operand.bits == 16), None)

    @staticmethod
    def narrowed(slots: Mapping[Buffer, Expr]) -> Expr | None:
        """Return the 16-bit float that the only one of ``slots`` converts to float32; None where it is anything
        else."""
        return _narrowed(next(iter(slots.values()))) if len(slots) == 1 else None

    def has_lanes(self, tap: Buffer) -> bool:
        """Return whether a tap differs from lane to lane."""
        return self.lane_axis is not None and self.lane_axis.name in free_variables(self.taps[tap])


def _narrowed(e: Expr) -> Expr | None:
    match e:
        case Cast(value=value, type=dtype) if dtype == float32 and value.dtype.is_float and value.dtype.bits == 16:
            return value
        case Select(condition=condition, then=then, otherwise=Const(value=0)):
            inner = _narrowed(then)
            return None if inner is None else Select(condition, inner, const(0, inner.dtype))
    return None


def long_window_of(workload: Workload) -> LongWindow | None:
    """Return the windows of a workload that is one reduction over windows of many points along an axis (see
    ``LEAST_POINTS``), and what is computed from it at the same point. None for any other workload, for positions with
    more than ``MOST_FILTERS`` filters, and where neighbouring positions are not neighbours in memory, along the axis of
    the window or along one behind it."""
    found = single_reduction(workload)
    if found is None or max(a.extent for a in found[0].reduce_axes) < LEAST_DILATED_POINTS:
        return None
    reduction, outputs = found
    kept = [a for a in reduction.axes if a.extent > 1]
    for column, lane_axis in ((a, None if a is kept[-1] else kept[-1]) for a in reversed(kept)):
        problem = _along(workload, reduction, outputs, column, lane_axis)
        if problem is not None:
            return problem
    return None


def _along(
    workload: Workload, reduction: Stage, outputs: tuple[Stage, ...], column: Axis, lane_axis: Axis | None
) -> LongWindow | None:
    reduction = with_borders(unflipped(reduction), {column.name})
    loads = masked_loads_of(reduction.body, bordered=True)
    sliding = tuple(m for m in loads if column.name in free_variables(m.load))
    others = [m for m in loads if m not in sliding and column.name in m.variables]
    if not all(in_bounds(m.load, (*reduction.axes, *reduction.reduce_axes)) for m in others):
        return None
    forms = address_forms(sliding)
    width = None if forms is None else window_axis(column, reduction.reduce_axes, forms)
    if width is None or width.window is None or column.extent < LEAST_OUTPUTS:
        return None
    if width.window.extent < (LEAST_POINTS if width.positions(1) < LEAST_SPAN else LEAST_DILATED_POINTS):
        return None
    if width.stride > (MOST_STRIDE if lane_axis is None else 1):
        return None
    if not all(_is_contiguous(m.load, width, lane_axis) for m in sliding):
        return None
    seen = {name for m in sliding for name in m.variables}
    if prod(a.extent for a in reduction.axes if a.name not in seen) > MOST_FILTERS:
        return None
    return _with_slots(workload, reduction, outputs, sliding, width, lane_axis)


def _is_contiguous(load: Load, width: WindowAxis, lane_axis: Axis | None) -> bool:
    if lane_axis is None:
        return width.is_contiguous(load)
    offset = flat_offset(load)
    return offset is not None and offset.coefficient(lane_axis.name) == 1


def _with_slots(
    workload: Workload,
    reduction: Stage,
    outputs: tuple[Stage, ...],
    sliding: tuple[MaskedLoad, ...],
    width: WindowAxis,
    lane_axis: Axis | None,
) -> LongWindow:
    """Take the terms apart: what depends on the position, what on the point of the window, and the rest."""
    assert width.window is not None
    axis, window = width.axis.name, width.window.name
    loaded = {Buffer(f"{m.load.buffer.name}_{n}#", (), m.load.dtype): m for n, m in enumerate(sliding)}
    positions, taps = dict[Expr, Buffer](), dict[Expr, Buffer]()

    def slot(of: dict[Expr, Buffer], name: str, e: Expr) -> Expr:
        if e not in of:
            of[e] = Buffer(f"{name}_{len(of)}#", (), e.dtype)
        return Load(of[e], ())

    def by_position(e: Expr) -> bool:
        """Return whether ``e`` depends on the axis and the point of the window through the position alone."""
        if not free_variables(e) & {axis, window}:
            return True
        if e.dtype.is_bool and not loads_of(e):
            forms = address_forms([MaskedLoad(Load(Buffer("", (), e.dtype), ()), e)])
            return forms is not None and all(
                f.coefficient(axis) * width.dilation == f.coefficient(window) * width.stride for f in forms
            )
        return e.dtype != INDEX and bool(e.children) and all(map(by_position, e.children))

    def apart(e: Expr) -> Expr:
        free, moves = free_variables(e), any(load.buffer in loaded for load in loads_of(e))
        is_value = e.dtype != INDEX and not e.dtype.is_bool
        if moves and by_position(e) and (is_value or isinstance(e, Load)):
            return slot(positions, "position", e)
        if not moves and window in free and axis not in free and is_value:
            return slot(taps, "tap", e)
        return e if isinstance(e, Load) else rebuild(e, [apart(c) for c in e.children])

    body = apart(replace_masked_loads(reduction.body, {m: Load(b, ()) for b, m in loaded.items()}))
    return LongWindow(
        workload,
        reduction,
        outputs,
        sliding,
        width,
        lane_axis,
        body,
        loaded,
        {buffer: e for e, buffer in positions.items()},
        {buffer: e for e, buffer in taps.items()},
    )
