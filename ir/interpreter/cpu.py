"""Operations of processors on arrays. Each gathers its operands by their element numbers, computes, and writes back."""

from collections.abc import Callable
from typing import Any

import numpy as np

from ..buffer import Buffer
from ..cpu import DOT_ATOMS, TILE_ROWS, Dot, DotAtom, PrefetchLine, TileLoad, TileMma, TileStore, TileZero, Transpose
from ..expr import Expr, index
from ..stmt import Stmt
from .context import Closure, Env, InterpreterContext
from .expressions import expr_closure
from .memory import VECTOR_ROUNDING, Array

_ZERO = index(0)


class _ElementBlock:
    """The elements that an operation reads or writes at once: those at fixed ``offsets`` from the indices given."""

    def __init__(self, buffer: Buffer, indices: tuple[Expr, ...], offsets: Array, context: InterpreterContext) -> None:
        self.contents, self.context, self.offsets = context.contents[buffer.name], context, offsets
        self.dimensions = list(zip(buffer.strides, buffer.shape, strict=True))
        self.last = int(offsets.max())
        self.is_run = np.array_equal(offsets.ravel(), np.arange(offsets.size))
        self.indices = [expr_closure(i, context) for i in indices]
        self.detectors = context.detectors_of(buffer.name)
        self.rounding = VECTOR_ROUNDING.get(buffer.dtype.name)

    def begin(self, env: Env) -> int:
        """Return the number of the element at the indices. Raises where an element of the block is out of bounds."""
        begin, inside = 0, True
        for index_of, (stride, extent) in zip(self.indices, self.dimensions, strict=True):
            i = index_of(env)
            inside = inside and 0 <= i < extent
            begin += i * stride
        if not inside or begin + self.last >= len(self.contents.data):
            buffer, at = self.contents.buffer, [i(env) for i in self.indices]
            raise self.context.fault(
                f"a block at {buffer.name}{at} is out of bounds {list(buffer.shape)}", buffer.name, env
            )
        return begin

    def read(self, env: Env) -> Array:
        begin, contents = self.begin(env), self.contents
        if self.is_run and not self.detectors:
            end = begin + self.offsets.size
            if contents.written is None or contents.written.find(0, begin, end) < 0:
                run: Array = contents.data[begin:end].reshape(self.offsets.shape).copy()
                return run
        flat = self.offsets + begin
        if contents.written is not None and not contents.written_view[flat].all():
            first = int(flat[contents.written_view[flat] == 0][0])
            raise self.context.fault(
                f"{contents.element_name(first)} is read before it is written", contents.buffer.name, env
            )
        self._note(flat, env, lambda detector: detector.note_read)
        values: Array = contents.data[flat]
        return values

    def write(self, env: Env, values: Array) -> None:
        flat, contents = self.offsets + self.begin(env), self.contents
        self._note(flat, env, lambda detector: detector.note_write)
        contents.data[flat] = values if self.rounding is None else self.rounding(values)
        contents.written_view[flat] = 1

    def _note(self, flat: Array, env: Env, how: Callable[[Any], Callable[[str, int], bool]]) -> None:
        name = self.contents.buffer.name
        for detector in self.detectors:
            for one in flat.reshape(-1).tolist():
                if not how(detector)(name, one):
                    what = f"iterations of the parallel loop {detector.loop} race on {self.contents.element_name(one)}"
                    raise self.context.fault(what, name, env)


def _tile(buffer: Buffer, indices: tuple[Expr, ...], context: InterpreterContext) -> _ElementBlock:
    columns = buffer.shape[-1]
    offsets = np.arange(TILE_ROWS * columns).reshape(TILE_ROWS, columns)
    return _ElementBlock(buffer, (*indices, _ZERO, _ZERO), offsets, context)


def _memory_tile(buffer: Buffer, indices: tuple[Expr, ...], tile: Buffer, context: InterpreterContext) -> _ElementBlock:
    rows, columns = np.arange(TILE_ROWS) * buffer.strides[-2], np.arange(tile.shape[-1])
    return _ElementBlock(buffer, indices, rows[:, None] + columns, context)


def _transpose(stmt: Transpose, context: InterpreterContext) -> Closure:
    r, c, u = np.ogrid[: stmt.rows, : stmt.columns, : stmt.unit]
    source = _ElementBlock(stmt.source, stmt.source_indices, r * stmt.source_pitch + c * stmt.unit + u, context)
    target = _ElementBlock(stmt.target, stmt.target_indices, c * stmt.target_pitch + r * stmt.unit + u, context)
    return lambda env: target.write(env, source.read(env))


def _dot(stmt: Dot, context: InterpreterContext) -> Closure:
    atom = DOT_ATOMS[stmt.atom]
    d = _ElementBlock(stmt.d, stmt.d_indices, np.arange(stmt.lanes), context)
    a = _ElementBlock(stmt.a, stmt.a_indices, np.arange(atom.group), context)
    b = _ElementBlock(
        stmt.b, stmt.b_indices, np.arange(stmt.lanes * atom.group).reshape(stmt.lanes, atom.group), context
    )
    return lambda env: d.write(env, d.read(env) + _wide(b, env, atom) @ _wide(a, env, atom))


def _wide(block: _ElementBlock, env: Env, atom: DotAtom) -> Array:
    """Factors in the dtype of the accumulator."""
    return block.read(env).astype(atom.accumulator.numpy)


def _tile_zero(stmt: TileZero, context: InterpreterContext) -> Closure:
    tile = _tile(stmt.tile, stmt.tile_indices, context)
    zeros = np.zeros(stmt.tile.shape[-2:], dtype=tile.contents.data.dtype)
    return lambda env: tile.write(env, zeros)


def _tile_load(stmt: TileLoad, context: InterpreterContext) -> Closure:
    tile = _tile(stmt.tile, stmt.tile_indices, context)
    source = _memory_tile(stmt.source, stmt.source_indices, stmt.tile, context)
    return lambda env: tile.write(env, source.read(env))


def _tile_store(stmt: TileStore, context: InterpreterContext) -> Closure:
    tile = _tile(stmt.tile, stmt.tile_indices, context)
    target = _memory_tile(stmt.target, stmt.target_indices, stmt.tile, context)
    return lambda env: target.write(env, tile.read(env))


def _tile_mma(stmt: TileMma, context: InterpreterContext) -> Closure:
    atom = DOT_ATOMS[stmt.atom]
    d, a, b = (
        _tile(t, i, context) for t, i in ((stmt.d, stmt.d_indices), (stmt.a, stmt.a_indices), (stmt.b, stmt.b_indices))
    )

    def run(env: Env) -> None:
        right = _wide(b, env, atom).reshape(TILE_ROWS, -1, atom.group).swapaxes(1, 2).reshape(atom.depth, -1)
        d.write(env, d.read(env) + _wide(a, env, atom) @ right)

    return run


def _prefetch_line(stmt: PrefetchLine, context: InterpreterContext) -> Closure:
    """Checks that the element exists; nothing else is done."""
    element = _ElementBlock(stmt.source, stmt.source_indices, np.arange(1), context)
    return element.begin


OPERATIONS: dict[type[Stmt], Callable[[Any, InterpreterContext], Closure]] = {
    Transpose: _transpose,
    Dot: _dot,
    TileZero: _tile_zero,
    TileLoad: _tile_load,
    TileStore: _tile_store,
    TileMma: _tile_mma,
    PrefetchLine: _prefetch_line,
}
"""The closure of each operation of processors."""
