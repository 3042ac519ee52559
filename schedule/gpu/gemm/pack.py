"""Operands that must be K-major and are not, and those that are split into planes, are packed first.

A launch for each operand writes it to workspace in rows along ``k``, at multiples of 16 bytes, filled with zeros:
(members of the batch, plane, place of m or n, k). Filters of images seen through a window are (member and tap, place of
n, channel). Planes are what a float32 is split into: the number rounded to TF32 or bfloat16, what that leaves over,
rounded again, and so on. Infinities have no such parts: they become NaN.
"""

from dataclasses import replace
from math import prod

from ....core.dtypes import DType, float32
from ....ir.buffer import Buffer, Layout, MemoryScope
from ....ir.expr import Broadcast, Cast, Expr, Load, Ramp, Var, index, logical_and
from ....ir.gpu.barrier import SyncScope
from ....ir.rewrite import free_variables, substitute
from ....ir.stmt import HardwareAxis
from ....te.functions import cast
from ....te.workload import Axis
from ...problems.gemm import Gemm, Operand
from ...problems.image_window import TAP
from ...tile.load_analysis import conditions_inside
from ...tile.names import FreshNameWriter
from ...tile.stage_body import vector_at
from ..tma_view import operand_view
from .k_atoms import row_depth
from .mma_atom import PLANES, is_packed, splitting, wgmma_atom

SIDE = 64
"""A CTA packs so many places of ``m`` or ``n`` by as many of ``k``."""
THREADS = 256
VECTOR = 4
"""A thread writes so many neighbours along ``k`` at once."""
ROW_ALIGNMENT_BYTES = 16


def pack(w: FreshNameWriter, gemm: Gemm) -> tuple[Gemm, tuple[Buffer, ...]]:
    """Return the same product on packed operands, and the workspace that they lie in. The launches that fill it are
    written; none where no operand is packed."""
    packed: list[Buffer] = []
    atom = wgmma_atom(gemm)

    def replaced(operand: Operand, axis: str, dtype: DType) -> Operand:
        if not is_packed(gemm, operand):
            return operand
        load = pack_operand(w, gemm, operand, axis, dtype)
        packed.append(load.buffer)
        return replace(operand, load=load)

    a, b = replaced(gemm.a, "m", atom.a), replaced(gemm.b, "n", atom.b)
    others = tuple(replace(o, b=replaced(o.b, "n", atom.b)) for o in gemm.others)
    return replace(gemm, a=a, b=b, others=others), tuple(packed)


def pack_operand(w: FreshNameWriter, gemm: Gemm, operand: Operand, axis: str, dtype: DType) -> Load:
    """Write the launch that packs an operand along ``axis`` (``m`` or ``n``) and ``k`` into elements of ``dtype``, and
    return what the product loads instead."""
    assert operand.load is not None
    source, planes = operand.load, max(splitting(gemm).planes, 1)
    extents, depth = {"m": gemm.m.extent, "n": gemm.n.extent}, row_depth(gemm)
    batch = [x for x in gemm.batch if x.name in {v for i in source.indices for v in free_variables(i)}]
    batch += [] if gemm.window is None else [Axis(TAP, gemm.window.tap_count)]
    unit = max(ROW_ALIGNMENT_BYTES // dtype.bytes, VECTOR)
    pitch = -(-depth // unit) * unit
    shape = (*(x.extent for x in batch), *([planes] if planes > 1 else []), extents[axis], pitch)
    packed = Buffer(w.fresh(f"{source.buffer.name}_packed"), shape, dtype)
    tiles, tiles_k = -(-extents[axis] // SIDE), -(-pitch // SIDE)
    members = prod(x.extent for x in batch)
    known = {axis: extents[axis], "k": depth, **{x.name: x.extent for x in batch}}
    exists = [Var("k") < depth, *conditions_inside(source, known)]
    axes = [("pack_cta", members * tiles * tiles_k, HardwareAxis.GRID_X), ("pack_thread", THREADS, HardwareAxis.THREAD)]
    with w.launch(f"pack_{axis}", axes) as (cta, thread):
        at = dict[str, Expr]()
        member = cta // (tiles * tiles_k)
        for x in reversed(batch):
            at[x.name], member = member % x.extent, member // x.extent
        at |= {axis: cta // tiles_k % tiles * SIDE, "k": cta % tiles_k * SIDE}
        tile = None
        if operand_view(source).indices[-1] != Var("k"):
            tile = _stage(w, source, axis, [Var(axis) < extents[axis], *exists], at, thread)
        outer = [at[x.name] for x in batch]
        with w.unrolled("packed_vector", SIDE * SIDE // (VECTOR * THREADS)) as number:
            vector = number * THREADS + thread
            row, k = vector // (SIDE // VECTOR), vector % (SIDE // VECTOR) * VECTOR
            place, first = at[axis] + row, at["k"] + k
            with w.when(place < extents[axis], first < pitch):
                if tile is not None:
                    value: Expr = Load(tile, (Ramp(k, 1, VECTOR), Broadcast(row, VECTOR)))
                else:
                    here = {**at, axis: place, "k": first}
                    inside = vector_at(logical_and(*exists), here, "k", VECTOR)
                    indices = tuple(vector_at(i, here, "k", VECTOR) for i in source.indices)
                    value = Load(source.buffer, indices, inside if pitch > depth or len(exists) > 1 else None)
                _store_planes(w, packed, [*outer], planes, place, first, value)
    numbers = [Var(x.name) for x in batch]
    plane = [Var(PLANES[axis])] if planes > 1 else []
    return Load(packed, (*numbers, *plane, Var(axis), Var("k")))


def _stage(
    w: FreshNameWriter, source: Load, axis: str, exists: list[Expr], at: dict[str, Expr], thread: Expr
) -> Buffer:
    """Load a tile whose rows lie along ``axis`` into shared memory, (k, place), zeros for what does not exist."""
    dtype = source.buffer.dtype
    tile = w.allocate("tile", (SIDE, SIDE), dtype, MemoryScope.SHARED, Layout((SIDE + 1, 1)))
    with w.unrolled("staged_element", SIDE * SIDE // THREADS) as number:
        element = number * THREADS + thread
        k, column = element // SIDE, element % SIDE
        here = {**at, axis: at[axis] + column, "k": at["k"] + k}
        inside = substitute(logical_and(*exists), here)
        w.store(tile, (k, column), Load(source.buffer, tuple(substitute(i, here) for i in source.indices), inside))
    w.barrier(SyncScope.BLOCK)
    return tile


def _store_planes(
    w: FreshNameWriter, packed: Buffer, outer: list[Expr], planes: int, place: Expr, k: Expr, value: Expr
) -> None:
    """Store all parts of a vector along ``k``."""
    for plane in range(planes):
        part = cast(value, packed.dtype)
        indices = [*outer, *([index(plane)] if planes > 1 else []), place]
        w.store(packed, (*(Broadcast(i, VECTOR) for i in indices), Ramp(k, 1, VECTOR)), part)
        if plane + 1 < planes:
            value = value - Cast(part, float32)
