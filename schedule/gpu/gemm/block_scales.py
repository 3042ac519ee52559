"""Scales of blocks of k (MXFP8, MXFP4, NVFP4), on their way to tensor memory.

A launch ahead of the product puts them into chunks, as ``tcgen05.cp`` takes them: the scales of 4 blocks of k for 128
rows. A k atom, 128 bytes of an operand, has 1 group of 4 blocks (MXFP8), 2 (MXFP4) or 4 (NVFP4). The producer loads the
chunks of a stage by TMA, beside the operands. The thread that multiplies copies them to tensor memory, ahead of its
products.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from ....ir.buffer import Buffer, MemoryScope
from ....ir.build import Writer
from ....ir.expr import Expr, Load, Unary, UnaryOp, index, logical_and
from ....ir.gpu.tcgen05 import (
    CHUNK_BYTES,
    QUARTER_LANES,
    SCALE_COLUMNS,
    SCALE_ROWS,
    SCALES_PER_COLUMN,
    TensorMemoryCopy,
)
from ....ir.gpu.tma import TmaLoad
from ....ir.gpu.wgmma import LINE_BYTES
from ....ir.stmt import HardwareAxis
from ...problems.gemm import Gemm
from ...tile.names import FreshNameWriter
from .k_atoms import k_atom_count

THREADS = 256
CHUNK_SHAPE = (QUARTER_LANES, CHUNK_BYTES // QUARTER_LANES)


def scale_groups(gemm: Gemm) -> int:
    """Return how many groups of 4 scales a row of a k atom has; 0 where there are no such scales."""
    if gemm.block_scales is None:
        return 0
    return gemm.block_scales.atom.line // gemm.block_scales.atom.block // SCALES_PER_COLUMN


def pack_scales(w: FreshNameWriter, gemm: Gemm) -> tuple[Gemm, tuple[Buffer, ...]]:
    """Return the same product on scales in chunks (group of k, chunk of rows, 32, 16), and the workspace that they lie
    in. The launches that fill it are written; none where there are no such scales."""
    scales = gemm.block_scales
    if scales is None:
        return gemm, ()
    blocks = -(-gemm.k.extent * 8 // scales.atom.bits // scales.atom.block)
    groups = k_atom_count(gemm) * scale_groups(gemm)
    a, b = (_write_launch(w, buffer, axis, groups, blocks) for buffer, axis in ((scales.a, "m"), (scales.b, "n")))
    return replace(gemm, block_scales=replace(scales, a=a, b=b)), (a, b)


def _write_launch(w: FreshNameWriter, scales: Buffer, axis: str, groups: int, blocks: int) -> Buffer:
    """Write the launch that packs ``blocks`` scales of each row of one operand, without signs. Where there are none it
    writes zeros."""
    rows = scales.shape[0]
    chunks = -(-rows // SCALE_ROWS)
    packed = Buffer(w.fresh(f"{scales.name}_chunks"), (groups, chunks, *CHUNK_SHAPE), scales.dtype)
    axes = [
        ("scales_cta", -(-packed.elements // THREADS), HardwareAxis.GRID_X),
        ("scales_thread", THREADS, HardwareAxis.THREAD),
    ]
    with w.launch(f"pack_scales_{axis}", axes) as (cta, thread):
        element = cta * THREADS + thread
        group, chunk = element // (CHUNK_BYTES * chunks), element // CHUNK_BYTES % chunks
        lane, byte = element // CHUNK_SHAPE[1] % QUARTER_LANES, element % CHUNK_SHAPE[1]
        row = chunk * SCALE_ROWS + byte // SCALES_PER_COLUMN * QUARTER_LANES + lane
        block = group * SCALES_PER_COLUMN + byte % SCALES_PER_COLUMN
        value: Expr = Load(scales, (row, block), logical_and(row < rows, block < blocks))
        with w.when(element < packed.elements if packed.elements % THREADS else None):
            w.store(packed, (group, chunk, lane, byte), Unary(UnaryOp.ABS, value) if scales.dtype.is_float else value)
    return packed


@dataclass(frozen=True, slots=True)
class ScaleStages:
    """The scales of one operand in shared memory: (stage, group of k, chunk of rows, 32, 16), with ``groups`` of each k
    atom. ``column``: where in the columns of a warpgroup they begin in tensor memory."""

    buffer: Buffer
    packed: Buffer
    axis: str
    groups: int
    column: int

    @property
    def stage_bytes(self) -> int:
        return self.buffer.bytes // self.buffer.shape[0]

    def load(self, stage: Expr, k_atom: int, at: Mapping[str, Expr], full: Buffer) -> TmaLoad:
        """Return the load of the scales of a k atom that begins at ``at`` (axis -> index)."""
        corner = (at["k"] // LINE_BYTES * self.groups, at[self.axis] // SCALE_ROWS, index(0), index(0))
        target = (stage, index(k_atom * self.groups), index(0), index(0), index(0))
        box = (self.groups, *self.buffer.shape[2:])
        return TmaLoad(self.buffer, target, self.packed, corner, box, full, stage, True)

    def copies(
        self, memory: Buffer, first: Expr, stage: Expr, k_atom: int, chunk: Expr, chunks: int
    ) -> Iterator[TensorMemoryCopy]:
        """Yield the copies of some chunks of a k atom to tensor memory, whose columns for the warpgroup begin at
        ``first``. Those of a group follow those of the group before."""
        for group in range(self.groups):
            source = (stage, index(k_atom * self.groups + group), chunk, index(0), index(0))
            column = first + (self.column + group * chunks * SCALE_COLUMNS)
            yield TensorMemoryCopy(memory, (index(0), column), self.buffer, source, chunks)


def allocate_scale_stages(
    w: Writer, gemm: Gemm, stages: int, k_atoms: int, tile_m: int, tile_n: int
) -> Iterator[ScaleStages]:
    """Yield the stages of the scales of A and of B; none where there are no such scales."""
    if gemm.block_scales is None:
        return
    groups, column = scale_groups(gemm), 0
    for name, packed, axis, rows in (
        ("a_scales", gemm.block_scales.a, "m", tile_m),
        ("b_scales", gemm.block_scales.b, "n", tile_n),
    ):
        shape = (stages, k_atoms * groups, rows // SCALE_ROWS, *CHUNK_SHAPE)
        yield ScaleStages(w.allocate(name, shape, packed.dtype, MemoryScope.SHARED), packed, axis, groups, column)
        column += SCALE_COLUMNS * groups
