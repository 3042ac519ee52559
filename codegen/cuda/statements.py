"""Statements to C++: loops, conditions, allocations, and the operations of graphics processors."""

from collections.abc import Sequence
from math import prod

from ...core.errors import CompileError
from ...ir.buffer import Buffer, Scope
from ...ir.expr import Expr, Load, Var
from ...ir.gpu import (
    ATOMS,
    Arrive,
    AwaitArrivals,
    AwaitCopies,
    Barrier,
    BulkCopy,
    CommitCopies,
    CopyAsync,
    GroupMma,
    InitArrivals,
    Level,
    LoadMatrix,
    Mma,
    TensorCopy,
)
from ...ir.stmt import Allocate, For, If, LoopKind, Operation, Seq, Stmt, Store, expressions, walk_statements
from ..backend import TensorMap
from .expressions import Code, interned, uses_of
from .function import Function, is_packed
from .memory import address, half_of, offset, tile_offset
from .places import multiple_of, place_of
from .stores import emit_store
from .text import Text
from .types import is_half, stored

_BARRIERS = {Level.WARP: "__syncwarp();", Level.BLOCK: "__syncthreads();"}


def emit_statement(fn: Function, text: Text, stmt: Stmt) -> None:
    """Append ``stmt`` to ``text``. Raises CompileError for what CUDA C++ has no form of here."""
    check_registers(fn, stmt)
    match stmt:
        case Seq(statements=statements):
            for below in statements:
                emit_statement(fn, text, below)
        case For():
            _loop(fn, text, stmt)
        case If(condition=condition, then=then):
            (condition,) = interned(condition)
            code = Code(fn, text, uses_of(condition))
            test = code.value(condition)
            with text.block(f"if ({test.text})") as inside:
                emit_statement(fn, inside, then)
        case Allocate(buffer=buffer, body=body):
            if buffer.scope is not Scope.SHARED:
                text.line(_declaration(fn, buffer))
            emit_statement(fn, text, body)
        case Store():
            emit_store(fn, text, stmt)
        case Operation():
            text.line(_operation(fn, text, stmt))
        case _:
            raise CompileError(f"{type(stmt).__name__} has no place inside a launch")


def _loop(fn: Function, text: Text, loop: For) -> None:
    if loop.kind not in (LoopKind.SERIAL, LoopKind.UNROLLED):
        raise CompileError(f"loop {loop.var} is still {loop.kind}: only serial and unrolled loops can be written")
    var = fn.name_of(loop.var)
    type = "int" if loop.extent < 1 << 31 else "long long"
    if loop.kind is LoopKind.UNROLLED:
        fn.unrolled.add(loop.var)
        text.line("#pragma unroll")
    elif any(isinstance(s, (For, Operation)) for s in walk_statements(loop.body)):
        # left alone, the compiler writes out whole nests with few iterations, and spills; a loop that holds no other
        # it unrolls with measure
        text.line("#pragma unroll 1")
    with text.block(f"for ({type} {var} = 0; {var} < {loop.extent}; ++{var})") as inside:
        emit_statement(fn, inside, loop.body)


