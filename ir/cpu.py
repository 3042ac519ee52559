"""Operations of processors, which stand outside of launches: transposes of blocks in registers, dot products in every
lane (AVX512-VNNI and AVX512-BF16), and matrix instructions on tiles (AMX).

A tile is ``TILE_ROWS`` rows of ``TILE_BYTES`` in a register of its own kind: the last two dimensions of a register
buffer that only operations on tiles touch. ``TILES`` of them may be alive at once. They belong to the thread.
"""

from dataclasses import dataclass

from ..core.dtypes import DType, bfloat16, float32, int8, int32, uint8
from .buffer import Buffer
from .expr import Expr
from .stmt import Operation

TILES = 8
TILE_ROWS = 16
TILE_BYTES = 64
LEAST_TRANSPOSED = 4
"""Gathers are put together to a transpose in registers where they make up so many of its columns or more."""


@dataclass(frozen=True, slots=True)
class Transpose(Operation):
    """Transposes ``rows`` x ``columns`` units of ``unit`` contiguous elements each: unit ``c`` of row ``r`` of the
    source becomes unit ``r`` of row ``c`` of the target.

    Row ``r`` begins ``r * pitch`` elements behind the indices given, on either side. ``rows`` and ``columns`` are
    powers of two. Either they are equal, or the rows of the target follow one another without a gap.
    """

    target: Buffer
    target_indices: tuple[Expr, ...]
    target_pitch: int
    source: Buffer
    source_indices: tuple[Expr, ...]
    source_pitch: int
    rows: int
    columns: int
    unit: int = 1


@dataclass(frozen=True, slots=True)
class DotAtom:
    """A dot product of ``group`` contiguous elements: the dtypes of the left and right factors and of the accumulator.
    ``feature`` names the extension of the instruction set that has it on vectors, ``tile_feature`` the one that has it
    on tiles."""

    name: str
    left: DType
    right: DType
    accumulator: DType
    group: int
    feature: str
    tile_feature: str

    @property
    def depth(self) -> int:
        """Return how many elements a row of a tile of the left factor has: as many steps of k does one TileMma."""
        return TILE_BYTES // self.left.bytes


DOT_ATOMS: dict[str, DotAtom] = {
    a.name: a
    for a in (
        DotAtom("bf16", bfloat16, bfloat16, float32, 2, "avx512bf16", "amx-bf16"),
        DotAtom("s8s8", int8, int8, int32, 4, "", "amx-int8"),
        DotAtom("u8s8", uint8, int8, int32, 4, "avx512vnni", "amx-int8"),
        DotAtom("s8u8", int8, uint8, int32, 4, "avx512vnni", "amx-int8"),
    )
}
"""Name -> instruction. Where its feature is "" there is none on vectors. Integer accumulators wrap. 16-bit floats that
are too small to be normal count as zero."""


@dataclass(frozen=True, slots=True)
class Dot(Operation):
    """``d[l] += sum over p of a[p] * b[l * group + p]`` for ``lanes`` contiguous lanes ``l``, with ``p`` below the
    atom's group. All three begin at the indices given and go along the last dimension."""

    atom: str
    d: Buffer
    d_indices: tuple[Expr, ...]
    a: Buffer
    a_indices: tuple[Expr, ...]
    b: Buffer
    b_indices: tuple[Expr, ...]
    lanes: int


@dataclass(frozen=True, slots=True)
class TileZero(Operation):
    """Makes all elements of a tile 0. ``tile_indices`` are those of the dimensions before its last two."""

    tile: Buffer
    tile_indices: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class TileLoad(Operation):
    """Loads a tile: its rows are those of the last two dimensions of ``source`` from the indices given on."""

    tile: Buffer
    tile_indices: tuple[Expr, ...]
    source: Buffer
    source_indices: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class TileStore(Operation):
    """Stores a tile to memory, which lies as in ``TileLoad``."""

    target: Buffer
    target_indices: tuple[Expr, ...]
    tile: Buffer
    tile_indices: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class TileMma(Operation):
    """``d[i, j] += sum over p of a[i, p] * b[p // group, j * group + p % group]``: 16 x 16 accumulators, each with
    ``atom.depth`` products (``tdpbf16ps``, ``tdpbssd``, ``tdpbusd``, ``tdpbsud``)."""

    atom: str
    d: Buffer
    d_indices: tuple[Expr, ...]
    a: Buffer
    a_indices: tuple[Expr, ...]
    b: Buffer
    b_indices: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class PrefetchLine(Operation):
    """Asks for the cache line that ``source[source_indices]`` lies in to be brought into the L2 cache. Nothing is read
    by it."""

    source: Buffer
    source_indices: tuple[Expr, ...]


PROCESSOR_OPERATIONS = (Transpose, Dot, TileZero, TileLoad, TileStore, TileMma, PrefetchLine)
TILE_OPERATIONS = (TileZero, TileLoad, TileStore, TileMma)


def tiles_of(stmt: Operation) -> tuple[tuple[Buffer, tuple[Expr, ...]], ...]:
    """Return the tiles among the operands of an operation, each with its indices."""
    match stmt:
        case TileZero() | TileLoad() | TileStore():
            return ((stmt.tile, stmt.tile_indices),)
        case TileMma():
            return ((stmt.d, stmt.d_indices), (stmt.a, stmt.a_indices), (stmt.b, stmt.b_indices))
    return ()


def written_by(stmt: Operation) -> tuple[Buffer, ...]:
    """Return the buffers that an operation of processors writes to: its first one, or none."""
    return () if isinstance(stmt, PrefetchLine) else stmt.buffers[:1]
