"""The verifier: what a legal kernel is.

``RULES`` says all of it. A kernel that breaks a rule raises InvalidKernel, which names the rule, what breaks it and the
statement; its ``field`` is the path of loops to the statement. ``verify`` does not run the kernel: the interpreter
finds accesses out of bounds, elements that were never written, and races.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from ..core.errors import InvalidKernel
from .bounds import Interval, loop_range
from .buffer import Buffer, MemoryScope
from .cpu import PROCESSOR_OPERATIONS, written_by
from .expr import WARP_LANES, Broadcast, Const, Expr, Load, Ramp
from .gpu.atomic import AtomicReduce
from .gpu.barrier import WARPGROUP_THREADS, SyncScope
from .gpu.tma import TmaStore
from .gpu.wgmma import WarpgroupMma
from .rewrite import free_variables, loads_of
from .stmt import (
    GRID_AXES,
    Allocate,
    DynamicExtent,
    For,
    HardwareAxis,
    If,
    Kernel,
    Launch,
    LoopKind,
    Operation,
    Seq,
    Stmt,
    Store,
    expressions,
    walk_statements,
)
from .text import expr_text, statement_text
from .uniformity import UniformityAnalysis, convergent_scopes, guarded_shuffles
from .verifier.cpu import check_processor_operation
from .verifier.gpu import check_operation
from .verifier.launch import check_launch, check_layout
from .verifier.mbarrier import mbarrier_buffers
from .verifier.tcgen05 import check_tensor_memory
from .verifier.types import BoundNames, RuleBroken, access_lanes, type_of

RULES = {
    "names": "loop variables and buffers have names of their own, each used once, that are identifiers",
    "parameters": "a kernel has outputs; inputs, outputs and workspace are global, with extents of at least 1; "
    "constants are inputs",
    "dynamic": "a dynamic extent is that of dimensions of inputs and outputs of launches; axes of the grid count with "
    "such extents alone",
    "written": "every output is stored to somewhere",
    "extent": "a loop runs at least once",
    "scope": "variables and buffers are used only where they are bound, as they were declared; loads, "
    "stores, copies and prefetches of a launch may take a global buffer for a single dimension of all of its elements, "
    "or for one without its dimensions of one element",
    "allocation": "allocated buffers are local, register, or (under a launch, where all threads of a block allocate) "
    "shared or tensor, with extents of at least 1",
    "tensor memory": "a tensor buffer has 128 lanes of 32 to 512 columns of 32 bits, a power of two; one statement "
    "allocates it and one deallocates it; those of a block have 512 columns at most",
    "types": "operands have one dtype, which the operation takes; constants fit theirs",
    "lanes": "operands have the same number of lanes; ramps and broadcasts are made of scalars",
    "indices": "an access has one index of the index type for each dimension of its buffer",
    "mask": "a mask is a bool for each lane of its access",
    "store": "a stored value has its buffer's dtype, and one lane for each element stored to",
    "inputs": "inputs are never stored to",
    "condition": "the condition of an if is a scalar bool",
    "nesting": "a vectorised loop holds no parallel and no vectorised loop, a launch no parallel loop",
    "final": "after the passes only serial and parallel loops are left (in launches serial and unrolled ones), and "
    "register buffers have constant indices (in launches also ones of unrolled loops)",
    "launch": "launches stand at the top level, with nothing else next to them; each binds an axis once, threads by "
    "thread or by warp and 32 lanes, 1024 at most; clusters of 2, 4, 8 or 16; operations stand inside launches, "
    "those of processors outside",
    "layout": "shared buffers alone have layouts, which give every element an offset of its own",
    "operation": "operands of operations have the scopes, types, sizes and alignments these take; mbarriers are "
    "accessed by their operations alone",
    "warps": "operations of whole warps and warpgroups stand where blocks have whole ones",
    "uniformity": "barriers, operations of whole warps and shared allocations stand only under conditions that are "
    "the same in all threads that they synchronise",
}
"""Every rule by its name."""


@dataclass(frozen=True)
class _StatementContext:
    """What surrounds a statement.

    ``taken`` holds the names bound so far, shared by all contexts of one kernel. ``conditions`` are those of the ifs
    around, ``ranges`` those of the loops around and ``unrolled`` the unrolled loops around, all inside the launch.
    ``mbarriers`` names the buffers of mbarriers. ``divergent`` remembers whether a condition (by id) differs.
    """

    kernel: Kernel
    final: bool
    names: BoundNames
    path: tuple[str, ...] = ()
    vectorised: str = ""
    taken: set[str] = field(default_factory=set)
    conditions: tuple[Expr, ...] = ()
    ranges: Mapping[str, Interval] = field(default_factory=dict)
    unrolled: frozenset[str] = frozenset()
    mbarriers: frozenset[str] = frozenset()
    divergent: dict[tuple[int, SyncScope], bool] = field(default_factory=dict)


def verify(kernel: Kernel, *, final: bool = False) -> None:
    """Raise InvalidKernel unless ``kernel`` obeys all ``RULES`` (``final`` turns on the rule of that name). A kernel
    never changes, so that an object which was found good is not looked at again."""
    if getattr(kernel, "verified_as_final", None) in (True, final):
        return
    names = BoundNames(frozenset(kernel.ranges), {b.name: b for b in kernel.parameters})
    context = _StatementContext(kernel, final, names, ranges=kernel.ranges, mbarriers=mbarrier_buffers(kernel))
    try:
        _check_parameters(kernel, context.taken)
        _check_top_level(kernel)
    except RuleBroken as broken:
        raise _error(broken, context, None) from None
    _check(kernel.body, context)
    stored = {s.buffer.name for s in walk_statements(kernel.body) if isinstance(s, Store)}
    stored |= {s.target.name for s in walk_statements(kernel.body) if isinstance(s, TmaStore)}
    for output in kernel.outputs:
        if output.name not in stored:
            raise _error(RuleBroken("written", f"nothing stores to output {output.name}"), context, None)
    object.__setattr__(kernel, "verified_as_final", final)


def _error(broken: RuleBroken, context: _StatementContext, stmt: Stmt | None) -> InvalidKernel:
    shown = "" if stmt is None else f", in `{_first_line(stmt)}`"
    where = " / ".join(context.path)
    message = f"kernel {context.kernel.name}: {broken.detail}{shown}; rule {broken.rule}: {RULES[broken.rule]}"
    return InvalidKernel(message, field=where)


def _first_line(stmt: Stmt) -> str:
    try:
        return statement_text(stmt).splitlines()[0].strip()
    except InvalidKernel:  # a node that does not belong here has no text form either
        return type(stmt).__name__


def _check_parameters(kernel: Kernel, taken: set[str]) -> None:
    if not kernel.outputs:
        raise RuleBroken("parameters", "there is no output")
    for buffer in kernel.parameters:
        _bind(buffer.name, taken)
        if buffer.scope is not MemoryScope.GLOBAL:
            raise RuleBroken("parameters", f"{buffer.name} has scope {buffer.scope}")
        if any(extent < 1 for extent in buffer.shape):
            raise RuleBroken("parameters", f"{buffer.name} has shape {list(buffer.shape)}")
    for name in sorted(kernel.constants - {b.name for b in kernel.inputs}):
        raise RuleBroken("parameters", f"constant {name} is no input")
    for dynamic in kernel.dynamic:
        _check_dynamic(kernel, dynamic, taken)
    variables = {dynamic.var for dynamic in kernel.dynamic}
    for binding in (b for launch in kernel.launches for b in launch.axes):
        count = binding.count
        if count is not None and (free_variables(count) - variables or binding.axis not in GRID_AXES):
            raise RuleBroken("dynamic", f"{binding.axis} {binding.var} counts {expr_text(count)}")


def _check_dynamic(kernel: Kernel, dynamic: DynamicExtent, taken: set[str]) -> None:
    _bind(dynamic.var, taken)
    shapes = {b.name: b.shape for b in (*kernel.inputs, *kernel.outputs)}
    for name, d in sorted(dynamic.places):
        if shapes.get(name, ())[d : d + 1] != (dynamic.most,):
            raise RuleBroken("dynamic", f"{name} has shape {list(shapes.get(name, ()))}")
    if not dynamic.places or not kernel.launches:
        raise RuleBroken("dynamic", "no parameter has it, or there is no launch")


def _check_top_level(kernel: Kernel) -> None:
    launches = kernel.launches
    if not launches:
        return
    top = kernel.body.statements if isinstance(kernel.body, Seq) else (kernel.body,)
    if len(launches) != len(top):
        other = next(s for s in top if not isinstance(s, Launch))
        raise RuleBroken("launch", f"`{_first_line(other)}` stands next to launches")
    if len({launch.name for launch in launches}) != len(launches):
        raise RuleBroken("names", "two launches have one name")


def _bind(name: str, taken: set[str]) -> None:
    if not name.isidentifier():
        raise RuleBroken("names", f"{name!r} is no identifier")
    if name in taken:
        raise RuleBroken("names", f"{name} is bound twice")
    taken.add(name)


def _check(stmt: Stmt, context: _StatementContext) -> None:
    if isinstance(stmt, Seq):
        for below in stmt.statements:
            _check(below, context)
        return
    try:
        inner = _check_one(stmt, context)
    except RuleBroken as broken:
        raise _error(broken, context, stmt) from None
    match stmt:
        case For(body=body) | Allocate(body=body) | If(then=body) | Launch(body=body):
            _check(body, inner)


def _check_one(stmt: Stmt, context: _StatementContext) -> _StatementContext:
    """Check ``stmt`` itself. Gives the context in which its body stands."""
    match stmt:
        case For():
            return _check_loop(stmt, context)
        case Allocate(buffer=buffer):
            return _check_allocation(buffer, context)
        case Launch():
            return _enter_launch(stmt, context)
        case If(condition=condition):
            dtype, lanes = type_of(condition, context.names)
            if not dtype.is_bool or lanes != 1:
                raise RuleBroken("condition", f"the condition is {dtype} in {lanes} lanes")
            _check_accesses(stmt, context)
            return replace(context, conditions=(*context.conditions, condition))
        case Store():
            _check_store(stmt, context)
            _check_accesses(stmt, context)
            return context
        case Operation():
            (check_processor_operation if context.names.launch is None else check_operation)(stmt, context.names)
            if isinstance(stmt, TmaStore | AtomicReduce):
                _check_not_input(stmt.target, context)
            elif isinstance(stmt, PROCESSOR_OPERATIONS):
                for buffer in written_by(stmt):
                    _check_not_input(buffer, context)
            _check_accesses(stmt, context)
            return context
    raise RuleBroken("types", f"{type(stmt).__name__} is no statement of kernels")


def _check_allocation(buffer: Buffer, context: _StatementContext) -> _StatementContext:
    _bind(buffer.name, context.taken)
    shared = buffer.scope in (MemoryScope.SHARED, MemoryScope.TENSOR)
    misplaced = buffer.scope is MemoryScope.GLOBAL or (shared and context.names.launch is None)
    if misplaced or any(extent < 1 for extent in buffer.shape):
        raise RuleBroken("allocation", f"{buffer.name} has scope {buffer.scope} and shape {list(buffer.shape)}")
    check_layout(buffer)
    if shared:
        _check_uniformity(SyncScope.BLOCK, f"the allocation of {buffer.name}", context.conditions, context)
    return replace(context, names=context.names.with_buffer(buffer))


def _enter_launch(launch: Launch, context: _StatementContext) -> _StatementContext:
    if not any(launch is top for top in context.kernel.launches):
        raise RuleBroken("launch", f"launch {launch.name} is not at the top level")
    if not launch.name.isidentifier():
        raise RuleBroken("names", f"{launch.name!r} is no identifier")
    for binding in launch.axes:
        _bind(binding.var, context.taken)
    check_launch(launch, context.kernel)
    check_tensor_memory(launch)
    return replace(
        context, names=context.names.inside(launch), path=(launch.name,), conditions=(), ranges=context.kernel.ranges
    )


def _check_uniformity(scope: SyncScope, what: str, conditions: Iterable[Expr], context: _StatementContext) -> None:
    """Raise unless all threads of a group of ``scope`` reach a statement together; ``what`` is its name."""
    launch = context.names.launch
    assert launch is not None
    if scope is SyncScope.CLUSTER and launch.extent(HardwareAxis.CLUSTER) == 1:
        raise RuleBroken("launch", f"{what} where there are no clusters")
    if scope is SyncScope.WARP and launch.threads % WARP_LANES:
        raise RuleBroken("warps", f"{what} in blocks of {launch.threads} threads")
    if scope is SyncScope.WARPGROUP and launch.threads < WARPGROUP_THREADS:
        raise RuleBroken("warps", f"{what} in blocks of {launch.threads} threads; a warpgroup has {WARPGROUP_THREADS}")
    for condition in conditions:
        key = (id(condition), scope)
        if key not in context.divergent:
            context.divergent[key] = UniformityAnalysis(launch, context.ranges).is_divergent(condition, scope)
        if context.divergent[key]:
            text = expr_text(condition)
            raise RuleBroken("uniformity", f"{what} under `{text}`, which differs within a {scope.value}")


def _check_accesses(stmt: Stmt, context: _StatementContext) -> None:
    """The rules of all statements with expressions: uniformity, mbarriers, register buffers."""
    if context.names.launch is not None:
        for scope, what in convergent_scopes(stmt):
            _check_uniformity(scope, what, context.conditions, context)
        if isinstance(stmt, WarpgroupMma) and isinstance(stmt.accumulates, Expr):
            _check_uniformity(SyncScope.WARPGROUP, "whether a wgmma accumulates", (stmt.accumulates,), context)
        for _, guards in guarded_shuffles(stmt):
            _check_uniformity(SyncScope.WARP, "a shuffle", (*context.conditions, *guards), context)
    loads = [load for e in expressions(stmt) for load in loads_of(e)]
    buffers = [load.buffer for load in loads] + ([stmt.buffer] if isinstance(stmt, Store) else [])
    if any(b.scope is MemoryScope.TENSOR for b in buffers):
        raise RuleBroken("operation", "tensor memory is accessed as data; a TensorMemoryLoad brings it to registers")
    if context.mbarriers:
        accessed = {b.name for b in buffers}
        if accessed & context.mbarriers:
            raise RuleBroken("operation", f"mbarriers {', '.join(accessed & context.mbarriers)} are accessed as data")
    _check_registers(stmt, loads, context)


def _check_loop(stmt: For, context: _StatementContext) -> _StatementContext:
    _bind(stmt.var, context.taken)
    if stmt.extent < 1:
        raise RuleBroken("extent", f"loop {stmt.var} has extent {stmt.extent}")
    if context.vectorised and stmt.kind in (LoopKind.PARALLEL, LoopKind.VECTORIZED):
        raise RuleBroken("nesting", f"{stmt.kind} loop {stmt.var} is inside the vectorised loop {context.vectorised}")
    in_launch = context.names.launch is not None
    if in_launch and stmt.kind is LoopKind.PARALLEL:
        raise RuleBroken("nesting", f"parallel loop {stmt.var} is inside a launch")
    if context.final and stmt.kind not in (LoopKind.SERIAL, LoopKind.UNROLLED if in_launch else LoopKind.PARALLEL):
        raise RuleBroken("final", f"loop {stmt.var} is still {stmt.kind}")
    vectorised = stmt.var if stmt.kind is LoopKind.VECTORIZED else context.vectorised
    names = context.names.with_variable(stmt.var)
    return replace(
        context,
        names=names,
        path=(*context.path, stmt.var),
        vectorised=vectorised,
        ranges={**context.ranges, stmt.var: loop_range(stmt.extent)},
        unrolled=context.unrolled | {stmt.var} if stmt.kind is LoopKind.UNROLLED else context.unrolled,
    )


def _check_store(stmt: Store, context: _StatementContext) -> None:
    lanes = access_lanes(stmt.buffer, stmt.indices, stmt.mask, context.names.as_accessed(stmt.buffer))
    dtype, value_lanes = type_of(stmt.value, context.names)
    if dtype != stmt.buffer.dtype:
        raise RuleBroken("store", f"a {dtype} is stored to {stmt.buffer.name}, which holds {stmt.buffer.dtype}")
    if value_lanes != lanes:
        raise RuleBroken("store", f"{value_lanes} lanes are stored to {lanes} elements of {stmt.buffer.name}")
    _check_not_input(stmt.buffer, context)


def _check_not_input(buffer: Buffer, context: _StatementContext) -> None:
    if any(buffer.name == b.name for b in context.kernel.inputs):
        raise RuleBroken("inputs", f"{buffer.name} is an input")


def _check_registers(stmt: Stmt, loads: Iterable[Load], context: _StatementContext) -> None:
    if not context.final:
        return
    accesses = [(load.buffer, load.indices) for load in loads]
    match stmt:
        case Store(buffer=buffer, indices=indices):
            accesses.append((buffer, indices))
        case Operation(accesses=others):
            accesses += others
    unrolled = context.unrolled if context.names.launch is not None else None
    for buffer, indices in accesses:
        if buffer.scope is MemoryScope.REGISTER and not all(_is_constant(i, unrolled) for i in indices):
            raise RuleBroken("final", f"register buffer {buffer.name} is accessed at an index that varies")


def _is_constant(index: Expr, unrolled: frozenset[str] | None) -> bool:
    """Return whether an index is a constant, or a vector of them: one machine register holds contiguous lanes of a
    register buffer. In a launch, ``unrolled`` names the unrolled loops around, and an index counts as a constant if it
    is one once they are written out."""
    if isinstance(index, (Ramp, Broadcast)):
        index = index.base if isinstance(index, Ramp) else index.value
    if isinstance(index, Const) or unrolled is None:
        return isinstance(index, Const)
    return not loads_of(index) and free_variables(index) <= unrolled
