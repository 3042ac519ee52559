"""Correlations of neighbouring pixels (the cost volume of optical flow) as products of blocks of pixels:

    O[y, x, v, u] = sum over c of A[y, x, c] * B[y + v, x + u, c]

    ->  blocks[p, q, a, b, i, j] = sum over c of A[8 * p + a, 8 * q + b, c] * B[8 * p + i, 8 * q + j, c]
        O[y, x, v, u]            = blocks[y // 8, x // 8, y % 8, x % 8, y % 8 + v, x % 8 + u]

Of 9 x 9 displacements, 64 pixels of A meet 256 of B, which is three times as many sums as are needed; but they are
products of matrices. The scores of attention in a sliding window are such a band of products along one axis.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import product
from math import prod

from ..core.errors import InvalidWorkload
from ..ir.buffer import Buffer
from ..ir.expr import Expr, Load, Select, Var, const, index, logical_and
from ..ir.rewrite import free_variables, fresh_name, loads_of, map_loads, substitute
from ..te.check import check
from ..te.contraction_path import factors_of, with_own_axes
from ..te.inline import inline_stages
from ..te.phases import with_phases
from ..te.workload import Axis, Reducer, Stage, Workload
from .problems.window_overlap import WindowAxis, address_forms, window_axis
from .tile.masked_loads import masked_loads_of

SIDES = (1, 2, 4, 8, 16, 32, 64, 128)
"""How many pixels a block may have along an axis."""
FEWEST_PIXELS = 16
"""A block has so many pixels at least: a matrix instruction has so many rows."""


@dataclass(frozen=True)
class _Correlation:
    """A sum of products of what is read at pixels and what is read displaced from them. ``pixels`` are the factors of
    the former, ``displaced`` the others. ``moves``: how the latter move along each axis of the pixels with one of the
    displacements. ``batch``: the other axes, which both have."""

    total: Stage
    pixels: Expr
    displaced: Expr
    moves: tuple[WindowAxis, ...]
    batch: tuple[Axis, ...]

    def sides(self) -> tuple[int, ...]:
        """Return how many pixels a block has along each axis: those with the least traffic, of sums that are stored and
        loaded, and of pixels that are copied to be next to each other."""
        terms = prod(a.extent for a in self.total.reduce_axes)
        copied = 2 * terms * max(load.dtype.bytes for load in loads_of(self.displaced))
        stored = 2 * self.total.tensor.dtype.bytes

        def traffic(sides: Sequence[int]) -> float:
            seen = prod(w.positions(n) for w, n in zip(self.moves, sides, strict=True))
            covered = prod(-(-w.axis.extent // n) * n for w, n in zip(self.moves, sides, strict=True))
            return covered * (stored * seen + copied * (seen / prod(sides) + 1))

        every = product(*([n for n in SIDES if n < 2 * w.axis.extent] for w in self.moves))
        return min((s for s in every if prod(s) >= FEWEST_PIXELS), key=traffic, default=())


def with_pixel_blocks(workload: Workload) -> Workload | None:
    """``workload`` with its one sum as products of blocks and a stage that reads them; None where it is no such sum or
    has several."""
    if workload.dynamic or workload.skews or sum(s.reducer is not None for s in workload.stages) != 1:
        return None
    inlined = inline_stages(workload)
    split = with_phases(inlined) or inlined  # displacements may be quotients and remainders of one axis
    taken = {b.name for b in split.inputs}
    taken |= {n for s in split.stages for n in (s.name, *(a.name for a in (*s.axes, *s.reduce_axes)))}
    stages = list[Stage]()
    for stage in split.stages:
        found = _correlation_of(stage)
        stages += [stage] if found is None else _in_blocks(found, taken)
    try:
        return inline_stages(check(replace(split, stages=tuple(stages)))) if len(stages) > len(split.stages) else None
    except InvalidWorkload:  # a tensor beyond the limits
        return None


def _correlation_of(stage: Stage) -> _Correlation | None:
    if stage.reducer is not Reducer.SUM:
        return None
    everything = {a.name for a in (*stage.axes, *stage.reduce_axes) if a.extent > 1}
    factors = list(factors_of(stage.body))
    displaced = [f for f in factors if everything <= free_variables(f)]
    pixels = [f for f in factors if f not in displaced]
    if len(displaced) != 1 or not any(map(loads_of, pixels)):
        return None
    seen = frozenset[str]().union(*map(free_variables, pixels))
    forms = address_forms(masked_loads_of(displaced[0]))
    if forms is None or not {a.name for a in stage.reduce_axes} <= seen:
        return None
    displacements = [a for a in stage.axes if a.name not in seen and a.extent > 1]
    found = [window_axis(a, displacements, forms) for a in stage.axes if a.name in seen]
    moves = tuple(w for w in found if w is not None and w.window is not None)
    if None in found or {w.window for w in moves} != set(displacements) or len(moves) != len(displacements):
        return None
    if not moves:
        return None
    moving = {a for w in moves for a in (w.axis, w.window)}
    batch = tuple(a for a in stage.axes if a not in moving and a.extent > 1)
    return _Correlation(stage, reduce(lambda a, b: a * b, pixels), displaced[0], moves, batch)


def _in_blocks(found: _Correlation, taken: set[str]) -> list[Stage]:
    """Return the products of blocks, and what reads the sums there. Their tensors and axes have names that are not
    ``taken``. They are afterwards."""
    total, moves, sides = found.total, found.moves, found.sides()
    if not sides:
        return [total]
    name = fresh_name(f"{total.name}_blocks", taken)
    blocks, own, near = (
        [Axis(f"{name}_{kind}_{n}", extent) for n, extent in enumerate(extents)]
        for kind, extents in (
            ("block", [-(-w.axis.extent // side) for w, side in zip(moves, sides, strict=True)]),
            ("pixel", sides),
            ("near", [w.positions(side) for w, side in zip(moves, sides, strict=True)]),
        )
    )

    def at(factor: Expr, places: Sequence[Axis]) -> Expr:
        """Return a factor at its places of a block, with zeros beyond the last pixel."""
        here: dict[str, Expr] = {a.name: index(0) for a in total.axes if a.extent == 1}
        inside = list[Expr]()
        for move, side, block, place in zip(moves, sides, blocks, places, strict=True):
            first, own_place, whole = Var(block.name) * side, Var(place.name), move.axis.extent % side == 0
            if places is near:
                here |= move.at(first, own_place)
                inside += [] if whole else [first * move.stride + own_place < move.positions(move.axis.extent)]
            else:
                here[move.axis.name] = first + own_place
                inside += [] if whole else [first + own_place < move.axis.extent]
        moved = substitute(factor, here)
        if not inside:
            return moved
        return map_loads(moved, lambda load: Select(logical_and(*inside), load, const(0, load.dtype)))

    axes = (*found.batch, *blocks, *own, *near)
    body = at(found.pixels, own) * at(found.displaced, near)
    tensor = Buffer(name, tuple(a.extent for a in axes), total.tensor.dtype)
    product_ = with_own_axes(Stage(tensor, axes, body, total.reduce_axes, total.reducer), taken)
    rows, columns = list[Expr](), list[Expr]()
    for move, side in zip(moves, sides, strict=True):
        assert move.window is not None
        rows.append(Var(move.axis.name) % side)
        columns.append(rows[-1] * move.stride + Var(move.window.name) * move.dilation)
    places = (*(Var(a.name) for a in found.batch), *(Var(w.axis.name) // s for w, s in zip(moves, sides, strict=True)))
    taken.add(name)
    return [product_, Stage(total.tensor, total.axes, Load(tensor, (*places, *rows, *columns)))]
