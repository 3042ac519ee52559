"""The text form of kernels: stable, unambiguous, pleasant to read. Golden files and ``explain`` show it.

- Constants of the index type and of float32 stand bare; others have a suffix (``1i32``, ``0.5f16``, ``0.5bf16``).
- ``float32(x)`` is a cast, ``masked(load, m)`` is a load under a mask, ``lanes_add(v)`` is the sum of a vector's lanes.
- ``ramp(b, n)`` is the vector ``b, b+1, …`` of n lanes, ``ramp(b, n, s)`` the one with stride s. ``splat(x, n)`` is the
  scalar x in n lanes.
- A launch names its axes: ``launch f(grid_x b in 8, thread t in 128):``. Of a dynamic grid there are ``count`` blocks.
- Operations read as calls: ``copy_async(S[0], A[i], 8)``. ``B@c[i]`` is the element of block c of the cluster.
"""

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

from ..core.dtypes import DType
from ..core.errors import InvalidKernel
from .buffer import Buffer
from .cpu import Dot, PrefetchLine, TileLoad, TileMma, TileStore, TileZero, Transpose
from .expr import (
    WARP_LANES,
    Binary,
    BinaryOp,
    Broadcast,
    Cast,
    ClusterLoad,
    Compare,
    CompareOp,
    Const,
    Expr,
    Load,
    Logic,
    LogicOp,
    Ramp,
    ReduceLanes,
    Select,
    Shuffle,
    Unary,
    UnaryOp,
    Var,
)
from .gpu.async_copy import CopyAsync, CopyAsyncCommit, CopyAsyncWait
from .gpu.atomic import AtomicReduce
from .gpu.barrier import Barrier
from .gpu.bulk_copy import BulkCopy, Prefetch
from .gpu.cluster import ClusterLoadWait
from .gpu.fence import AsyncProxyFence
from .gpu.flagged import FlaggedLoad, FlaggedPeek, FlaggedStore
from .gpu.grid_barrier import GridBarrierArrive, GridBarrierWait
from .gpu.ldmatrix import LoadMatrix, StoreMatrix
from .gpu.mbarrier import MbarrierArrive, MbarrierArriveExpectTx, MbarrierInit, MbarrierWait
from .gpu.mma import Mma
from .gpu.ordered_sequence import OrderedSequenceArrive, OrderedSequenceStart, OrderedSequenceWait
from .gpu.setmaxnreg import SetMaxRegisters
from .gpu.tcgen05 import (
    BlockScaledMma,
    TensorMemoryAllocate,
    TensorMemoryCommit,
    TensorMemoryCopy,
    TensorMemoryDeallocate,
    TensorMemoryLoad,
    TensorMemoryMma,
)
from .gpu.tma import Im2col, TmaLoad, TmaPrefetch, TmaStore, TmaStoreCommit, TmaStoreWait
from .gpu.wgmma import WarpgroupMma, WarpgroupMmaWait
from .stmt import Allocate, AxisBinding, For, If, Kernel, Launch, LoopKind, Operation, Seq, Stmt, Store

_OR, _AND, _NOT, _COMPARE, _SUM, _PRODUCT, _NEGATION, _ATOM = range(8)
_BINARY: dict[BinaryOp, tuple[str, int]] = {
    BinaryOp.ADD: ("+", _SUM),
    BinaryOp.SUB: ("-", _SUM),
    BinaryOp.MUL: ("*", _PRODUCT),
    BinaryOp.DIV: ("/", _PRODUCT),
    BinaryOp.FLOORDIV: ("//", _PRODUCT),
    BinaryOp.MOD: ("%", _PRODUCT),
}
_COMPARISON: dict[CompareOp, str] = {
    CompareOp.LT: "<",
    CompareOp.LE: "<=",
    CompareOp.GT: ">",
    CompareOp.GE: ">=",
    CompareOp.EQ: "==",
    CompareOp.NE: "!=",
}
_SUFFIX = {
    "float64": "f64",
    "float32": "",
    "float16": "f16",
    "bfloat16": "bf16",
    "float8_e4m3fn": "e4m3",
    "float8_e5m2": "e5m2",
    "tfloat32": "tf32",
    "int64": "",
    "int32": "i32",
    "int8": "i8",
    "uint8": "u8",
    "bool": "",
}
_Lines = list[tuple[str, Stmt | Kernel]]  # a line, and what it begins to print
_Text = tuple[str, int]  # the text, and how tightly its outermost operator binds


