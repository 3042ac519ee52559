"""The operations of graphics processors to C++."""

from math import prod

from ....core.errors import CompileError
from ....ir.buffer import Buffer, MemoryScope
from ....ir.expr import Expr
from ....ir.gpu.async_copy import CopyAsync, CopyAsyncCommit, CopyAsyncWait
from ....ir.gpu.barrier import Barrier, SyncScope
from ....ir.gpu.bulk_copy import BulkCopy, Prefetch
from ....ir.gpu.cluster import ClusterLoadWait
from ....ir.gpu.fence import AsyncProxyFence
from ....ir.gpu.ldmatrix import LoadMatrix, StoreMatrix
from ....ir.gpu.mbarrier import MbarrierArrive, MbarrierArriveExpectTx, MbarrierInit, MbarrierWait
from ....ir.gpu.mma import WARP_MMA_ATOMS, Mma
from ....ir.gpu.setmaxnreg import SetMaxRegisters
from ....ir.gpu.tma import TmaLoad, TmaPrefetch, TmaStore, TmaStoreCommit, TmaStoreWait
from ....ir.gpu.wgmma import WarpgroupMma, WarpgroupMmaWait
from ....ir.stmt import Operation
from ...backend import TensorMap
from .access import WIDEST_BYTES, multiple_of, place_of
from .expressions import Code, interned, uses_of
from .function import Function
from .memory import address, half_of, offset, tile_offset
from .text import Text
from .types import is_half


def operation_text(fn: Function, text: Text, stmt: Operation) -> str:
    """The statement that does ``stmt``; what it needs first goes into ``text``. Raises CompileError for what CUDA C++,
    or the architecture, has no form of."""
    stmt = stmt.with_expressions(interned(*stmt.expressions))
    code = Code(fn, text, uses_of(*stmt.expressions))
    match stmt:
        case Barrier(scope=SyncScope.CLUSTER) if (
            stmt is fn.last and fn.awaits_peers
        ):  # it keeps what others read from going away
            return f"{_since_hopper(fn, 'cluster_end')}();"
        case Barrier(scope=level):
            return _barrier(fn, level)
        case CopyAsync():
            return _copy_async(code, stmt)
        case Prefetch():
            return _prefetch(code, stmt)
        case CopyAsyncCommit():
            return f"{fn.use('copy_async_commit')}();"
        case CopyAsyncWait(pending=pending):
            return f"{fn.use('copy_async_wait')}<{pending}>();"
        case MbarrierInit(count=count):
            return f"{_since_hopper(fn, 'mbarrier_init')}({_at(code, stmt.barriers, stmt.index)}, {count});"
        case BulkCopy():
            to, source = _place(code, stmt.target, stmt.target_indices), _place(code, stmt.source, stmt.source_indices)
            size = stmt.elements * stmt.target.dtype.bytes
            return f"{_since_hopper(fn, 'bulk_copy')}({to}, {source}, {size}, {_at(code, stmt.barriers, stmt.index)});"
        case MbarrierWait(parity=parity):
            where = _at(code, stmt.barriers, stmt.index)
            return f"{_since_hopper(fn, 'mbarrier_wait')}({where}, {code.value(parity).text});"
        case MbarrierArrive(rank=None):
            return f"{_since_hopper(fn, 'arrive')}({_at(code, stmt.barriers, stmt.index)});"
        case MbarrierArrive(rank=Expr() as rank):
            where = _at(code, stmt.barriers, stmt.index)
            return f"{_since_hopper(fn, 'arrive_at')}({where}, {code.value(rank).text});"
        case MbarrierArriveExpectTx(bytes=bytes):
            return f"{_since_hopper(fn, 'mbarrier_arrive_expect_tx')}({_at(code, stmt.barriers, stmt.index)}, {bytes});"
        case TmaLoad():
            return _tma_load(code, stmt)
        case TmaPrefetch():
            return _tensor_prefetch(code, stmt)
        case TmaStore():
            return _tensor_store(code, stmt)
        case TmaStoreCommit():
            return f"{_since_hopper(fn, 'tma_store_commit')}();"
        case TmaStoreWait(pending=pending):
            return f"{_since_hopper(fn, 'tma_store_wait')}<{pending}>();"
        case AsyncProxyFence():
            return f"{_since_hopper(fn, 'async_proxy_fence')}();"
    return _matrix_operation(code, stmt)


