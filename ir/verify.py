"""The verifier: what a legal kernel is.

``RULES`` says all of it. A kernel that breaks one raises InvalidKernel with the rule, what breaks it, and the
statement (``field`` is the path of loops to it). ``verify`` does not run the kernel: bounds of accesses, unwritten
elements and races are the interpreter's business.
"""

from dataclasses import dataclass, field, replace

from ..core.errors import InvalidKernel
from .buffer import Scope
from .expr import Broadcast, Const, Expr, Ramp
from .rewrite import loads_of
from .stmt import Allocate, For, If, Kernel, LoopKind, Seq, Stmt, Store, expressions, walk_statements
from .text import statement_text
from .typing_rules import Broken, Names, accessed, type_of

RULES = {
    "names": "loop variables and buffers have names of their own, each used once, that are identifiers",
    "parameters": "a kernel has outputs; inputs, outputs and workspace are global, with extents of at least 1",
    "written": "every output is stored to somewhere",
    "extent": "a loop runs at least once",
    "scope": "variables and buffers are used only where they are bound, as they were declared",
    "allocation": "allocated buffers are local or register, with extents of at least 1",
    "types": "operands have one dtype, which the operation takes; constants fit theirs",
    "lanes": "operands have the same number of lanes; ramps and broadcasts are made of scalars",
    "indices": "an access has one index of the index type for each dimension of its buffer",
    "mask": "a mask is a bool for each lane of its access",
    "store": "a stored value has its buffer's dtype, and one lane for each place stored to",
    "inputs": "inputs are never stored to",
    "condition": "the condition of an if is a scalar bool",
    "nesting": "a vectorised loop holds no parallel and no vectorised loop",
    "final": "after the passes only serial and parallel loops are left, and register buffers have constant indices",
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


def verify(kernel: Kernel, *, final: bool = False) -> None:
    """Raise InvalidKernel unless ``kernel`` obeys all ``RULES`` (``final`` switches on the rule of that name)."""
    names = Names(frozenset(), {b.name: b for b in kernel.parameters})
    place = _Place(kernel, final, names)
    try:
        _check_parameters(kernel, place.taken)
    except Broken as broken:
        raise _error(broken, place, None) from None
    _check(kernel.body, place)
    stored = {s.buffer.name for s in walk_statements(kernel.body) if isinstance(s, Store)}
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
        case For(body=body) | Allocate(body=body) | If(then=body):
            _check(body, inner)


def _check_one(stmt: Stmt, place: _Place) -> _Place:
    """Check ``stmt`` itself; the place its body stands in."""
    match stmt:
        case For():
            return _check_loop(stmt, place)
        case Allocate(buffer=buffer):
            _bind(buffer.name, place.taken)
            if buffer.scope is Scope.GLOBAL or any(extent < 1 for extent in buffer.shape):
                raise Broken("allocation", f"{buffer.name} has scope {buffer.scope} and shape {list(buffer.shape)}")
            return replace(place, names=place.names.with_buffer(buffer))
        case If(condition=condition):
            dtype, lanes = type_of(condition, place.names)
            if not dtype.is_bool or lanes != 1:
                raise Broken("condition", f"the condition is {dtype} in {lanes} lanes")
            _check_registers(stmt, place)
            return place
        case Store():
            _check_store(stmt, place)
            _check_registers(stmt, place)
            return place
    raise Broken("types", f"{type(stmt).__name__} is no statement of kernels")


def _check_loop(stmt: For, place: _Place) -> _Place:
    _bind(stmt.var, place.taken)
    if stmt.extent < 1:
        raise Broken("extent", f"loop {stmt.var} has extent {stmt.extent}")
    if place.vectorised and stmt.kind in (LoopKind.PARALLEL, LoopKind.VECTORIZED):
        raise Broken("nesting", f"{stmt.kind} loop {stmt.var} is inside the vectorised loop {place.vectorised}")
    if place.final and stmt.kind not in (LoopKind.SERIAL, LoopKind.PARALLEL):
        raise Broken("final", f"loop {stmt.var} is still {stmt.kind}")
    vectorised = stmt.var if stmt.kind is LoopKind.VECTORIZED else place.vectorised
    names = place.names.with_variable(stmt.var)
    return replace(place, names=names, path=(*place.path, stmt.var), vectorised=vectorised)


def _check_store(stmt: Store, place: _Place) -> None:
    lanes = accessed(stmt.buffer, stmt.indices, stmt.mask, place.names)
    dtype, value_lanes = type_of(stmt.value, place.names)
    if dtype != stmt.buffer.dtype:
        raise Broken("store", f"a {dtype} is stored to {stmt.buffer.name}, which holds {stmt.buffer.dtype}")
    if value_lanes != lanes:
        raise Broken("store", f"{value_lanes} lanes are stored to {lanes} places of {stmt.buffer.name}")
    if any(stmt.buffer.name == b.name for b in place.kernel.inputs):
        raise Broken("inputs", f"{stmt.buffer.name} is an input")


def _check_registers(stmt: Store | If, place: _Place) -> None:
    if not place.final:
        return
    accesses = [(load.buffer, load.indices) for e in expressions(stmt) for load in loads_of(e)]
    if isinstance(stmt, Store):
        accesses.append((stmt.buffer, stmt.indices))
    for buffer, indices in accesses:
        if buffer.scope is Scope.REGISTER and not all(map(_is_constant, indices)):
            raise Broken("final", f"register buffer {buffer.name} is accessed at an index that varies")


def _is_constant(index: Expr) -> bool:
    """A constant, or a vector of them: one machine register holds neighbouring lanes of a register buffer."""
    if isinstance(index, (Ramp, Broadcast)):
        index = index.base if isinstance(index, Ramp) else index.value
    return isinstance(index, Const)