def _declaration(fn: Function, buffer: Buffer) -> str:
    name = fn.name_of(buffer.name)
    count = buffer.elements
    if is_packed(buffer):
        count = -(-count // 2)
        return f"{_alignment(4 * count)}unsigned {name}[{count}];"
    return f"{_alignment(buffer.bytes)}{stored(buffer.dtype)} {name}[{count}];"


def _alignment(size: int) -> str:
    return next((f"__align__({n}) " for n in (16, 8) if size >= n), "")


def check_registers(fn: Function, stmt: Stmt) -> None:
    """Raise CompileError unless every index of a register buffer is constant once the loops are written out."""
    accesses: list[tuple[Buffer, tuple[Expr, ...]]] = []
    pending = list(expressions(stmt))
    seen: set[int] = set()
    while pending:
        expr = pending.pop()
        if id(expr) not in seen:
            seen.add(id(expr))
            pending.extend(expr.children)
            if isinstance(expr, Load):
                accesses.append((expr.buffer, expr.indices))
    match stmt:
        case Store(buffer=buffer, indices=indices):
            accesses.append((buffer, indices))
        case LoadMatrix(target=target, target_indices=indices):
            accesses.append((target, indices))
        case GroupMma(d=d, d_indices=indices):
            accesses.append((d, indices))
        case Mma():
            accesses += [(stmt.a, stmt.a_indices), (stmt.b, stmt.b_indices), (stmt.d, stmt.d_indices)]
    for buffer, indices in accesses:
        if buffer.scope is Scope.REGISTER and not all(_is_constant(fn, i) for i in indices):
            raise CompileError(f"register buffer {buffer.name} is accessed at an index that varies")


def _is_constant(fn: Function, expr: Expr) -> bool:
    if isinstance(expr, Var):
        return expr.name in fn.unrolled
    return not isinstance(expr, Load) and all(_is_constant(fn, c) for c in expr.children)


def _operation(fn: Function, text: Text, stmt: Operation) -> str:
    """The statement that does ``stmt``; what it needs first goes into ``text``."""
    stmt = stmt.with_expressions(interned(*stmt.expressions))
    code = Code(fn, text, uses_of(*stmt.expressions))
    match stmt:
        case Barrier(level=Level.BLOCK) if fn.group_products:
            return f"{fn.use('group_barrier')}();"
        case Barrier(level=level):
            return _BARRIERS[level] if level in _BARRIERS else f"{_cluster(fn, 'cluster_barrier')}();"
        case CopyAsync():
            size = stmt.elements * stmt.target.dtype.bytes
            mask = "" if stmt.mask is None else f", {code.value(stmt.mask).text}"
            to = address(code, stmt.target, offset(code, stmt.target, stmt.target_indices))
            source = address(code, stmt.source, offset(code, stmt.source, stmt.source_indices))
            return f"{fn.use('copy_async')}<{size}>({to}, {source}{mask});"
        case CommitCopies():
            return f"{fn.use('commit_copies')}();"
        case AwaitCopies(pending=pending):
            return f"{fn.use('await_copies')}<{pending}>();"
        case InitArrivals(barriers=barriers, index=at, count=count):
            where = address(code, barriers, code.value(at))
            return f"{_cluster(fn, 'init_arrivals')}({where}, {count});"
        case BulkCopy():
            to = address(code, stmt.target, offset(code, stmt.target, stmt.target_indices))
            source = address(code, stmt.source, offset(code, stmt.source, stmt.source_indices))
            size = stmt.elements * stmt.target.dtype.bytes
            where = address(code, stmt.barriers, code.value(stmt.index))
            return f"{_cluster(fn, 'bulk_copy')}({to}, {source}, {size}, {where});"
        case AwaitArrivals(barriers=barriers, index=at, parity=parity):
            where = address(code, barriers, code.value(at))
            return f"{_cluster(fn, 'await_arrivals')}({where}, {code.value(parity).text});"
        case TensorCopy():
            return _tensor_copy(code, stmt)
        case Arrive(barriers=barriers, index=at):
            return f"{_cluster(fn, 'arrive')}({address(code, barriers, code.value(at))});"
        case Mma():
            return _mma(code, stmt)
        case LoadMatrix():
            return _load_matrix(code, stmt)
        case GroupMma():
            return _group_mma(code, stmt)
    raise CompileError(f"{type(stmt).__name__} cannot be expressed in CUDA C++")


def _cluster(fn: Function, function: str) -> str:
    """A function of the prelude whose instructions came with Hopper."""
    if int("".join(c for c in fn.arch if c.isdigit()) or 0) < 90:
        raise CompileError(f"{function.replace('_', ' ')}: {fn.arch} has no such instruction, sm_90 and later have")
    return fn.use(function)


def _tensor_copy(code: Code, stmt: TensorCopy) -> str:
    fn, bytes = code.fn, prod(stmt.box) * stmt.source.dtype.bytes
    name = fn.maps[tensor_map(fn.parameters, stmt)]
    to = address(code, stmt.target, tile_offset(code, stmt.target, stmt.target_indices))
    where = address(code, stmt.barriers, code.value(stmt.index))
    corner = ", ".join(code.value(i).text for i in reversed(stmt.source_indices))
    once = "true" if stmt.source.name in fn.streamed else "false"
    function = _cluster(fn, f"tensor_copy_{len(stmt.box)}")
    return f"{function}<{once}>({to}, &{name}, {bytes}, {where}, {corner});"


def tensor_map(parameters: Sequence[str], stmt: TensorCopy) -> TensorMap:
    """What ``stmt`` needs to be told of its source; ``parameters``: the names of the kernel's."""
    swizzled = stmt.target.layout is not None and stmt.target.layout.swizzle is not None
    return TensorMap(parameters.index(stmt.source.name), stmt.box, swizzled)


def _mma(code: Code, stmt: Mma) -> str:
    atom = ATOMS.get(stmt.atom)
    if atom is None:
        raise CompileError(f"no matrix instruction {stmt.atom!r}; known: {', '.join(ATOMS)}")
    d = _fragment(code, stmt.d, stmt.d_indices, 1)
    a, b = _fragment(code, stmt.a, stmt.a_indices, 2), _fragment(code, stmt.b, stmt.b_indices, 2)
    return f"{code.fn.use(f'mma_{stmt.atom}')}({d}, {a}, {b});"


def _group_mma(code: Code, stmt: GroupMma) -> str:
    if code.fn.arch != "sm_90a":
        raise CompileError(f"products of warpgroups: {code.fn.arch} has no such instruction, sm_90a alone has")
    kind = "half" if stmt.a.dtype.name == "float16" else "bfloat"
    d = _fragment(code, stmt.d, stmt.d_indices, 1)
    a = address(code, stmt.a, offset(code, stmt.a, stmt.a_indices))
    b = address(code, stmt.b, offset(code, stmt.b, stmt.b_indices))
    return f"{code.fn.use(f'group_mma_{kind}_{stmt.columns}')}<{stmt.depth}>({d}, {a}, {b});"


def _load_matrix(code: Code, stmt: LoadMatrix) -> str:
    if not is_half(stmt.source.dtype):
        raise CompileError(f"matrices of {stmt.source.dtype} cannot be loaded: their elements have 16 bits")
    to = _fragment(code, stmt.target, stmt.target_indices, 2)
    row = address(code, stmt.source, offset(code, stmt.source, stmt.source_indices))
    transposed = "true" if stmt.transposed else "false"
    return f"{code.fn.use('load_matrix')}<{stmt.count}, {transposed}>({to}, {row});"


def _fragment(code: Code, buffer: Buffer, indices: tuple[Expr, ...], unit: int) -> str:
    """Where a fragment begins in registers; ``unit`` elements lie in one."""
    place = place_of(indices, buffer.strides)
    if buffer.scope is not Scope.REGISTER or place is None:
        raise CompileError(f"a fragment lies in a register buffer, {buffer.name} is {buffer.scope}")
    if multiple_of(place.base) % unit:
        raise CompileError(f"a fragment of {buffer.name} begins in the middle of a register")
    at = code.value(place.base)
    name = code.fn.name_of(buffer.name)
    return name if at.text == "0" else f"{name} + {half_of(at) if unit == 2 else at.text}"