def expr_text(expr: Expr) -> str:
    """Return ``expr`` as one line."""
    return _expr(expr)[0]


def kernel_text(kernel: Kernel) -> str:
    """Return ``kernel`` as indented lines. The last one ends in a line break."""
    return "\n".join(line for line, _ in kernel_lines(kernel)) + "\n"


def kernel_lines(kernel: Kernel) -> list[tuple[str, Stmt | Kernel]]:
    """Return the lines of ``kernel_text``, each with what it begins to print: a statement, or the kernel itself."""
    signature = ", ".join(map(_declaration, kernel.inputs))
    outputs = ", ".join(map(_declaration, kernel.outputs))
    head = [f"kernel {kernel.name}({signature}) -> ({outputs}):"]
    head += [f"  workspace {_declaration(buffer)}" for buffer in kernel.workspace]
    head += [f"  non_temporal {name}" for name in sorted(kernel.non_temporal)]
    head += [f"  constant {name}" for name in sorted(kernel.constants)]
    for dynamic in kernel.dynamic:
        of = ", ".join(f"{name} dimension {d}" if d else name for name, d in sorted(dynamic.places))
        head.append(f"  dynamic {dynamic.var} in 1..{dynamic.most} of {of}")
    lines: _Lines = []
    _statement(kernel.body, 1, lines)
    return [*((line, kernel) for line in head), *lines]


def statement_text(stmt: Stmt) -> str:
    """Return ``stmt`` as indented lines. The last one ends in a line break."""
    lines: _Lines = []
    _statement(stmt, 0, lines)
    return "\n".join(line for line, _ in lines) + "\n"


def _declaration(buffer: Buffer) -> str:
    text = f"{buffer.name}: {buffer.dtype}[{', '.join(map(str, buffer.shape))}]"
    if buffer.layout is None:
        return text
    text += f" strides ({', '.join(map(str, buffer.layout.strides))})"
    s = buffer.layout.swizzle
    return text if s is None else f"{text} swizzle ({s.bits}, {s.base}, {s.shift})"


def _expr(expr: Expr) -> _Text:
    printer = _EXPRESSIONS.get(type(expr))
    if printer is None:
        raise InvalidKernel(f"{type(expr).__name__} has no text form")
    return printer(expr)


def _at(expr: Expr, binding: int) -> str:
    """Return the text of an operand, in parentheses where it binds less tightly than ``binding``."""
    text, own = _expr(expr)
    return text if own >= binding else f"({text})"


def _call(name: str, *arguments: Expr | int) -> _Text:
    return f"{name}({', '.join(str(a) if isinstance(a, int) else _expr(a)[0] for a in arguments)})", _ATOM


def _const(expr: Const) -> _Text:
    if expr.type.is_bool:
        return ("true" if expr.value else "false"), _ATOM
    return f"{expr.value!r}{_suffix(expr.type)}", _ATOM if expr.value >= 0 else _NEGATION


def _suffix(dtype: DType) -> str:
    return _SUFFIX.get(dtype.name, f"_{dtype.name}")


def _binary(expr: Binary) -> _Text:
    if expr.op not in _BINARY:
        return _call(expr.op.value, expr.a, expr.b)
    symbol, binding = _BINARY[expr.op]
    left, right = _at(expr.a, binding), _at(expr.b, binding + 1)
    gap = "" if binding == _PRODUCT and isinstance(expr.b, Const) and expr.dtype.is_integer else " "
    return f"{left}{gap}{symbol}{gap}{right}", binding


def _compare(expr: Compare) -> _Text:
    return f"{_at(expr.a, _SUM)} {_COMPARISON[expr.op]} {_at(expr.b, _SUM)}", _COMPARE


def _logic(expr: Logic) -> _Text:
    binding = _AND if expr.op is LogicOp.AND else _OR
    return f"{_at(expr.a, binding)} {expr.op.value} {_at(expr.b, binding + 1)}", binding


