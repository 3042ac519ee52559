"""The verifier: what a legal kernel is.

``RULES`` says all of it. A kernel that breaks one raises InvalidKernel with the rule, what breaks it, and the
statement (``field`` is the path of loops to it). ``verify`` does not run the kernel: bounds of accesses, unwritten
elements and races are the interpreter's business.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from ..core.errors import InvalidKernel
from .bounds import Interval, loop_range
from .buffer import Buffer, Scope
from .cpu import PROCESSOR_OPERATIONS, written_by
from .expr import WARP_LANES, Broadcast, Const, Expr, Ramp
from .gpu import WARPGROUP_THREADS, Level, TmaStore, WarpgroupMma
from .rewrite import free_variables, loads_of
from .stmt import (
    Allocate,
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
from .typing_rules import Broken, Names, accessed, type_of
from .uniformity import Divergence, meeting, shuffles
from .verify_cpu import check_processor_operation
from .verify_launch import arrival_barriers, check_launch, check_layout, check_operation

RULES = {
    "names": "loop variables and buffers have names of their own, each used once, that are identifiers",
    "parameters": "a kernel has outputs; inputs, outputs and workspace are global, with extents of at least 1; "
    "constants are inputs",
    "written": "every output is stored to somewhere",
    "extent": "a loop runs at least once",
    "scope": "variables and buffers are used only where they are bound, as they were declared",
    "allocation": "allocated buffers are local, register, or (under a launch, where all threads of a block allocate) "
    "shared, with extents of at least 1",
    "types": "operands have one dtype, which the operation takes; constants fit theirs",
    "lanes": "operands have the same number of lanes; ramps and broadcasts are made of scalars",
    "indices": "an access has one index of the index type for each dimension of its buffer",
    "mask": "a mask is a bool for each lane of its access",
    "store": "a stored value has its buffer's dtype, and one lane for each place stored to",
    "inputs": "inputs are never stored to",
    "condition": "the condition of an if is a scalar bool",
    "nesting": "a vectorised loop holds no parallel and no vectorised loop, a launch no parallel loop",
    "final": "after the passes only serial and parallel loops are left (in launches serial and unrolled ones), and "
    "register buffers have constant indices (in launches also ones of unrolled loops)",
    "launch": "launches stand at the top level, with nothing else beside them; each binds an axis once, threads by "
    "thread or by warp and 32 lanes, 1024 at most; clusters of 2, 4, 8 or 16; operations stand inside launches, "
    "those of processors outside",
    "layout": "shared buffers alone have layouts, which give every element a place of its own",
    "operation": "operands of operations have the scopes, types, sizes and alignments these take; arrival barriers are "
    "touched by their operations alone",
    "warps": "operations of whole warps and warpgroups stand where blocks have whole ones",
    "meeting": "barriers, operations of whole warps and shared allocations stand only under conditions that all "
    "threads that must meet decide alike",
}
"""Every rule by its name."""


@dataclass(frozen=True)
class _Place:
    """What surrounds a statement."""

    kernel: Kernel
    final: bool
    names: Names
    path: tuple[str, ...] = ()
    vectorised: str = ""
    taken: set[str] = field(default_factory=set)  # shared by all places of one kernel: names bound so far
    conditions: tuple[Expr, ...] = ()  # of the ifs around, inside the launch
    ranges: Mapping[str, Interval] = field(default_factory=dict)  # of the loops around, inside the launch
    unrolled: frozenset[str] = frozenset()
    arrivals: frozenset[str] = frozenset()
    judged: dict[tuple[int, Level], bool] = field(default_factory=dict)  # by condition: whether it differs


def verify(kernel: Kernel, *, final: bool = False) -> None:
    """Raise InvalidKernel unless ``kernel`` obeys all ``RULES`` (``final`` switches on the rule of that name)."""
    names = Names(frozenset(), {b.name: b for b in kernel.parameters})
    place = _Place(kernel, final, names, arrivals=arrival_barriers(kernel))
    try:
        _check_parameters(kernel, place.taken)
        _check_top_level(kernel)
    except Broken as broken:
        raise _error(broken, place, None) from None
    _check(kernel.body, place)
    stored = {s.buffer.name for s in walk_statements(kernel.body) if isinstance(s, Store)}
    stored |= {s.target.name for s in walk_statements(kernel.body) if isinstance(s, TmaStore)}
    for output in kernel.outputs:
        if output.name not in stored:
            raise _error(Broken("written", f"nothing stores to output {output.name}"), place, None)


def _error(broken: Broken, place: _Place, stmt: Stmt | None) -> InvalidKernel:
    shown = "" if stmt is None else f", in `{_first_line(stmt)}`"
    where = " / ".join(place.path)
    message = f"kernel {place.kernel.name}: {broken.detail}{shown}; rule {broken.rule}: {RULES[broken.rule]}"
    return InvalidKernel(message, field=where)


def _first_line(stmt: Stmt) -> str:
    try:
        return statement_text(stmt).splitlines()[0].strip()
    except InvalidKernel:  # a node that does not belong here has no text form either
        return type(stmt).__name__


def _check_parameters(kernel: Kernel, taken: set[str]) -> None:
    if not kernel.outputs:
        raise Broken("parameters", "there is no output")
    for buffer in kernel.parameters:
        _bind(buffer.name, taken)
        if buffer.scope is not Scope.GLOBAL:
            raise Broken("parameters", f"{buffer.name} has scope {buffer.scope}")
        if any(extent < 1 for extent in buffer.shape):
            raise Broken("parameters", f"{buffer.name} has shape {list(buffer.shape)}")
    for name in sorted(kernel.constants - {b.name for b in kernel.inputs}):
        raise Broken("parameters", f"constant {name} is no input")


def _check_top_level(kernel: Kernel) -> None:
    launches = kernel.launches
    if not launches:
        return
    top = kernel.body.statements if isinstance(kernel.body, Seq) else (kernel.body,)
    if len(launches) != len(top):
        other = next(s for s in top if not isinstance(s, Launch))
        raise Broken("launch", f"`{_first_line(other)}` stands beside launches")
    if len({launch.name for launch in launches}) != len(launches):
        raise Broken("names", "two launches have one name")


def _bind(name: str, taken: set[str]) -> None:
    if not name.isidentifier():
        raise Broken("names", f"{name!r} is no identifier")
    if name in taken:
        raise Broken("names", f"{name} is bound twice")
    taken.add(name)


def _check(stmt: Stmt, place: _Place) -> None:
    if isinstance(stmt, Seq):
        for below in stmt.statements:
            _check(below, place)
        return
    try:
        inner = _check_one(stmt, place)
    except Broken as broken:
        raise _error(broken, place, stmt) from None
    match stmt:
        case For(body=body) | Allocate(body=body) | If(then=body) | Launch(body=body):
            _check(body, inner)


def _check_one(stmt: Stmt, place: _Place) -> _Place:
    """Check ``stmt`` itself; the place its body stands in."""
    match stmt:
        case For():
            return _check_loop(stmt, place)
        case Allocate(buffer=buffer):
            return _check_allocation(buffer, place)
        case Launch():
            return _enter_launch(stmt, place)
        case If(condition=condition):
            dtype, lanes = type_of(condition, place.names)
            if not dtype.is_bool or lanes != 1:
                raise Broken("condition", f"the condition is {dtype} in {lanes} lanes")
            _check_accesses(stmt, place)
            return replace(place, conditions=(*place.conditions, condition))
        case Store():
            _check_store(stmt, place)
            _check_accesses(stmt, place)
            return place
        case Operation():
            (check_processor_operation if place.names.launch is None else check_operation)(stmt, place.names)
            if isinstance(stmt, TmaStore):
                _check_not_input(stmt.target, place)
            elif isinstance(stmt, PROCESSOR_OPERATIONS):
                for buffer in written_by(stmt):
                    _check_not_input(buffer, place)
            _check_accesses(stmt, place)
            return place
    raise Broken("types", f"{type(stmt).__name__} is no statement of kernels")


def _check_allocation(buffer: Buffer, place: _Place) -> _Place:
    _bind(buffer.name, place.taken)
    shared = buffer.scope is Scope.SHARED
    misplaced = buffer.scope is Scope.GLOBAL or (shared and place.names.launch is None)
    if misplaced or any(extent < 1 for extent in buffer.shape):
        raise Broken("allocation", f"{buffer.name} has scope {buffer.scope} and shape {list(buffer.shape)}")
    check_layout(buffer)
    if shared:
        _check_meeting(Level.BLOCK, f"the allocation of {buffer.name}", place.conditions, place)
    return replace(place, names=place.names.with_buffer(buffer))


def _enter_launch(launch: Launch, place: _Place) -> _Place:
    if not any(launch is top for top in place.kernel.launches):
        raise Broken("launch", f"launch {launch.name} is not at the top level")
    if not launch.name.isidentifier():
        raise Broken("names", f"{launch.name!r} is no identifier")
    for bound in launch.bounds:
        _bind(bound.var, place.taken)
    check_launch(launch, place.kernel)
    return replace(place, names=place.names.inside(launch), path=(launch.name,), conditions=(), ranges={})


def _check_meeting(level: Level, what: str, conditions: Iterable[Expr], place: _Place) -> None:
    """Whether everything that must meet gets here together."""
    launch = place.names.launch
    assert launch is not None
    if level is Level.CLUSTER and launch.extent(HardwareAxis.CLUSTER) == 1:
        raise Broken("launch", f"{what} where there are no clusters")
    if level is Level.WARP and launch.threads % WARP_LANES:
        raise Broken("warps", f"{what} in blocks of {launch.threads} threads")
    if level is Level.WARPGROUP and launch.threads < WARPGROUP_THREADS:
        raise Broken("warps", f"{what} in blocks of {launch.threads} threads; a warpgroup has {WARPGROUP_THREADS}")
    for condition in conditions:
        key = (id(condition), level)
        if key not in place.judged:
            place.judged[key] = Divergence(launch, place.ranges).varies(condition, level)
        if place.judged[key]:
            raise Broken("meeting", f"{what} under `{expr_text(condition)}`, which differs within a {level.value}")


def _check_accesses(stmt: Stmt, place: _Place) -> None:
    """Rules of all statements with expressions: who must meet, arrival barriers, register buffers."""
    if place.names.launch is not None:
        for level, what in meeting(stmt):
            _check_meeting(level, what, place.conditions, place)
        if isinstance(stmt, WarpgroupMma) and isinstance(stmt.accumulates, Expr):
            _check_meeting(Level.WARPGROUP, "a product that accumulates", (stmt.accumulates,), place)
        for _, under in shuffles(stmt):
            _check_meeting(Level.WARP, "a shuffle", (*place.conditions, *under), place)
    if place.arrivals:
        touched = {load.buffer.name for e in expressions(stmt) for load in loads_of(e)}
        if isinstance(stmt, Store):
            touched.add(stmt.buffer.name)
        if touched & place.arrivals:
            raise Broken("operation", f"arrival barriers {', '.join(touched & place.arrivals)} are accessed as data")
    _check_registers(stmt, place)


def _check_loop(stmt: For, place: _Place) -> _Place:
    _bind(stmt.var, place.taken)
    if stmt.extent < 1:
        raise Broken("extent", f"loop {stmt.var} has extent {stmt.extent}")
    if place.vectorised and stmt.kind in (LoopKind.PARALLEL, LoopKind.VECTORIZED):
        raise Broken("nesting", f"{stmt.kind} loop {stmt.var} is inside the vectorised loop {place.vectorised}")
    in_launch = place.names.launch is not None
    if in_launch and stmt.kind is LoopKind.PARALLEL:
        raise Broken("nesting", f"parallel loop {stmt.var} is inside a launch")
    if place.final and stmt.kind not in (LoopKind.SERIAL, LoopKind.UNROLLED if in_launch else LoopKind.PARALLEL):
        raise Broken("final", f"loop {stmt.var} is still {stmt.kind}")
    vectorised = stmt.var if stmt.kind is LoopKind.VECTORIZED else place.vectorised
    names = place.names.with_variable(stmt.var)
    return replace(
        place,
        names=names,
        path=(*place.path, stmt.var),
        vectorised=vectorised,
        ranges={**place.ranges, stmt.var: loop_range(stmt.extent)},
        unrolled=place.unrolled | {stmt.var} if stmt.kind is LoopKind.UNROLLED else place.unrolled,
    )


def _check_store(stmt: Store, place: _Place) -> None:
    lanes = accessed(stmt.buffer, stmt.indices, stmt.mask, place.names)
    dtype, value_lanes = type_of(stmt.value, place.names)
    if dtype != stmt.buffer.dtype:
        raise Broken("store", f"a {dtype} is stored to {stmt.buffer.name}, which holds {stmt.buffer.dtype}")
    if value_lanes != lanes:
        raise Broken("store", f"{value_lanes} lanes are stored to {lanes} places of {stmt.buffer.name}")
    _check_not_input(stmt.buffer, place)


def _check_not_input(buffer: Buffer, place: _Place) -> None:
    if any(buffer.name == b.name for b in place.kernel.inputs):
        raise Broken("inputs", f"{buffer.name} is an input")


def _check_registers(stmt: Stmt, place: _Place) -> None:
    if not place.final:
        return
    accesses = [(load.buffer, load.indices) for e in expressions(stmt) for load in loads_of(e)]
    match stmt:
        case Store(buffer=buffer, indices=indices):
            accesses.append((buffer, indices))
        case Operation(places=places):
            accesses += places
    unrolled = place.unrolled if place.names.launch is not None else None
    for buffer, indices in accesses:
        if buffer.scope is Scope.REGISTER and not all(_is_constant(i, unrolled) for i in indices):
            raise Broken("final", f"register buffer {buffer.name} is accessed at an index that varies")


def _is_constant(index: Expr, unrolled: frozenset[str] | None) -> bool:
    """A constant, or a vector of them: one machine register holds neighbouring lanes of a register buffer. In a launch
    (``unrolled``: the unrolled loops around) whatever is constant once those are written out."""
    if isinstance(index, (Ramp, Broadcast)):
        index = index.base if isinstance(index, Ramp) else index.value
    if isinstance(index, Const) or unrolled is None:
        return isinstance(index, Const)
    return not loads_of(index) and free_variables(index) <= unrolled
