"""What the elements of a tile read, and by which loads.

A tile has ``width`` neighbouring outputs along the innermost axis, for each of ``unroll`` neighbours along another
axis. Offsets of elements that differ by a known number belong to one group. A group is loaded by the fewest aligned
chunks of up to 16 bytes, each of which is loaded once, whatever the elements of it are needed for:

    width 8 of  0.3 * X[y, x, 0] + 0.6 * X[y, x, 1] + 0.1 * X[y, x, 2]   ->   24 bytes from 24 * tile on, in 3 chunks
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from ....ir.bounds import Interval, loop_range
from ....ir.buffer import Buffer
from ....ir.expr import Expr, Var, const, index
from ....ir.index_analysis import IndexAnalysis
from ....ir.linear_form import LinearForm, flat_form, linear_form
from ....ir.rewrite import free_variables, loads_of, substitute
from ....ir.simplifier import Simplifier
from ....te.evaluate import Evaluator
from ...problems.pointwise import Pointwise
from ...tile.load_analysis import flat_offset
from ...tile.masked_loads import MaskedLoad, conjuncts

CHUNK_BYTES = 16
"""Bytes of the widest load."""
MOST_COMPUTED = 64
"""Elements of a tile, at most, whose places are computed one by one. Each takes instructions and registers."""
MOST_BOUNDED = 32
"""Loads with an index that is bounded, at most, that are looked at between the ends of rows."""
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

    def places(self, offsets: Places) -> Places:
        """Return where the elements at offsets from the base are in what is loaded."""
        chunks = np.searchsorted(np.array(self.chunks), offsets // self.lanes * self.lanes)
        return chunks * self.lanes + offsets % self.lanes

    @property
    def chunk_registers(self) -> int:
        """Registers that hold a chunk: one for each load of up to 4 bytes."""
        return -(-self.lanes * self.buffer.dtype.bytes // 4)


@dataclass(frozen=True, slots=True)
class Patch:
    """An element of a group that is another one in the first or the last tile of a row, ``edge``: that at ``offset``
    from the base, or ``other`` where no element of the tensor is."""

    edge: int
    place: int
    offset: int
    other: Expr | None


@dataclass(frozen=True, slots=True)
class TileLoads:
    """What a tile loads. ``places``: load -> (number of the group, place in what that loads) of each element, with
    group -1 where the mask is false. ``patches``: (numbers of a group and of its chunk) -> what is not in it in tiles
    at the ends of rows. ``others``: loads whose masks are not known for each element of a tile."""

    groups: tuple[LoadGroup, ...]
    places: Mapping[MaskedLoad, tuple[Places, Places]]
    patches: Mapping[tuple[int, int], tuple[Patch, ...]]
    others: tuple[MaskedLoad, ...]

    @property
    def accesses(self) -> int:
        """How many loads there are for a tile, apart from ``others``."""
        return sum(len(g.chunks) for g in self.groups)


def tile_loads(problem: Pointwise, tile: ThreadTile) -> TileLoads | None:
    """Return what a tile of a problem loads; None where more than ``MOST_COMPUTED`` places are computed one by one."""
    return _Finder(problem, tile).loads()


@dataclass(frozen=True, slots=True)
class _Reads:
    """What a load reads for each element of a tile: whether it does, from which base, and how far from that. ``bases``:
    one for all elements, or for (step, lane), with None for all steps or lanes that have the same."""

    alive: NDArray[np.bool_]
    bases: LinearForm | Mapping[tuple[int | None, int | None], LinearForm]
    offsets: Places

    @property
    def mixed(self) -> bool:
        """Whether bases differ along the row."""
        return not isinstance(self.bases, LinearForm) and any(lane is not None for _, lane in self.bases)

    def parts(self) -> Iterator[tuple[tuple[int | slice, int | slice], LinearForm]]:
        """Yield the elements that have a base, and it."""
        if isinstance(self.bases, LinearForm):
            yield (slice(None), slice(None)), self.bases
            return
        for (step, lane), base in self.bases.items():
            yield (slice(None) if step is None else step, slice(None) if lane is None else lane), base


class _Finder:
    def __init__(self, problem: Pointwise, tile: ThreadTile) -> None:
        self.problem, self.tile, self.shape = problem, tile, (tile.unroll, tile.width)
        self.lane = problem.lane_axis.name
        self.tiles = problem.lane_axis.extent // tile.width
        self.sizes = sizes = {self.lane: tile.width, tile.axis: tile.unroll}
        self.at: dict[str, Expr] = {self.lane: Var(self.lane) * tile.width + LANE}
        if tile.axis:
            self.at[tile.axis] = Var(tile.axis) * tile.unroll + STEP
        inside = {STEP.name: (0, tile.unroll), LANE.name: (0, tile.width)}
        self.ranges = {a.name: loop_range(a.extent // sizes.get(a.name, 1)) for a in problem.axes}
        self.ranges |= {name: loop_range(stop) for name, (_, stop) in inside.items()}
        self.everywhere = self._simplifier(0, self.tiles - 1)
        self.between = self._simplifier(1, self.tiles - 2) if self.tiles > 3 else None
        self.edges = [(edge, self._simplifier(edge, edge)) for edge in (0, self.tiles - 1)]
        self.evaluate = Evaluator({}, inside)
        self.numbers: dict[object, int] = {}
        self.found: list[tuple[MaskedLoad, LinearForm, set[int]]] = []
        self.patched: dict[tuple[int, int, int], int | Expr] = {}
        self.simple: dict[object, Expr] = {}
        self.computed = 0

    def _simplifier(self, first: int, last: int) -> Simplifier:
        """Return what simplifies expressions of the tiles from ``first`` to ``last`` of a row."""
        return Simplifier(IndexAnalysis({**self.ranges, self.lane: Interval(first, last)}))

    def loads(self) -> TileLoads | None:
        placed, others = dict[MaskedLoad, tuple[Places, Places]](), list[MaskedLoad]()
        loads = [m for m in self.problem.distinct_loads if m.load.dtype.bits % 8 == 0]
        everywhere = {m: self._reads(m, self.everywhere) for m in loads}
        bounded = {m.load.buffer for m, reads in everywhere.items() if reads is None or reads.mixed}
        if len(loads) > MOST_BOUNDED:
            bounded.clear()
        for masked in self.problem.distinct_loads:
            reads = everywhere.get(masked)
            between = self._between_ends(masked) if masked in everywhere and masked.load.buffer in bounded else None
            if between is not None:
                placed[masked] = between
            elif reads is None:
                others.append(masked)
            else:
                placed[masked] = self._placed(masked, reads, patched=False)
            if self.computed > MOST_COMPUTED:
                return None
        groups = tuple(_group(*found) for found in self.found)
        places = {}
        for masked, (number, offset) in placed.items():
            place = np.zeros_like(offset)
            for n in np.unique(number[number >= 0]):
                mine = number == n
                place[mine] = groups[n].places(offset[mine])
            places[masked] = (number, place)
        patches = dict[tuple[int, int], tuple[Patch, ...]]()
        for (edge, n, offset_of), value in self.patched.items():
            if value != offset_of:
                place_of = int(groups[n].places(np.array(offset_of)))
                chunk = (n, place_of // groups[n].lanes)
                one = (value, None) if isinstance(value, int) else (0, value)
                patches[chunk] = (*patches.get(chunk, ()), Patch(edge, place_of, *one))
        return TileLoads(groups, places, patches, tuple(others))

    def _simplified(self, e: Expr, at: Mapping[str, Expr], simplifier: Simplifier) -> Expr:
        """Return an expression at a point, which several loads may have."""
        key = (id(simplifier), e, tuple(at.values()))
        if key not in self.simple:
            self.simple[key] = simplifier.simplify(substitute(e, at))
        return self.simple[key]

    def _in_tile(self, e: Expr) -> bool:
        return free_variables(e) <= {LANE.name, STEP.name} and not loads_of(e)

    def _reads(self, masked: MaskedLoad, simplifier: Simplifier) -> _Reads | None:
        """Return what a load reads; None where the mask depends on more than the place in the tile."""
        load, alive = masked.load, np.ones(self.shape, np.bool_)
        affine = flat_offset(load) if masked.mask is None else None
        if affine is not None:
            offsets = affine.coefficient(self.lane) * np.arange(self.tile.width)[None]
            offsets = offsets + affine.coefficient(self.tile.axis) * np.arange(self.tile.unroll)[:, None]
            base = LinearForm({})
            for name, c in affine.coefficients.items():
                base = base.plus(simplifier.form(Var(name)), c * self.sizes.get(name, 1))
            return _Reads(alive, base - base.constant, offsets + (affine.constant + base.constant))
        for term in conjuncts(masked.mask):
            condition = self._simplified(term, self.at, simplifier)
            if not self._in_tile(condition):
                return None
            alive &= np.broadcast_to(self.evaluate(condition), self.shape)
        indices = [self._simplified(i, self.at, simplifier) for i in load.indices]
        form = flat_form(indices, load.buffer.strides)
        varying = [a for a in form.terms if free_variables(a) & {LANE.name, STEP.name}]
        known = [a for a in varying if self._in_tile(a)]
        mixed = form.only(a for a in varying if a not in known)
        offsets = np.full(self.shape, form.constant, np.int64)
        for atom in known:
            offsets += form.terms[atom] * np.broadcast_to(self.evaluate(atom), self.shape)
        base = form.without(varying) - form.constant
        if not mixed.terms:
            return _Reads(alive, base, offsets)
        bases = dict[tuple[int | None, int | None], LinearForm]()
        variables = frozenset[str]().union(*(free_variables(a) for a in mixed.terms))
        steps = range(self.tile.unroll) if STEP.name in variables else (None,)
        lanes = range(self.tile.width) if LANE.name in variables else (None,)
        if len(steps) * len(lanes) > MOST_COMPUTED:
            self.computed += len(steps) * len(lanes)
            return None
        for step, lane in product(steps, lanes):
            at = (slice(None) if step is None else step, slice(None) if lane is None else lane)
            here = base
            for term, times in mixed.terms.items():
                point = {STEP.name: index(step or 0), LANE.name: index(lane or 0)}
                value = self._simplified(term, point, simplifier) if lane is None else substitute(term, point)
                here = here.plus(linear_form(value), times)
            offsets[at] += here.constant
            bases[step, lane] = here - here.constant
        return _Reads(alive, bases, offsets)

    def _placed(self, masked: MaskedLoad, reads: _Reads, *, patched: bool) -> tuple[Places, Places]:
        """Return the group of each element, and its offset from the base of that."""
        number = np.full(self.shape, -1, np.int64)
        for at, base in reads.parts():
            key = (masked.load.buffer.name, patched, base)
            if key not in self.numbers:
                self.computed += reads.mixed
                self.numbers[key] = len(self.found)
                self.found.append((masked, base, set()))
            number[at] = np.where(reads.alive[at], self.numbers[key], -1)
            self.found[self.numbers[key]][2].update(reads.offsets[at][reads.alive[at]].reshape(-1).tolist())
        return number, reads.offsets

    def _between_ends(self, masked: MaskedLoad) -> tuple[Places, Places] | None:
        """Return the groups and offsets of elements as they are between the ends of rows, where the bounds of an index
        do not matter, and note what differs in the first and the last tile; None where that is not known either."""
        inside = None if self.between is None else self._reads(masked, self.between)
        if inside is None or inside.mixed or not inside.alive.all():
            return None
        other = masked.other if masked.other is not None else const(0, masked.load.dtype)
        found = dict[tuple[int, LinearForm, int], int | Expr]()
        for edge, simplifier in self.edges:
            reads = self._reads(masked, simplifier)
            if reads is None or reads.mixed or len(list(reads.parts())) != len(list(inside.parts())):
                return None
            for (at, base), (_, at_edge) in zip(inside.parts(), reads.parts(), strict=True):
                if at_edge != base.without((Var(self.lane),)):
                    return None
                moved = reads.offsets[at] - edge * base.coefficient(self.lane)
                elements = (inside.offsets[at], moved, reads.alive[at])
                for offset, value, alive in zip(*(e.reshape(-1).tolist() for e in elements), strict=True):
                    read = value if alive else other
                    if found.setdefault((edge, base, offset), read) != read:
                        return None
        for (edge, base, offset), value in found.items():
            number = self.numbers.get((masked.load.buffer.name, True, base))
            if number is not None and self.patched.get((edge, number, offset), value) != value:
                return None
        placed = self._placed(masked, inside, patched=True)
        for (edge, base, offset), value in found.items():
            self.patched[edge, self.numbers[masked.load.buffer.name, True, base], offset] = value
        return placed


def _group(masked: MaskedLoad, base: LinearForm, offsets: set[int]) -> LoadGroup:
    """Return the group of elements at ``offsets``, in the fewest chunks, and the smallest ones of these."""
    buffer = masked.load.buffer
    best: LoadGroup | None = None
    every, lanes = np.array(sorted(offsets), np.int64), 1
    while lanes * buffer.dtype.bytes <= CHUNK_BYTES:
        if buffer.elements % lanes or any(c % lanes for c in base.terms.values()):
            break
        chunks = tuple((np.unique(every // lanes) * lanes).tolist())
        if best is None or len(chunks) < len(best.chunks):
            best = LoadGroup(buffer, base, chunks, lanes, masked)
        lanes *= 2
    assert best is not None
    return best