def _unary(expr: Unary) -> _Text:
    if expr.op is UnaryOp.NEG:
        return f"-{_at(expr.value, _ATOM)}", _NEGATION
    if expr.op is UnaryOp.NOT:
        return f"not {_at(expr.value, _NOT)}", _NOT
    return _call(expr.op.value, expr.value)


def _load(expr: Load) -> _Text:
    text = _element(expr.buffer, expr.indices)
    return (text if expr.mask is None else f"masked({text}, {expr_text(expr.mask)})"), _ATOM


def _element(buffer: Buffer, indices: tuple[Expr, ...]) -> str:
    return f"{buffer.name}[{', '.join(map(expr_text, indices))}]"


def _ramp(expr: Ramp) -> _Text:
    strides = () if expr.stride == 1 else (expr.stride,)
    return _call("ramp", expr.base, expr.count, *strides)


_EXPRESSIONS: dict[type[Expr], Callable[[Any], _Text]] = {
    Var: lambda e: (e.name, _ATOM),
    Const: _const,
    Binary: _binary,
    Compare: _compare,
    Logic: _logic,
    Unary: _unary,
    Select: lambda e: _call("select", e.condition, e.then, e.otherwise),
    Cast: lambda e: _call(e.type.name, e.value),
    Load: _load,
    Ramp: _ramp,
    Broadcast: lambda e: _call("splat", e.value, e.count),
    ReduceLanes: lambda e: _call(f"lanes_{e.op.value}", e.value),
    Shuffle: lambda e: _call(
        f"shuffle_{e.mode.value}", e.value, e.lane, *(() if e.width == WARP_LANES else (e.width,))
    ),
    ClusterLoad: lambda e: (
        _element(replace(e.buffer, name=f"{e.buffer.name}@{_at(e.block, _ATOM)}"), e.indices),
        _ATOM,
    ),
}


def _statement(stmt: Stmt, depth: int, lines: _Lines) -> None:
    printer = _STATEMENTS.get(type(stmt))
    if printer is None:
        raise InvalidKernel(f"{type(stmt).__name__} has no text form")
    printer(stmt, depth, lines)


def _for(stmt: For, depth: int, lines: _Lines) -> None:
    kind = "" if stmt.kind is LoopKind.SERIAL else f"{stmt.kind.value} "
    lines.append((f"{'  ' * depth}{kind}for {stmt.var} in {stmt.extent}:", stmt))
    _statement(stmt.body, depth + 1, lines)


def _store(stmt: Store, depth: int, lines: _Lines) -> None:
    mask = "" if stmt.mask is None else f" where {expr_text(stmt.mask)}"
    lines.append((f"{'  ' * depth}{_element(stmt.buffer, stmt.indices)} = {expr_text(stmt.value)}{mask}", stmt))


def _if(stmt: If, depth: int, lines: _Lines) -> None:
    lines.append((f"{'  ' * depth}if {expr_text(stmt.condition)}:", stmt))
    _statement(stmt.then, depth + 1, lines)


def _seq(stmt: Seq, depth: int, lines: _Lines) -> None:
    if not stmt.statements:
        lines.append((f"{'  ' * depth}pass", stmt))
    for below in stmt.statements:
        _statement(below, depth, lines)


def _allocate(stmt: Allocate, depth: int, lines: _Lines) -> None:
    lines.append((f"{'  ' * depth}{stmt.buffer.scope.value} {_declaration(stmt.buffer)}:", stmt))
    _statement(stmt.body, depth + 1, lines)


def _launch(stmt: Launch, depth: int, lines: _Lines) -> None:
    axes = ", ".join(map(_axis, stmt.axes))
    hints = f" min_blocks {stmt.min_blocks}" if stmt.min_blocks else ""
    hints += f" evict_first {' '.join(stmt.evict_first)}" if stmt.evict_first else ""
    hints += f" prefetch_lines {' '.join(stmt.prefetch_lines)}" if stmt.prefetch_lines else ""
    lines.append((f"{'  ' * depth}launch {stmt.name}({axes}){hints}:", stmt))
    _statement(stmt.body, depth + 1, lines)


