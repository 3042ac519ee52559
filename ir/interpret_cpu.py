"""Operations of processors on arrays: each gathers its operands by their places, computes, and writes back."""

from collections.abc import Callable
from typing import Any

import numpy as np

from .buffer import Buffer
from .cpu import DOT_ATOMS, TILE_ROWS, Dot, DotAtom, PrefetchLine, TileLoad, TileProduct, TileStore, TileZero, Transpose
from .expr import Expr, index
from .interpret_expr import expr_code
from .interpret_scope import Code, Env, Scope
from .memory import VECTOR_ROUNDING, Array
from .stmt import Stmt

_ZERO = index(0)


class _Block:
    """Some elements of a buffer at fixed distances from a place: what an operation reads or writes at once."""

    def __init__(self, buffer: Buffer, indices: tuple[Expr, ...], offsets: Array, scope: Scope) -> None:
        self.cells, self.scope, self.offsets = scope.cells[buffer.name], scope, offsets
        self.codes = [expr_code(i, scope) for i in indices]
        self.watches = scope.watches_of(buffer.name)
        self.rounding = VECTOR_ROUNDING.get(buffer.dtype.name)

    def places(self, env: Env) -> Array:
        buffer = self.cells.buffer
        at = [code(env) for code in self.codes]
        places: Array = self.offsets + sum(i * stride for i, stride in zip(at, buffer.strides, strict=True))
        inside = all(0 <= i < extent for i, extent in zip(at, buffer.shape, strict=True))
        if not inside or int(places.max()) >= buffer.elements:
            raise self.scope.fault(
                f"a block at {buffer.name}{at} is out of bounds {list(buffer.shape)}", buffer.name, env
            )
        return places

    def read(self, env: Env) -> Array:
        places, cells = self.places(env), self.cells
        if cells.written is not None and not cells.written_view[places].all():
            first = int(places[cells.written_view[places] == 0][0])
            raise self.scope.fault(f"{cells.place(first)} is read before it is written", cells.buffer.name, env)
        self._note(places, env, lambda watch: watch.reads)
        return cells.data[places]

    def write(self, env: Env, values: Array) -> None:
        places, cells = self.places(env), self.cells
        self._note(places, env, lambda watch: watch.writes)
        cells.data[places] = values if self.rounding is None else self.rounding(values)
        cells.written_view[places] = 1

    def _note(self, places: Array, env: Env, how: Callable[[Any], Callable[[str, int], bool]]) -> None:
        name = self.cells.buffer.name
        for watch in self.watches:
            for one in places.reshape(-1).tolist():
                if not how(watch)(name, one):
                    what = f"iterations of the parallel loop {watch.loop} race on {self.cells.place(one)}"
                    raise self.scope.fault(what, name, env)


def _tile(buffer: Buffer, indices: tuple[Expr, ...], scope: Scope) -> _Block:
    columns = buffer.shape[-1]
    offsets = np.arange(TILE_ROWS * columns).reshape(TILE_ROWS, columns)
    return _Block(buffer, (*indices, _ZERO, _ZERO), offsets, scope)


def _memory_tile(buffer: Buffer, indices: tuple[Expr, ...], tile: Buffer, scope: Scope) -> _Block:
    rows, columns = np.arange(TILE_ROWS) * buffer.strides[-2], np.arange(tile.shape[-1])
    return _Block(buffer, indices, rows[:, None] + columns, scope)


def _transpose(stmt: Transpose, scope: Scope) -> Code:
    r, c, u = np.ogrid[: stmt.rows, : stmt.columns, : stmt.unit]
    source = _Block(stmt.source, stmt.source_indices, r * stmt.source_pitch + c * stmt.unit + u, scope)
    target = _Block(stmt.target, stmt.target_indices, c * stmt.target_pitch + r * stmt.unit + u, scope)
    return lambda env: target.write(env, source.read(env))


def _dot(stmt: Dot, scope: Scope) -> Code:
    atom = DOT_ATOMS[stmt.atom]
    d = _Block(stmt.d, stmt.d_indices, np.arange(stmt.lanes), scope)
    a = _Block(stmt.a, stmt.a_indices, np.arange(atom.group), scope)
    b = _Block(stmt.b, stmt.b_indices, np.arange(stmt.lanes * atom.group).reshape(stmt.lanes, atom.group), scope)
    return lambda env: d.write(env, d.read(env) + _wide(b, env, atom) @ _wide(a, env, atom))


def _wide(block: _Block, env: Env, atom: DotAtom) -> Array:
    """Factors in the type of the sum."""
    return block.read(env).astype(atom.accumulator.numpy)


def _tile_zero(stmt: TileZero, scope: Scope) -> Code:
    tile = _tile(stmt.tile, stmt.tile_indices, scope)
    zeros = np.zeros(stmt.tile.shape[-2:], dtype=tile.cells.data.dtype)
    return lambda env: tile.write(env, zeros)


def _tile_load(stmt: TileLoad, scope: Scope) -> Code:
    tile = _tile(stmt.tile, stmt.tile_indices, scope)
    source = _memory_tile(stmt.source, stmt.source_indices, stmt.tile, scope)
    return lambda env: tile.write(env, source.read(env))


def _tile_store(stmt: TileStore, scope: Scope) -> Code:
    tile = _tile(stmt.tile, stmt.tile_indices, scope)
    target = _memory_tile(stmt.target, stmt.target_indices, stmt.tile, scope)
    return lambda env: target.write(env, tile.read(env))


def _tile_product(stmt: TileProduct, scope: Scope) -> Code:
    atom = DOT_ATOMS[stmt.atom]
    d, a, b = (
        _tile(t, i, scope) for t, i in ((stmt.d, stmt.d_indices), (stmt.a, stmt.a_indices), (stmt.b, stmt.b_indices))
    )

    def run(env: Env) -> None:
        right = _wide(b, env, atom).reshape(TILE_ROWS, -1, atom.group).swapaxes(1, 2).reshape(atom.depth, -1)
        d.write(env, d.read(env) + _wide(a, env, atom) @ right)

    return run


def _prefetch_line(stmt: PrefetchLine, scope: Scope) -> Code:
    """That the element exists is all there is to check."""
    element = _Block(stmt.source, stmt.source_indices, np.arange(1), scope)
    return lambda env: element.places(env)


OPERATIONS: dict[type[Stmt], Callable[[Any, Scope], Code]] = {
    Transpose: _transpose,
    Dot: _dot,
    TileZero: _tile_zero,
    TileLoad: _tile_load,
    TileStore: _tile_store,
    TileProduct: _tile_product,
    PrefetchLine: _prefetch_line,
}
"""How each operation of processors is run."""
