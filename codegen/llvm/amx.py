"""Tile registers (AMX): numbered at compile time, set up by each function that uses them, asked for once a process.

"Intel 64 and IA-32 Architectures Software Developer's Manual", volume 1, chapter 18; for the permission,
Documentation/arch/x86/xstate.rst of Linux.
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
from .body import Body
from .expressions import evaluate
from .memory import address
from .values import Value
from .writer import FunctionWriter

ARCH_PRCTL_SYSCALL = 158
ASK_FOR_STATE, TILE_DATA = 0x1023, 18
"""``arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA)``."""
_CONFIGURATION = "tile.configuration"
_ASKED = "tile.asked"
_PRODUCTS = {"bf16": "tdpbf16ps", "s8s8": "tdpbssd", "u8s8": "tdpbusd"}


def ask_for_tiles(w: FunctionWriter) -> None:
    """The first call of a kernel asks the operating system for the state of tiles, which threads get only then. A
    kernel whose process is refused must not be called (``runtime.hardware`` leaves the feature out)."""
    w.module.global_value(_ASKED, "internal global i8 0")
    asked = w.assign(f"load i8, ptr @{_ASKED}, align 1", "i8", hint="asked")
    first = w.assign(f"icmp eq i8 {asked.text}, 0", "i1", hint="first")
    yes, after = w.label("ask"), w.label("asked")
    w.branch(first, yes, after)
    w.begin(yes)
    w.module.declare("declare i64 @syscall(i64, ...)")
    w.line(f"call i64 (i64, ...) @syscall(i64 {ARCH_PRCTL_SYSCALL}, i64 {ASK_FOR_STATE}, i64 {TILE_DATA})")
    w.line(f"store i8 1, ptr @{_ASKED}, align 1")
    w.jump(after)
    w.begin(after)


def set_up_tiles(body: Body) -> None:
    """All tiles of this thread get 16 rows of 64 bytes, and are zero."""
    sizes = [1] + [0] * 15 + [TILE_BYTES, 0] * TILES + [0] * 16 + [TILE_ROWS] * TILES + [0] * 8
    text = ", ".join(f"i8 {n}" for n in sizes)
    body.w.module.global_value(_CONFIGURATION, f"internal constant [64 x i8] [{text}], align 64")
    _call(body, "ldtilecfg", f"ptr @{_CONFIGURATION}", "ptr")
    body.tiles_ready = True


def release_tiles(body: Body) -> None:
    """The processor need not keep the tiles of this thread any more."""
    _call(body, "tilerelease", "", "")


@contextmanager
def allocate_tiles(body: Body, buffer: Buffer) -> Iterator[None]:
    """``buffer`` gets tile registers while the body of the with statement is written. Raises CompileError."""
    first = sum(prod(shape) for shape in body.tile_shapes.values())
    if first + prod(buffer.shape[:-2]) > TILES:
        raise CompileError(f"{buffer.name} {list(buffer.shape)} needs more than the {TILES - first} tiles left")
    body.tiles[buffer.name], body.tile_shapes[buffer.name] = first, buffer.shape[:-2]
    yield
    del body.tiles[buffer.name], body.tile_shapes[buffer.name]


def emit_tile_operation(body: Body, stmt: Operation) -> None:
    """Raises CompileError where the target has no such instruction."""
    match stmt:
        case TileZero():
            _call(body, "tilezero", f"i8 {_number(body, stmt.tile, stmt.tile_indices)}", "i8")
        case TileLoad():
            number = _number(body, stmt.tile, stmt.tile_indices)
            _memory(body, "tileloadd64", number, stmt.source, stmt.source_indices)
        case TileStore():
            number = _number(body, stmt.tile, stmt.tile_indices)
            _memory(body, "tilestored64", number, stmt.target, stmt.target_indices)
        case TileMma():
            atom = DOT_ATOMS[stmt.atom]
            if atom.tile_feature not in body.w.module.features:
                raise CompileError(f"products of tiles {stmt.atom} need {atom.tile_feature}, which the target lacks")
            operands = ((stmt.d, stmt.d_indices), (stmt.a, stmt.a_indices), (stmt.b, stmt.b_indices))
            numbers = ", ".join(f"i8 {_number(body, tile, at)}" for tile, at in operands)
            _call(body, _PRODUCTS[stmt.atom], numbers, "i8, i8, i8")


def _number(body: Body, tile: Buffer, indices: tuple[Expr, ...]) -> int:
    if tile.name not in body.tiles:
        raise CompileError(f"tile {tile.name} belongs to another function")
    number = 0
    for at, extent in zip(indices, tile.shape[:-2], strict=True):
        if not isinstance(at, Const):
            raise CompileError(f"tile {tile.name} is accessed at an index that varies")
        number = number * extent + int(at.value)
    return body.tiles[tile.name] + number


def _memory(body: Body, name: str, number: int, buffer: Buffer, indices: tuple[Expr, ...]) -> None:
    flat = flat_form(indices, buffer.strides)
    pointer: Value = address(body, buffer, flat, evaluate)
    stride = buffer.strides[-2] * buffer.dtype.bytes
    _call(body, name, f"i8 {number}, {pointer.typed}, i64 {stride}", "i8, ptr, i64")


def _call(body: Body, name: str, arguments: str, types: str) -> None:
    body.w.module.declare(f"declare void @llvm.x86.{name}({types})")
    body.w.line(f"call void @llvm.x86.{name}({arguments})")