def _matrix_operation(code: Code, stmt: Operation) -> str:
    fn = code.fn
    match stmt:
        case Mma():
            return _mma(code, stmt)
        case LoadMatrix():
            row, held = (
                _place(code, stmt.source, stmt.source_indices),
                _matrices(code, stmt.target, stmt.target_indices),
            )
            return f"{fn.use('load_matrix')}<{stmt.count}, {_flag(stmt.transposed)}>({held}, {row});"
        case StoreMatrix():
            row, held = (
                _place(code, stmt.target, stmt.target_indices),
                _matrices(code, stmt.source, stmt.source_indices),
            )
            function = _since_hopper(fn, "store_matrix")
            return f"{function}<{stmt.count}, {_flag(stmt.transposed)}>({row}, {held});"
        case WarpgroupMma():
            return _group_mma(code, stmt)
        case WarpgroupMmaWait(pending=pending):
            ends = "".join(f" {fn.use('awaited')}<{b.elements}>({fn.name_of(b.name)});" for b in fn.sums)
            return f"{_hopper_alone(fn, 'warpgroup_mma_wait')}<{pending}>();{ends}"
        case ClusterLoadWait(value=value):
            return f"{_since_hopper(fn, 'cluster_load_wait')}({code.value(value).text});"
        case SetMaxRegisters(count=count, increase=increase):
            return f"{_hopper_alone(fn, 'more_registers' if increase else 'fewer_registers')}<{count}>();"
    raise CompileError(f"{type(stmt).__name__} cannot be expressed in CUDA C++")


def _barrier(fn: Function, level: SyncScope) -> str:
    match level:
        case SyncScope.WARP:
            return "__syncwarp();"
        case SyncScope.WARPGROUP:
            return f"{fn.use('group_barrier')}();"
        case SyncScope.BLOCK:
            return "__syncthreads();"
    in_shared = fn.meets_in_shared and fn.awaits_peers
    return f"{_since_hopper(fn, 'cluster_barrier_shared' if in_shared else 'cluster_barrier')}();"


def _since_hopper(fn: Function, function: str) -> str:
    """A function of the prelude whose instructions came with Hopper."""
    if int("".join(c for c in fn.arch if c.isdigit()) or 0) < 90:
        raise CompileError(f"{function.replace('_', ' ')}: {fn.arch} has no such instruction, sm_90 and later have")
    return fn.use(function)


def _hopper_alone(fn: Function, function: str) -> str:
    """A function of the prelude whose instructions Hopper alone has."""
    if fn.arch != "sm_90a":
        raise CompileError(f"{function.replace('_', ' ')}: {fn.arch} has no such instruction, sm_90a alone has")
    return fn.use(function)


def _prefetch(code: Code, stmt: Prefetch) -> str:
    size, unit = stmt.elements * stmt.source.dtype.bytes, WIDEST_BYTES
    place = place_of(stmt.source_indices, stmt.source.strides)
    whole = size % unit == 0 and place is not None and multiple_of(place.base) * stmt.source.dtype.bytes % unit == 0
    name = code.fn.use("prefetch" if whole else "prefetch_units")
    return f"{name}<{size}>({_place(code, stmt.source, stmt.source_indices)});"


def _place(code: Code, buffer: Buffer, indices: tuple[Expr, ...]) -> str:
    return address(code, buffer, offset(code, buffer, indices))


def _at(code: Code, barriers: Buffer, index: Expr) -> str:
    """The address of an arrival barrier."""
    return address(code, barriers, code.value(index))


def _flag(value: bool) -> str:
    return "true" if value else "false"


# Copies --------------------------------------------------------------------------------------------------------


def _copy_async(code: Code, stmt: CopyAsync) -> str:
    size = stmt.elements * stmt.target.dtype.bytes
    mask = "" if stmt.mask is None else f", {code.value(stmt.mask).text}"
    to, source = _place(code, stmt.target, stmt.target_indices), _place(code, stmt.source, stmt.source_indices)
    return f"{code.fn.use('copy_async')}<{size}>({to}, {source}{mask});"


def _tma_load(code: Code, stmt: TmaLoad) -> str:
    fn, size = code.fn, prod(stmt.box) * stmt.source.dtype.bytes
    to = address(code, stmt.target, tile_offset(code, stmt.target, stmt.target_indices))
    where = _at(code, stmt.barriers, stmt.index)
    box = f"&{fn.maps[tensor_map(fn, stmt)]}, {where}"
    corner, once = _corner(code, stmt.source_indices), _flag(stmt.source.name in fn.evict_first)
    if stmt.multicast is not None:
        blocks = code.value(stmt.multicast).text
        return f"{_since_hopper(fn, f'tensor_multicast_{len(stmt.box)}')}<{once}>({to}, {box}, {blocks}, {corner});"
    copy = f"{_since_hopper(fn, f'tensor_copy_{len(stmt.box)}')}<{once}>({to}, {box}, {corner});"
    return copy if stmt.tx_expected else f"{fn.use('mbarrier_arrive_expect_tx')}({where}, {size}); {copy}"


