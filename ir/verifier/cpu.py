"""The verifier's rules for operations of processors: transposes, dot products, AMX tiles."""

from collections.abc import Callable
from typing import Any

from ..buffer import Buffer, MemoryScope
from ..cpu import (
    DOT_ATOMS,
    TILE_BYTES,
    TILE_ROWS,
    Dot,
    DotAtom,
    PrefetchLine,
    TileLoad,
    TileMma,
    TileStore,
    TileZero,
    Transpose,
)
from ..expr import Expr
from ..stmt import Operation
from .types import BoundNames, RuleBroken, access_lanes


def check_processor_operation(stmt: Operation, names: BoundNames) -> None:
    """Raise RuleBroken where the operands of an operation outside of launches are not what it takes."""
    check = _OPERATIONS.get(type(stmt))
    if check is None:
        raise RuleBroken("launch", f"{type(stmt).__name__} outside of a launch")
    if names.launch is not None:
        raise RuleBroken("launch", f"{type(stmt).__name__} is of processors, and inside a launch")
    check(stmt, names)


def _check_element(buffer: Buffer, indices: tuple[Expr, ...], names: BoundNames) -> None:
    if access_lanes(buffer, indices, None, names) != 1:
        raise RuleBroken("lanes", f"an operation on {buffer.name} at several elements")


def _check_contiguous(buffer: Buffer, elements: int) -> None:
    if not buffer.shape or buffer.shape[-1] < elements:
        raise RuleBroken(
            "operation", f"{elements} contiguous elements of {buffer.name} do not fit {list(buffer.shape)}"
        )


def _transpose(stmt: Transpose, names: BoundNames) -> None:
    _check_element(stmt.target, stmt.target_indices, names)
    _check_element(stmt.source, stmt.source_indices, names)
    if stmt.source.dtype != stmt.target.dtype:
        raise RuleBroken("operation", f"{stmt.source.dtype} is transposed to {stmt.target.name} of {stmt.target.dtype}")
    counts = (stmt.rows, stmt.columns, stmt.unit)
    if any(n < 1 or n & (n - 1) for n in counts) or stmt.unit * stmt.source.dtype.bytes > 8:
        raise RuleBroken(
            "operation", f"{stmt.rows} x {stmt.columns} units of {stmt.unit}; powers of two, of 8 bytes at most"
        )
    if stmt.rows != stmt.columns and stmt.target_pitch != stmt.rows * stmt.unit:
        raise RuleBroken("operation", f"{stmt.rows} x {stmt.columns} units are transposed to rows with gaps")
    if stmt.source_pitch < stmt.columns * stmt.unit or stmt.target_pitch < stmt.rows * stmt.unit:
        raise RuleBroken(
            "operation", f"rows of a block lie {stmt.source_pitch} and {stmt.target_pitch} apart: they overlap"
        )


def _atom(name: str) -> DotAtom:
    atom = DOT_ATOMS.get(name)
    if atom is None:
        raise RuleBroken("operation", f"no instruction {name}; known: {', '.join(DOT_ATOMS)}")
    return atom


def _dot(stmt: Dot, names: BoundNames) -> None:
    atom = _atom(stmt.atom)
    if not atom.feature:
        raise RuleBroken("operation", f"{stmt.atom} is for tiles alone")
    for buffer, indices, dtype, elements in (
        (stmt.d, stmt.d_indices, atom.accumulator, stmt.lanes),
        (stmt.a, stmt.a_indices, atom.left, atom.group),
        (stmt.b, stmt.b_indices, atom.right, stmt.lanes * atom.group),
    ):
        _check_element(buffer, indices, names)
        _check_contiguous(buffer, elements)
        if buffer.dtype != dtype:
            raise RuleBroken("operation", f"{buffer.name} of {stmt.atom} is {buffer.dtype}, not {dtype}")


def _tile(tile: Buffer, indices: tuple[Expr, ...], names: BoundNames) -> None:
    bound = names.buffers.get(tile.name)
    if bound != tile:
        raise RuleBroken("scope", f"tile {tile.name} is not bound here, or was declared otherwise")
    if tile.scope is not MemoryScope.REGISTER or tile.shape[-2:] != (TILE_ROWS, TILE_BYTES // tile.dtype.bytes):
        raise RuleBroken(
            "operation", f"{tile.name} {list(tile.shape)} in {tile.scope} is no tile of 16 rows of 64 bytes"
        )
    if len(indices) != len(tile.shape) - 2:
        raise RuleBroken("indices", f"{len(indices)} indices for the tiles {tile.name} of {len(tile.shape)} dimensions")


def _tile_memory(memory: Buffer, indices: tuple[Expr, ...], tile: Buffer, names: BoundNames) -> None:
    _check_element(memory, indices, names)
    if memory.dtype != tile.dtype:
        raise RuleBroken("operation", f"a tile of {tile.dtype} and {memory.name} of {memory.dtype}")
    if len(memory.shape) < 2 or memory.shape[-2] < TILE_ROWS:
        raise RuleBroken("operation", f"{memory.name} {list(memory.shape)} has no {TILE_ROWS} rows")
    _check_contiguous(memory, tile.shape[-1])


def _tile_zero(stmt: TileZero, names: BoundNames) -> None:
    _tile(stmt.tile, stmt.tile_indices, names)


def _tile_load(stmt: TileLoad, names: BoundNames) -> None:
    _tile(stmt.tile, stmt.tile_indices, names)
    _tile_memory(stmt.source, stmt.source_indices, stmt.tile, names)


def _tile_store(stmt: TileStore, names: BoundNames) -> None:
    _tile(stmt.tile, stmt.tile_indices, names)
    _tile_memory(stmt.target, stmt.target_indices, stmt.tile, names)


def _tile_mma(stmt: TileMma, names: BoundNames) -> None:
    atom = _atom(stmt.atom)
    for tile, indices, dtype in (
        (stmt.d, stmt.d_indices, atom.accumulator),
        (stmt.a, stmt.a_indices, atom.left),
        (stmt.b, stmt.b_indices, atom.right),
    ):
        _tile(tile, indices, names)
        if tile.dtype != dtype:
            raise RuleBroken("operation", f"{tile.name} of {stmt.atom} is {tile.dtype}, not {dtype}")


_OPERATIONS: dict[type[Operation], Callable[[Any, BoundNames], None]] = {
    Transpose: _transpose,
    Dot: _dot,
    TileZero: _tile_zero,
    TileLoad: _tile_load,
    TileStore: _tile_store,
    TileMma: _tile_mma,
    PrefetchLine: lambda stmt, names: _check_element(stmt.source, stmt.source_indices, names),
}
"""What each operation takes."""
