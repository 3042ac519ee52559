"""The outputs of a tile, piece by piece: long sums are accumulated term by term, so that what a term reads is loaded
shortly before it, and need not be kept.

    Y = f(((a + b) + c) + d)    ->    sum = a + b;  sum = sum + c;  sum = sum + d;  Y = f(sum)
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from ....ir.buffer import Buffer
from ....ir.expr import Binary, BinaryOp, Expr, Load, Select, rebuild
from ....te.workload import Stage
from ...problems.pointwise import Pointwise
from ...tile.masked_loads import MaskedLoad, masked_loads_of
from .loads import ThreadTile, TileLoads

AHEAD_REGISTERS = 32
"""Registers for what later pieces read, about: their loads are under way."""
LEAST_TERMS = 8
"""Terms of a sum that is accumulated, at least; others are computed as one expression."""


Loaded: TypeAlias = tuple[int, int] | MaskedLoad
"""The numbers of a group and of a chunk of it, or a load that has no group."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A step towards the elements of ``stage``. ``value`` is on the axes of the stage and may read ``total``, what the
    pieces before it have accumulated; it is the next total, or the output where ``last``."""

    stage: Stage
    value: Expr
    total: Load | None
    last: bool

    @property
    def loads(self) -> tuple[MaskedLoad, ...]:
        """The masked loads of the piece."""
        return tuple(m for m in masked_loads_of(self.value) if m.load != self.total)


@dataclass(frozen=True, slots=True)
class LoadOrder:
    """When a tile loads what its pieces read. ``ahead``: what is loaded ahead of each piece. ``registers``: how
    many hold what was loaded, at most."""

    ahead: tuple[tuple[Loaded, ...], ...]
    registers: int


def load_order(problem: Pointwise, tile: ThreadTile, loads: TileLoads) -> LoadOrder:
    """Return when a tile loads what its pieces read: the loads of the next pieces are under way while a piece is
    computed."""
    needed = [_needed(problem, loads, piece) for piece in pieces_of(problem)]
    last = {chunk: n for n, chunks in enumerate(needed) for chunk in chunks}

    sizes = {
        c: tile.width * tile.unroll if isinstance(c, MaskedLoad) else loads.groups[c[0]].chunk_registers for c in last
    }
    ahead, waiting, begun = list[tuple[Loaded, ...]](), dict[Loaded, None](), 0
    loaded, most = set[Loaded](), 0
    for n, own in enumerate(needed):
        now = list[Loaded]()
        while begun < len(needed) and (begun <= n or sum(sizes[c] for c in waiting) < AHEAD_REGISTERS):
            new = [c for c in needed[begun] if c not in loaded]
            now += new
            loaded.update(new)
            waiting |= dict.fromkeys(new)
            begun += 1
        ahead.append(tuple(now))
        most = max(most, sum(sizes[c] for c in loaded if last[c] >= n))
        for c in own:
            waiting.pop(c, None)
    return LoadOrder(tuple(ahead), most)


def _needed(problem: Pointwise, loads: TileLoads, piece: Piece) -> dict[Loaded, None]:
    """Return what a piece reads, in the order of its loads."""
    found = dict[Loaded, None]()
    for masked in (problem.loads[m] for m in piece.loads):
        if masked not in loads.places:
            found[masked] = None
            continue
        numbers, places = loads.places[masked]
        for number in np.unique(numbers[numbers >= 0]).tolist():
            chunks = np.unique(places[numbers == number] // loads.groups[number].lanes)
            found |= dict.fromkeys((number, chunk) for chunk in chunks.tolist())
    return found


def pieces_of(problem: Pointwise) -> tuple[Piece, ...]:
    """Return the pieces of all outputs, in their order."""
    return tuple(piece for stage in problem.stages for piece in _pieces(stage))


def _pieces(stage: Stage) -> Iterator[Piece]:
    found = _longest(stage.body)
    terms = [] if found is None else _terms(found)
    if not isinstance(found, Binary) or len(terms) < LEAST_TERMS:
        yield Piece(stage, stage.body, None, last=True)
        return
    total = Load(Buffer(f"{stage.name}_total#", (), found.dtype), ())
    value = Binary(found.op, terms[0], terms[1])
    for term in terms[2:]:
        yield Piece(stage, value, total, last=False)
        value = Binary(found.op, total, term)
    yield Piece(stage, value, total, last=False)
    yield Piece(stage, _with(stage.body, found, total), total, last=True)


def _longest(e: Expr) -> Expr | None:
    """Return the sum, product, minimum or maximum with the most terms that no condition guards."""
    best = e if _accumulates(e) else None
    for child in () if isinstance(e, (Select, Load)) else e.children:
        found = _longest(child)
        if found is not None and (best is None or len(_terms(found)) > len(_terms(best))):
            best = found
    return best


def _accumulates(e: Expr) -> bool:
    operations = (BinaryOp.ADD, BinaryOp.MUL, BinaryOp.MIN, BinaryOp.MAX)
    return isinstance(e, Binary) and e.op in operations and e.dtype.bits >= 32 and not e.dtype.is_bool


def _terms(e: Expr) -> list[Expr]:
    """Return what is combined from left to right."""
    terms = list[Expr]()
    first = e
    while isinstance(first, Binary) and isinstance(e, Binary) and first.op is e.op:
        terms.append(first.b)
        first = first.a
    return [first, *reversed(terms)]


def _with(e: Expr, part: Expr, value: Expr) -> Expr:
    """Return ``e`` with ``value`` for each ``part`` of it."""
    if e == part:
        return value
    return rebuild(e, [_with(c, part, value) for c in e.children]) if e.children else e