def _tensor_prefetch(code: Code, stmt: TmaPrefetch) -> str:
    fn, corner = code.fn, _corner(code, stmt.source_indices)
    wanted = (fn.parameters.index(stmt.source.name), stmt.box)
    for described, name in fn.maps.items():
        if (described.parameter, described.box) == wanted:
            return f"{_since_hopper(fn, f'tensor_prefetch_{len(stmt.box)}')}(&{name}, {corner});"
    raise CompileError(f"a box {list(stmt.box)} of {stmt.source.name} is asked for, which nothing copies")


def _tensor_store(code: Code, stmt: TmaStore) -> str:
    fn = code.fn
    source = address(code, stmt.source, tile_offset(code, stmt.source, stmt.source_indices))
    name, corner = fn.maps[tensor_map(fn, stmt)], _corner(code, stmt.target_indices)
    function = _since_hopper(fn, f"tensor_store_{len(stmt.box)}")
    return f"{function}<{_flag(stmt.target.name in fn.evict_first)}>({source}, &{name}, {corner});"


def _corner(code: Code, indices: tuple[Expr, ...]) -> str:
    """Where a box begins, from the innermost dimension on."""
    return ", ".join(code.value(i).text for i in reversed(indices))


def tensor_of(stmt: TmaLoad | TmaPrefetch | TmaStore) -> Buffer:
    """The global tensor that boxes are copied from or to."""
    return stmt.target if isinstance(stmt, TmaStore) else stmt.source


def tensor_map(fn: Function, stmt: TmaLoad | TmaStore) -> TensorMap:
    """What ``stmt`` needs to be told of its tensor. Tiles of operands that are read again bring the next tile's lines
    with them: 1 % of products of 4096^3 on an H200, 2 % with k of 14336; streams of weights lose as much by it."""
    tile, tensor = (stmt.target if isinstance(stmt, TmaLoad) else stmt.source), tensor_of(stmt)
    swizzled = tile.layout is not None and tile.layout.swizzle is not None
    again = swizzled and isinstance(stmt, TmaLoad) and tensor.name not in fn.evict_first
    return TensorMap(fn.parameters.index(tensor.name), stmt.box, swizzled, 256 if again else 128)


# Products ------------------------------------------------------------------------------------------------------


def _mma(code: Code, stmt: Mma) -> str:
    if stmt.atom not in WARP_MMA_ATOMS:
        raise CompileError(f"no matrix instruction {stmt.atom!r}; known: {', '.join(WARP_MMA_ATOMS)}")
    d = _fragment(code, stmt.d, stmt.d_indices, 1)
    a, b = _fragment(code, stmt.a, stmt.a_indices, 2), _fragment(code, stmt.b, stmt.b_indices, 2)
    return f"{code.fn.use(f'mma_{stmt.atom}')}({d}, {a}, {b});"


def _group_mma(code: Code, stmt: WarpgroupMma) -> str:
    kind = "half" if stmt.a.dtype.name == "float16" else "bfloat"
    function = _hopper_alone(code.fn, f"group_mma_{kind}_{stmt.n}")
    d = _fragment(code, stmt.d, stmt.d_indices, 1)
    a = _group_operand(code, stmt.a, stmt.a_indices, stmt.a_transposed)
    b = _group_operand(code, stmt.b, stmt.b_indices, stmt.b_transposed)
    given = f"<{stmt.k}, {_flag(stmt.a_transposed)}, {_flag(stmt.b_transposed)}>({d}, {a}, {b}"
    match stmt.accumulates:
        case Expr() as expr:
            return f"{function}{given}, {code.value(expr).text});"
        case True:
            return f"{function}{given});"
    return f"{function}{given}, false);"


def _group_operand(code: Code, buffer: Buffer, indices: tuple[Expr, ...], transposed: bool) -> str:
    where = address(code, buffer, tile_offset(code, buffer, indices))
    if not transposed:
        return f"{code.fn.use('group_operand')}({where})"
    apart = buffer.strides[-3] * buffer.dtype.bytes if len(buffer.shape) > 2 else 16
    return f"{code.fn.use('group_operand_runs')}<{apart}>({where})"


def _matrices(code: Code, buffer: Buffer, indices: tuple[Expr, ...]) -> str:
    if not is_half(buffer.dtype):
        raise CompileError(f"matrices of {buffer.dtype} cannot be moved: their elements have 16 bits")
    return _fragment(code, buffer, indices, 2)


def _fragment(code: Code, buffer: Buffer, indices: tuple[Expr, ...], unit: int) -> str:
    """Where a fragment begins in registers; ``unit`` elements lie in one."""
    place = place_of(indices, buffer.strides)
    if buffer.scope is not MemoryScope.REGISTER or place is None:
        raise CompileError(f"a fragment lies in a register buffer, {buffer.name} is {buffer.scope}")
    if multiple_of(place.base) % unit:
        raise CompileError(f"a fragment of {buffer.name} begins in the middle of a register")
    at = code.value(place.base)
    name = code.fn.name_of(buffer.name)
    return name if at.text == "0" else f"{name} + {half_of(at) if unit == 2 else at.text}"
