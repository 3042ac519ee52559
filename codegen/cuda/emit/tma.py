"""Writes operations of the tensor memory accelerator (TMA), and finds the tensor maps that they need."""

from math import prod

from ....core.errors import CompileError
from ....ir.buffer import Buffer
from ....ir.expr import Expr
from ....ir.gpu.tma import TmaLoad, TmaPrefetch, TmaStore, TmaStoreCommit, TmaStoreWait
from ...backend import TensorMap
from .expressions import ExpressionEmitter
from .function import EmittedFunction
from .memory import address, mbarrier_address, unswizzled_offset


def emit_tma(emitter: ExpressionEmitter, stmt: TmaLoad | TmaPrefetch | TmaStore | TmaStoreCommit | TmaStoreWait) -> str:
    """Return the C++ statement of ``stmt``. Raises CompileError before Hopper."""
    match stmt:
        case TmaLoad():
            return _load(emitter, stmt)
        case TmaPrefetch():
            return _prefetch(emitter, stmt)
        case TmaStore():
            return _store(emitter, stmt)
        case TmaStoreCommit():
            return f"{emitter.fn.use_sm_90('tma_store_commit_group')}();"
        case TmaStoreWait(pending=pending):
            return f"{emitter.fn.use_sm_90('tma_store_wait_group_read')}<{pending}>();"


def _load(emitter: ExpressionEmitter, stmt: TmaLoad) -> str:
    fn = emitter.fn
    target = address(emitter, stmt.target, unswizzled_offset(emitter, stmt.target, stmt.target_indices))
    barrier = mbarrier_address(emitter, stmt.barriers, stmt.index)
    given = f"{target}, &{fn.tensor_maps[tensor_map(fn, stmt)]}, {barrier}"
    coordinates, evict_first = _coordinates(emitter, stmt.source_indices, stmt.offsets), _evict_first(fn, stmt.source)
    if stmt.multicast is not None:
        mask = emitter.value(stmt.multicast).text
        function = _function(stmt, "tma_load_multicast")
        return f"{fn.use_sm_90(function)}<{evict_first}>({given}, {mask}, {coordinates});"
    load = f"{fn.use_sm_90(_function(stmt, 'tma_load'))}<{evict_first}>({given}, {coordinates});"
    if stmt.tx_expected:
        return load
    size = prod(stmt.box) * stmt.source.dtype.bytes
    return f"{fn.use('mbarrier_arrive_expect_tx')}({barrier}, {size}); {load}"


def _prefetch(emitter: ExpressionEmitter, stmt: TmaPrefetch) -> str:
    fn, coordinates = emitter.fn, _coordinates(emitter, stmt.source_indices, stmt.offsets)
    wanted = (*_seen(fn, stmt.source), stmt.box, stmt.im2col)
    for described, name in fn.tensor_maps.items():
        if (described.parameter, described.shape, described.box, described.im2col) == wanted:
            return f"{fn.use_sm_90(_function(stmt, 'tma_prefetch'))}(&{name}, {coordinates});"
    raise CompileError(f"a box {list(stmt.box)} of {stmt.source.name} is prefetched, which nothing copies")


def _store(emitter: ExpressionEmitter, stmt: TmaStore) -> str:
    fn = emitter.fn
    source = address(emitter, stmt.source, unswizzled_offset(emitter, stmt.source, stmt.source_indices))
    name, coordinates = fn.tensor_maps[tensor_map(fn, stmt)], _coordinates(emitter, stmt.target_indices)
    function = fn.use_sm_90(f"tma_store_{len(stmt.box)}d")
    return f"{function}<{_evict_first(fn, stmt.target)}>({source}, &{name}, {coordinates});"


def _coordinates(emitter: ExpressionEmitter, indices: tuple[Expr, ...], offsets: tuple[Expr, ...] = ()) -> str:
    """Return the coordinates of a box, then the offsets of one by im2col, each from the innermost dimension on."""
    return ", ".join(emitter.value(i).text for i in (*reversed(indices), *reversed(offsets)))


def _function(stmt: TmaLoad | TmaPrefetch, name: str) -> str:
    return f"{name}{'' if stmt.im2col is None else '_im2col'}_{len(stmt.source.shape)}d"


def _seen(fn: EmittedFunction, tensor: Buffer) -> tuple[int, tuple[int, ...] | None]:
    """Return which parameter a tensor is, and the shape that TMA sees it in where it is not seen as it is declared."""
    number = next(n for n, parameter in enumerate(fn.parameters) if parameter.name == tensor.name)
    return number, None if fn.parameters[number] == tensor else tensor.shape


def _evict_first(fn: EmittedFunction, tensor: Buffer) -> str:
    return "true" if tensor.name in fn.evict_first else "false"


def global_tensor(stmt: TmaLoad | TmaPrefetch | TmaStore) -> Buffer:
    """Return the tensor in global memory that ``stmt`` copies a box from or to."""
    return stmt.target if isinstance(stmt, TmaStore) else stmt.source


def tensor_map(fn: EmittedFunction, stmt: TmaLoad | TmaStore) -> TensorMap:
    """Return the tensor map that ``stmt`` needs.

    Loads of swizzled tiles that are read again use an L2 promotion of 256 bytes, which brings lines of the next tile,
    too. That saves 1 % of products of 4096^3 on an H200, and 2 % with a k of 14336. Operands that are streamed would
    lose as much, so they and all else use 128 bytes.
    """
    tile, tensor = (stmt.target if isinstance(stmt, TmaLoad) else stmt.source), global_tensor(stmt)
    swizzled = tile.layout is not None and tile.layout.swizzle is not None
    again = swizzled and isinstance(stmt, TmaLoad) and tensor.name not in fn.evict_first
    number, shape = _seen(fn, tensor)
    im2col = stmt.im2col if isinstance(stmt, TmaLoad) else None
    strides = None if tensor.layout is None else tensor.layout.strides
    rounds = isinstance(stmt, TmaLoad) and stmt.target.dtype != stmt.source.dtype
    return TensorMap(number, stmt.box, swizzled, 256 if again else 128, shape, im2col, strides, rounds)