def _axis(binding: AxisBinding) -> str:
    count = "" if binding.count is None else f" count {expr_text(binding.count)}"
    return f"{binding.axis.value} {binding.var} in {binding.extent}{count}"


_OPERATIONS: dict[type[Operation], str] = {
    Dot: "dot",
    FlaggedLoad: "flagged_load",
    FlaggedPeek: "flagged_peek",
    FlaggedStore: "flagged_store",
    GridBarrierArrive: "grid_barrier_arrive",
    GridBarrierWait: "grid_barrier_wait",
    TileLoad: "tile_load",
    TileMma: "tile_mma",
    TileStore: "tile_store",
    TileZero: "tile_zero",
    Transpose: "transpose",
    MbarrierArrive: "mbarrier_arrive",
    MbarrierArriveExpectTx: "mbarrier_arrive_expect_tx",
    MbarrierWait: "mbarrier_wait",
    CopyAsyncWait: "copy_async_wait",
    WarpgroupMmaWait: "warpgroup_mma_wait",
    ClusterLoadWait: "cluster_load_wait",
    TmaStoreWait: "tma_store_wait",
    BulkCopy: "bulk_copy",
    CopyAsyncCommit: "copy_async_commit",
    TmaStoreCommit: "tma_store_commit",
    CopyAsync: "copy_async",
    AsyncProxyFence: "async_proxy_fence",
    AtomicReduce: "atomic_reduce",
    WarpgroupMma: "warpgroup_mma",
    MbarrierInit: "mbarrier_init",
    LoadMatrix: "load_matrix",
    Mma: "mma",
    Prefetch: "prefetch",
    PrefetchLine: "prefetch_line",
    OrderedSequenceArrive: "ordered_sequence_arrive",
    OrderedSequenceStart: "ordered_sequence_start",
    OrderedSequenceWait: "ordered_sequence_wait",
    SetMaxRegisters: "set_max_registers",
    StoreMatrix: "store_matrix",
    TensorMemoryAllocate: "tensor_memory_allocate",
    BlockScaledMma: "block_scaled_mma",
    TensorMemoryCommit: "tensor_memory_commit",
    TensorMemoryCopy: "tensor_memory_copy",
    TensorMemoryDeallocate: "tensor_memory_deallocate",
    TensorMemoryLoad: "tensor_memory_load",
    TensorMemoryMma: "tensor_memory_mma",
    TmaLoad: "tma_load",
    TmaPrefetch: "tma_prefetch",
    TmaStore: "tma_store",
}


def _operation(stmt: Operation, depth: int, lines: _Lines) -> None:
    """The operation as a call. A buffer and the indices that follow it are one argument."""
    arguments: list[str] = []
    buffer: Buffer | None = None
    for f in fields(stmt):  # type: ignore[arg-type]
        value = getattr(stmt, f.name)
        match value:
            case Buffer():
                arguments += [] if buffer is None else [buffer.name]
                buffer = value
            case tuple() if buffer is not None:
                arguments.append(_element(buffer, value))
                buffer = None
            case Expr() if buffer is not None:
                arguments.append(_element(buffer, (value,)))
                buffer = None
            case Expr():
                arguments.append(f"{f.name} {expr_text(value)}")
            case (Expr(), *_):
                arguments.append(f"{f.name} ({', '.join(map(expr_text, value))})")
            case Im2col(lower=lower, positions=positions, strides=strides):
                arguments.append(f"im2col from {lower} {positions} positions {strides} apart")
            case True:
                arguments.append(f.name)
            case None | False | ():
                pass
            case _:
                arguments.append(str(value))
    arguments += [] if buffer is None else [buffer.name]
    lines.append((f"{'  ' * depth}{_OPERATIONS[type(stmt)]}({', '.join(arguments)})", stmt))


def _barrier(stmt: Barrier, depth: int, lines: _Lines) -> None:
    lines.append((f"{'  ' * depth}barrier {stmt.scope.value}", stmt))


_STATEMENTS: dict[type[Stmt], Callable[[Any, int, _Lines], None]] = {
    For: _for,
    Store: _store,
    If: _if,
    Seq: _seq,
    Allocate: _allocate,
    Launch: _launch,
    Barrier: _barrier,
    **dict.fromkeys(_OPERATIONS, _operation),
}
