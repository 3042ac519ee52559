"""Scales of blocks of 32 places of k (MXFP8), on their way to tensor memory.

A launch ahead of the product puts them into chunks, as ``tcgen05.cp`` takes them: the scales of 4 blocks of k, a row of
128 bytes of an 8-bit operand, for 128 rows. The producer loads the chunks of a stage by TMA, beside the operands. The
thread that multiplies copies them to tensor memory, ahead of its products.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from ....core.dtypes import uint8
from ....ir.buffer import Buffer, MemoryScope
from ....ir.build import Writer
from ....ir.expr import Expr, Load, Var, index, logical_and
from ....ir.gpu.tcgen05 import (
    BLOCK_SCALED_ATOMS,
    CHUNK_BYTES,
    QUARTER_LANES,
    SCALE_COLUMNS,
    SCALE_ROWS,
    SCALES_PER_COLUMN,
    TensorMemoryCopy,
)
from ....ir.gpu.tma import TmaLoad
from ....ir.rewrite import substitute
from ....ir.stmt import HardwareAxis
from ...problems.gemm import Gemm
from ...tile.names import FreshNameWriter

ATOM = "mxfp8"
LINE = BLOCK_SCALED_ATOMS[ATOM].line
BLOCK = BLOCK_SCALED_ATOMS[ATOM].block
THREADS = 256
CHUNK_SHAPE = (QUARTER_LANES, CHUNK_BYTES // QUARTER_LANES)


def pack_scales(w: FreshNameWriter, gemm: Gemm) -> tuple[Gemm, tuple[Buffer, ...]]:
    """Return the same product on scales in chunks (chunk of rows, row of 128 bytes of k, 32, 16), and the workspace
    that they lie in. The launches that fill it are written; none where there are no such scales."""
    if gemm.block_scales is None:
        return gemm, ()
    a, b = gemm.block_scales
    packed = (
        _write_launch(w, a, "m", gemm.m.extent, gemm.k.extent),
        _write_launch(w, b, "n", gemm.n.extent, gemm.k.extent),
    )
    return replace(gemm, block_scales=packed), tuple(load.buffer for load in packed)


def _write_launch(w: FreshNameWriter, scales: Load, axis: str, rows: int, depth: int) -> Load:
    """Write the launch that packs the scales of one operand. Where there are none it writes zeros."""
    chunks, lines, blocks = -(-rows // SCALE_ROWS), -(-depth // LINE), -(-depth // BLOCK)
    packed = Buffer(w.fresh(f"{scales.buffer.name}_chunks"), (chunks, lines, *CHUNK_SHAPE), uint8)
    axes = [
        ("scales_cta", -(-packed.elements // THREADS), HardwareAxis.GRID_X),
        ("scales_thread", THREADS, HardwareAxis.THREAD),
    ]
    with w.launch(f"pack_scales_{axis}", axes) as (cta, thread):
        element = cta * THREADS + thread
        chunk, line = element // (CHUNK_BYTES * lines), element // CHUNK_BYTES % lines
        lane, byte = element // CHUNK_SHAPE[1] % QUARTER_LANES, element % CHUNK_SHAPE[1]
        row = chunk * SCALE_ROWS + byte // SCALES_PER_COLUMN * QUARTER_LANES + lane
        block = line * (LINE // BLOCK) + byte % SCALES_PER_COLUMN
        indices = tuple(substitute(i, {axis: row, "k": block * BLOCK}) for i in scales.indices)
        inside = logical_and(row < rows, block < blocks)
        with w.when(element < packed.elements if packed.elements % THREADS else None):
            value = Load(scales.buffer, indices, inside)
            w.store(packed, (chunk, line, lane, byte), value)
    return Load(packed, (Var(axis), Var("k"), index(0), index(0)))


@dataclass(frozen=True, slots=True)
class ScaleStages:
    """The scales of one operand in shared memory: (stage, k atom, chunk, 32, 16). ``column``: where in the columns of a
    warpgroup they begin in tensor memory."""

    buffer: Buffer
    chunks: Buffer
    axis: str
    column: int

    @property
    def stage_bytes(self) -> int:
        return self.buffer.bytes // self.buffer.shape[0]

    def load(self, stage: Expr, k_atom: int, at: Mapping[str, Expr], full: Buffer) -> TmaLoad:
        """Return the load of the scales of a k atom that begins at ``at`` (axis -> index)."""
        corner = (at[self.axis] // SCALE_ROWS, at["k"] // LINE, index(0), index(0))
        target = (stage, index(k_atom), index(0), index(0), index(0))
        box = (self.buffer.shape[2], 1, *CHUNK_SHAPE)
        return TmaLoad(self.buffer, target, self.chunks, corner, box, full, stage, True)

    def copy(self, memory: Buffer, first: Expr, stage: Expr, k_atom: int, chunk: Expr, chunks: int) -> TensorMemoryCopy:
        """Return the copy of some chunks of a k atom to tensor memory, whose columns for the warpgroup begin at
        ``first``."""
        source = (stage, index(k_atom), chunk, index(0), index(0))
        return TensorMemoryCopy(memory, (index(0), first + self.column), self.buffer, source, chunks)


def allocate_scale_stages(
    w: Writer, gemm: Gemm, stages: int, k_atoms: int, tile_m: int, tile_n: int
) -> Iterator[ScaleStages]:
    """Yield the stages of the scales of A and of B; none where there are no such scales."""
    if gemm.block_scales is None:
        return
    column = 0
    for name, load, axis, rows in (
        ("a_scales", gemm.block_scales[0], "m", tile_m),
        ("b_scales", gemm.block_scales[1], "n", tile_n),
    ):
        shape = (stages, k_atoms, rows // SCALE_ROWS, *CHUNK_SHAPE)
        yield ScaleStages(w.allocate(name, shape, uint8, MemoryScope.SHARED), load.buffer, axis, column)
        column += SCALE_COLUMNS
