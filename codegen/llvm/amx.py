"""Tile registers (Intel AMX). Their numbers are assigned at compile time. Each function that uses tiles configures
them, and each process asks the operating system once for permission.

Source: "Intel 64 and IA-32 Architectures Software Developer's Manual", volume 1, chapter 18. The permission is
described in Documentation/arch/x86/xstate.rst of Linux.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from math import prod

from ...core.errors import CompileError
from ...ir.buffer import Buffer
from ...ir.cpu import DOT_ATOMS, TILE_BYTES, TILE_ROWS, TILES, TileLoad, TileMma, TileStore, TileZero
from ...ir.expr import Const, Expr
from ...ir.linear_form import flat_form
from ...ir.stmt import Operation
from .expressions import evaluate
from .function_context import FunctionContext
from .memory import address
from .values import LlvmValue
from .writer import FunctionWriter

ARCH_PRCTL_SYSCALL = 158
ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA = 0x1023, 18
"""These are the arguments of ``arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA)``."""
_CONFIGURATION = "tile.configuration"
_REQUESTED = "tile.asked"
_PRODUCTS = {"bf16": "tdpbf16ps", "s8s8": "tdpbssd", "u8s8": "tdpbusd", "s8u8": "tdpbsud"}


def request_tile_permission(w: FunctionWriter) -> None:
    """Write code that asks the operating system for permission to use tiles, in the first call of a kernel. A kernel
    must not be called in a process that was refused; ``runtime.hardware`` leaves the feature out there."""
    w.module.global_value(_REQUESTED, "internal global i8 0")
    asked = w.assign(f"load i8, ptr @{_REQUESTED}, align 1", "i8", hint="asked")
    first = w.assign(f"icmp eq i8 {asked.text}, 0", "i1", hint="first")
    yes, after = w.label("ask"), w.label("asked")
    w.branch(first, yes, after)
    w.begin_block(yes)
    w.module.declare("declare i64 @syscall(i64, ...)")
    w.line(
        f"call i64 (i64, ...) @syscall(i64 {ARCH_PRCTL_SYSCALL}, i64 {ARCH_REQ_XCOMP_PERM}, i64 {XFEATURE_XTILEDATA})"
    )
    w.line(f"store i8 1, ptr @{_REQUESTED}, align 1")
    w.jump(after)
    w.begin_block(after)


def configure_tiles(ctx: FunctionContext) -> None:
    """Configure all tiles of this thread: each gets 16 rows of 64 bytes, which are zero."""
    sizes = [1] + [0] * 15 + [TILE_BYTES, 0] * TILES + [0] * 16 + [TILE_ROWS] * TILES + [0] * 8
    text = ", ".join(f"i8 {n}" for n in sizes)
    ctx.w.module.global_value(_CONFIGURATION, f"internal constant [64 x i8] [{text}], align 64")
    _call(ctx, "ldtilecfg", f"ptr @{_CONFIGURATION}", "ptr")
    ctx.tiles_configured = True


def release_tiles(ctx: FunctionContext) -> None:
    """Tell the processor that it need not keep the tiles of this thread any more."""
    _call(ctx, "tilerelease", "", "")


@contextmanager
def allocate_tiles(ctx: FunctionContext, buffer: Buffer) -> Iterator[None]:
    """Assign tile registers to ``buffer`` while the body of the with statement is written. Raises CompileError when
    too few are left."""
    first = sum(prod(shape) for shape in ctx.tile_shapes.values())
    if first + prod(buffer.shape[:-2]) > TILES:
        raise CompileError(f"{buffer.name} {list(buffer.shape)} needs more than the {TILES - first} tiles left")
    ctx.tiles[buffer.name], ctx.tile_shapes[buffer.name] = first, buffer.shape[:-2]
    yield
    del ctx.tiles[buffer.name], ctx.tile_shapes[buffer.name]


def emit_tile_operation(ctx: FunctionContext, stmt: Operation) -> None:
    """Write one operation on tiles. Raises CompileError where the target has no such instruction."""
    match stmt:
        case TileZero():
            _call(ctx, "tilezero", f"i8 {_tile_number(ctx, stmt.tile, stmt.tile_indices)}", "i8")
        case TileLoad():
            number = _tile_number(ctx, stmt.tile, stmt.tile_indices)
            _memory(ctx, "tileloadd64", number, stmt.source, stmt.source_indices)
        case TileStore():
            number = _tile_number(ctx, stmt.tile, stmt.tile_indices)
            _memory(ctx, "tilestored64", number, stmt.target, stmt.target_indices)
        case TileMma():
            atom = DOT_ATOMS[stmt.atom]
            if atom.tile_feature not in ctx.w.module.features:
                raise CompileError(f"products of tiles {stmt.atom} need {atom.tile_feature}, which the target lacks")
            operands = ((stmt.d, stmt.d_indices), (stmt.a, stmt.a_indices), (stmt.b, stmt.b_indices))
            numbers = ", ".join(f"i8 {_tile_number(ctx, tile, at)}" for tile, at in operands)
            _call(ctx, _PRODUCTS[stmt.atom], numbers, "i8, i8, i8")


def _tile_number(ctx: FunctionContext, tile: Buffer, indices: tuple[Expr, ...]) -> int:
    if tile.name not in ctx.tiles:
        raise CompileError(f"tile {tile.name} belongs to another function")
    number = 0
    for at, extent in zip(indices, tile.shape[:-2], strict=True):
        if not isinstance(at, Const):
            raise CompileError(f"tile {tile.name} is accessed at an index that varies")
        number = number * extent + int(at.value)
    return ctx.tiles[tile.name] + number


def _memory(ctx: FunctionContext, name: str, number: int, buffer: Buffer, indices: tuple[Expr, ...]) -> None:
    flat = flat_form(indices, buffer.strides)
    assert flat.is_strided
    pointer: LlvmValue = address(ctx, buffer, flat, evaluate)
    stride = buffer.strides[-2] * buffer.dtype.bytes
    _call(ctx, name, f"i8 {number}, {pointer.typed}, i64 {stride}", "i8, ptr, i64")


def _call(ctx: FunctionContext, name: str, arguments: str, types: str) -> None:
    ctx.w.module.declare(f"declare void @llvm.x86.{name}({types})")
    ctx.w.line(f"call void @llvm.x86.{name}({arguments})")
