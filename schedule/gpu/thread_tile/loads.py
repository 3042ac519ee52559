"""What the elements of a tile read, and by which loads.

A tile has ``width`` neighbouring outputs along the innermost axis, for each of ``unroll`` neighbours along another
axis. Offsets of elements that differ by a known number belong to one group. A group is loaded by the fewest aligned
chunks of up to 16 bytes, each of which is loaded once, whatever the elements of it are needed for:

    width 8 of  0.3 * X[y, x, 0] + 0.6 * X[y, x, 1] + 0.1 * X[y, x, 2]   ->   24 bytes from 24 * tile on, in 3 chunks
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ....ir.bounds import loop_range
from ....ir.buffer import Buffer
from ....ir.expr import Expr, Var, index
from ....ir.index_analysis import IndexAnalysis
from ....ir.linear_form import LinearForm, flat_form, linear_form
from ....ir.rewrite import free_variables, loads_of, substitute
from ....ir.simplifier import Simplifier
from ....te.evaluate import Evaluator
from ...problems.pointwise import Pointwise
from ...tile.masked_loads import MaskedLoad, conjuncts

CHUNK_BYTES = 16
"""Bytes of the widest load."""
MOST_COMPUTED = 64
"""Elements of a tile, at most, whose places are computed one by one. Each takes instructions and registers."""
LANE, STEP = Var("lane#"), Var("step#")
"""The number of an element in its tile, along the innermost axis and along the other one."""

Places = NDArray[np.int64]
"""A number for each element of a tile, int64[unroll, width]."""


@dataclass(frozen=True, slots=True)
class ThreadTile:
    """``width`` outputs along the innermost axis for each of ``unroll`` along ``axis``, which is another one, or empty
    where ``unroll`` is 1."""

    width: int
    unroll: int = 1
    axis: str = ""


@dataclass(frozen=True, slots=True)
class LoadGroup:
    """Elements of ``buffer`` from ``base`` on. The axes of ``base`` count tiles. ``chunks``: the offsets from the base
    at which a chunk of ``lanes`` elements is loaded. ``masked``: a load of one of the elements."""

    buffer: Buffer
    base: LinearForm
    chunks: tuple[int, ...]
    lanes: int
    masked: MaskedLoad

    @property
    def elements(self) -> int:
        """How many elements are loaded."""
        return len(self.chunks) * self.lanes

    @property
    def chunk_registers(self) -> int:
        """Registers that hold a chunk: one for each load of up to 4 bytes."""
        return -(-self.lanes * self.buffer.dtype.bytes // 4)


@dataclass(frozen=True, slots=True)
class TileLoads:
    """What a tile loads. ``places``: load -> (number of the group, place in what that loads) of each element, with
    group -1 where the mask is false. ``others``: loads whose masks are not known for each element of a tile."""

    groups: tuple[LoadGroup, ...]
    places: Mapping[MaskedLoad, tuple[Places, Places]]
    others: tuple[MaskedLoad, ...]

    @property
    def accesses(self) -> int:
        """How many loads there are for a tile, apart from ``others``."""
        return sum(len(g.chunks) for g in self.groups)


def tile_loads(problem: Pointwise, tile: ThreadTile) -> TileLoads | None:
    """Return what a tile of a problem loads; None where more than ``MOST_COMPUTED`` places are computed one by one."""
    return _Finder(problem, tile).loads()


class _Finder:
    def __init__(self, problem: Pointwise, tile: ThreadTile) -> None:
        self.problem, self.tile, self.shape = problem, tile, (tile.unroll, tile.width)
        lane = problem.lane_axis.name
        sizes = {lane: tile.width, tile.axis: tile.unroll}
        self.at: dict[str, Expr] = {lane: Var(lane) * tile.width + LANE}
        if tile.axis:
            self.at[tile.axis] = Var(tile.axis) * tile.unroll + STEP
        inside = {STEP.name: (0, tile.unroll), LANE.name: (0, tile.width)}
        ranges = {a.name: loop_range(a.extent // sizes.get(a.name, 1)) for a in problem.axes}
        self.simplifier = Simplifier(
            IndexAnalysis(ranges | {name: loop_range(stop) for name, (_, stop) in inside.items()})
        )
        self.evaluate = Evaluator({}, inside)
        self.numbers: dict[object, int] = {}
        self.computed = 0
        self.found: list[tuple[MaskedLoad, LinearForm, set[int]]] = []

    def loads(self) -> TileLoads | None:
        placed, others = dict[MaskedLoad, tuple[Places, Places]](), list[MaskedLoad]()
        for masked in self.problem.distinct_loads:
            alive = self._alive(masked)
            if alive is None or masked.load.dtype.bits % 8:
                others.append(masked)
            else:
                placed[masked] = self._placed(masked, alive)
            if self.computed > MOST_COMPUTED:
                return None
        groups = tuple(_group(*found) for found in self.found)
        places = {}
        for masked, (number, offset) in placed.items():
            place = np.zeros_like(offset)
            for n, g in enumerate(groups):
                mine = number == n
                if mine.any():
                    chunk = np.searchsorted(np.array(g.chunks), offset[mine] // g.lanes * g.lanes)
                    place[mine] = chunk * g.lanes + offset[mine] % g.lanes
            places[masked] = (number, place)
        return TileLoads(groups, places, tuple(others))

    def _simplified(self, e: Expr) -> Expr:
        return self.simplifier.simplify(substitute(e, self.at))

    def _in_tile(self, e: Expr) -> bool:
        return free_variables(e) <= {LANE.name, STEP.name} and not loads_of(e)

    def _alive(self, masked: MaskedLoad) -> NDArray[np.bool_] | None:
        """Return for which elements of a tile the mask is true; None where other elements than these decide it."""
        alive = np.ones(self.shape, np.bool_)
        for condition in map(self._simplified, conjuncts(masked.mask)):
            if not self._in_tile(condition):
                return None
            alive &= np.broadcast_to(self.evaluate(condition), self.shape)
        return alive

    def _placed(self, masked: MaskedLoad, alive: NDArray[np.bool_]) -> tuple[Places, Places]:
        """Return the group of each element, and its offset from the base of that."""
        load = masked.load
        form = flat_form([self._simplified(i) for i in load.indices], load.buffer.strides)
        varying = [a for a in form.terms if free_variables(a) & {LANE.name, STEP.name}]
        known = [a for a in varying if self._in_tile(a)]
        mixed = form.only(a for a in varying if a not in known)
        offset = np.full(self.shape, form.constant, np.int64)
        for atom in known:
            offset += form.terms[atom] * np.broadcast_to(self.evaluate(atom), self.shape)
        base = form.without(varying) - form.constant
        number = np.full(self.shape, -1, np.int64)
        points = self._points(mixed)
        self.computed += len(points) if mixed.terms else 0
        for step, lane in points if self.computed <= MOST_COMPUTED else ():
            at = (slice(None) if step is None else step, slice(None) if lane is None else lane)
            here = base.plus(self._at_point(mixed, step, lane))
            key = (load.buffer.name, here)
            if key not in self.numbers:
                self.numbers[key] = len(self.found)
                self.found.append((masked, here, set()))
            number[at] = self.numbers[key]
            self.found[self.numbers[key]][2].update(offset[at][alive[at]].reshape(-1).tolist())
        return np.where(alive, number, -1), offset

    def _points(self, mixed: LinearForm) -> list[tuple[int | None, int | None]]:
        """Return the points of a tile at which terms differ; None for all places along an axis."""
        variables = frozenset[str]().union(*(free_variables(a) for a in mixed.terms))
        steps = range(self.tile.unroll) if STEP.name in variables else (None,)
        lanes = range(self.tile.width) if LANE.name in variables else (None,)
        return [(step, lane) for step in steps for lane in lanes]

    def _at_point(self, mixed: LinearForm, step: int | None, lane: int | None) -> LinearForm:
        at = {STEP.name: index(step or 0), LANE.name: index(lane or 0)}
        total = LinearForm({})
        for atom, c in mixed.terms.items():
            total = total.plus(linear_form(substitute(atom, at)), c)
        return total


def _group(masked: MaskedLoad, base: LinearForm, offsets: set[int]) -> LoadGroup:
    """Return the group of elements at ``offsets``, in the fewest chunks, and the smallest ones of these."""
    buffer = masked.load.buffer
    best: LoadGroup | None = None
    lanes = 1
    while lanes * buffer.dtype.bytes <= CHUNK_BYTES:
        if buffer.elements % lanes or any(c % lanes for c in base.terms.values()):
            break
        chunks = tuple(sorted({offset // lanes * lanes for offset in offsets}))
        if best is None or len(chunks) < len(best.chunks):
            best = LoadGroup(buffer, base, chunks, lanes, masked)
        lanes *= 2
    assert best is not None
    return best
