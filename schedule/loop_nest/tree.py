"""Finds loops and tensors in a kernel, and puts changed statements back."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ...core.errors import IllegalSchedule
from ...ir.bounds import Interval
from ...ir.buffer import Buffer, MemoryScope
from ...ir.expr import Expr, Load, Var
from ...ir.rewrite import free_variables, loads_of, reads_of, stores_of
from ...ir.stmt import (
    Allocate,
    For,
    If,
    Kernel,
    LoopKind,
    Seq,
    Stmt,
    Store,
    expressions,
    substatements,
    walk_statements,
    with_statements,
)


@dataclass(frozen=True, slots=True)
class LoopPath:
    """A loop, and the statements around it (For, If, Allocate), outermost first."""

    loop: For
    enclosing: tuple[Stmt, ...]

    @property
    def loops(self) -> tuple[For, ...]:
        """The loops around it and the loop itself, outermost first."""
        return (*(s for s in self.enclosing if isinstance(s, For)), self.loop)


@dataclass(frozen=True, slots=True)
class Access:
    """One load or store of a buffer. ``loops`` are those around it, outermost first, inside of where the walk began;
    ``conditions`` guard it. ``store`` is None for a load."""

    buffer: Buffer
    indices: tuple[Expr, ...]
    loops: tuple[For, ...]
    conditions: tuple[Expr, ...]
    store: Store | None = None


def loops_in(stmt: Stmt) -> Iterator[For]:
    """Return every loop of ``stmt``, in program order, outer ones first."""
    return (s for s in walk_statements(stmt) if isinstance(s, For))


def ranges_of(loops: tuple[For, ...]) -> dict[str, Interval]:
    """Return the range of each loop's variable."""
    return {loop.var: Interval(0, loop.extent - 1) for loop in loops}


def names_in(kernel: Kernel) -> set[str]:
    """Return every name that a new loop or buffer must differ from."""
    names = {b.name for b in kernel.parameters}
    for s in walk_statements(kernel.body):
        if isinstance(s, For):
            names.add(s.var)
        elif isinstance(s, Allocate):
            names.add(s.buffer.name)
    return names


def find_loop(kernel: Kernel, name: str, *, primitive: str, argument: str = "loop") -> LoopPath:
    """Return the loop called ``name``. Raises IllegalSchedule, with a list of the loops there are, where there is
    none."""
    path = _path(kernel.body, name)
    if path is None:
        raise IllegalSchedule(
            f"{primitive}: {argument} is {name!r}, and there is no such loop; there are: "
            f"{', '.join(loop.var for loop in loops_in(kernel.body)) or 'none'}",
            field=argument,
        )
    *around, loop = path
    assert isinstance(loop, For)
    return LoopPath(loop, tuple(s for s in around if not isinstance(s, Seq)))


def require_serial(loop: For, *, primitive: str, argument: str = "loop") -> None:
    """Raises IllegalSchedule unless ``loop`` is serial."""
    if loop.kind is not LoopKind.SERIAL:
        raise IllegalSchedule(
            f"{primitive}: {argument} is {loop.var!r}, which is {loop.kind}; only serial loops can be changed, so "
            "parallelise, vectorise and unroll last",
            field=argument,
        )


def require_new_names(
    kernel: Kernel, names: Mapping[str, str], *, primitive: str, instead_of: tuple[str, ...] = ()
) -> None:
    """Raises IllegalSchedule when one of ``names`` (argument -> name) is taken, empty, or given twice. The names of the
    loops ``instead_of``, which are replaced, count as free."""
    taken = names_in(kernel) - set(instead_of)
    for argument, name in names.items():
        if not name or name in taken:
            problem = "a loop or buffer has that name" if name else "a name is needed"
            raise IllegalSchedule(f"{primitive}: {argument} is {name!r}; {problem}", field=argument)
        taken.add(name)


def _path(stmt: Stmt, name: str) -> tuple[Stmt, ...] | None:
    """Return the statements from ``stmt`` down to the loop called ``name``."""
    if isinstance(stmt, For) and stmt.var == name:
        return (stmt,)
    for below in substatements(stmt):
        found = _path(below, name)
        if found is not None:
            return (stmt, *found)
    return None


def replaced(stmt: Stmt, old: Stmt, new: Stmt) -> Stmt:
    """``stmt`` with ``old`` replaced by ``new``. ``old`` is found by identity, not by equality, and is in it once."""
    if stmt is old:
        return new
    below = substatements(stmt)
    for n, s in enumerate(below):
        found = replaced(s, old, new)
        if found is not s:
            return with_statements(stmt, (*below[:n], found, *below[n + 1 :]))
    return stmt


def with_loop(kernel: Kernel, loop: For, new: Stmt) -> Kernel:
    """``kernel`` with ``loop`` replaced by ``new``."""
    return replace(kernel, body=replaced(kernel.body, loop, new))


def without(stmt: Stmt, dropped: Callable[[Stmt], bool]) -> Stmt | None:
    """``stmt`` without the statements that are to be ``dropped`` and without those that become empty; None where
    nothing is left."""
    if dropped(stmt):
        return None
    old = substatements(stmt)
    if not old:
        return stmt
    below = tuple(kept for s in old if (kept := without(s, dropped)) is not None)
    return with_statements(stmt, below) if below else None


def accesses(stmt: Stmt) -> Iterator[Access]:
    """Return every load and store of ``stmt``, in program order, the loads of a store before it."""
    return _accesses(stmt, (), ())


def _accesses(stmt: Stmt, loops: tuple[For, ...], conditions: tuple[Expr, ...]) -> Iterator[Access]:
    for expr in expressions(stmt):
        for e in reads_of(expr):
            if isinstance(e, Load):
                yield Access(e.buffer, e.indices, loops, conditions)
    match stmt:
        case Store(buffer=buffer, indices=indices):
            yield Access(buffer, indices, loops, conditions, stmt)
        case For(body=body):
            yield from _accesses(body, (*loops, stmt), conditions)
        case If(condition=condition, then=then):
            yield from _accesses(then, loops, (*conditions, condition))
        case _:
            for below in substatements(stmt):
                yield from _accesses(below, loops, conditions)


def stored_outside(stmt: Stmt) -> set[str]:
    """Return the names of the buffers that ``stmt`` writes and does not itself allocate."""
    stored = {s.buffer.name for s in walk_statements(stmt) if isinstance(s, Store)}
    return stored - {s.buffer.name for s in walk_statements(stmt) if isinstance(s, Allocate)}


@dataclass(frozen=True, slots=True)
class Producer:
    """The statements that together compute one tensor and nothing else, neighbours in one sequence. ``around``: the
    statements around them, outermost first."""

    buffer: Buffer
    statements: tuple[Stmt, ...]
    around: tuple[Stmt, ...]

    def holds(self, stmt: Stmt) -> bool:
        """Return whether ``stmt``, by identity, is one of the statements or inside one."""
        return any(s is stmt for root in self.statements for s in walk_statements(root))


def find_producer(kernel: Kernel, tensor: str, *, primitive: str) -> Producer:
    """Return where ``tensor`` is computed. Raises IllegalSchedule when nothing computes it, or when a nest computes it
    together with other tensors."""
    buffers = {s.buffer.name: s.buffer for s in walk_statements(kernel.body) if isinstance(s, Store)}
    if tensor not in buffers:
        raise IllegalSchedule(
            f"{primitive}: tensor is {tensor!r}, which this kernel does not compute; it computes: "
            f"{', '.join(buffers) or 'nothing'}",
            field="tensor",
        )
    found = _find_producer(kernel.body, tensor, ())
    if found is None:
        raise IllegalSchedule(
            f"{primitive}: tensor is {tensor!r}, which is computed in one nest together with other tensors",
            field="tensor",
        )
    return Producer(buffers[tensor], *found)


def _find_producer(
    stmt: Stmt, tensor: str, around: tuple[Stmt, ...]
) -> tuple[tuple[Stmt, ...], tuple[Stmt, ...]] | None:
    if isinstance(stmt, Seq):
        here = tuple(s for s in stmt.statements if any(store.buffer.name == tensor for store in stores_of(s)))
        if all(stored_outside(s) == {tensor} for s in here):
            return here, around
        return _find_producer(here[0], tensor, around) if len(here) == 1 else None
    if stored_outside(stmt) == {tensor}:
        return (stmt,), around
    below = substatements(stmt)
    return _find_producer(below[0], tensor, (*around, stmt)) if below else None


def loads_of_tensor(kernel: Kernel, producer: Producer) -> list[tuple[Stmt, ...]]:
    """For each load of the tensor outside the nests that compute it, the statements around it, outermost first."""
    found: list[tuple[Stmt, ...]] = []

    def visit(stmt: Stmt, around: tuple[Stmt, ...]) -> None:
        if any(stmt is own for own in producer.statements):
            return
        path = (*around, stmt)
        for expr in expressions(stmt):
            found.extend(path for load in loads_of(expr) if load.buffer.name == producer.buffer.name)
        for below in substatements(stmt):
            visit(below, path)

    visit(kernel.body, ())
    return found


def innermost_guarded(loop: For) -> tuple[tuple[If, ...], Stmt]:
    """Return the conditions that guard the whole body of ``loop``, outermost first, and what they guard."""
    guards: list[If] = []
    body = loop.body
    while isinstance(body, If):
        guards.append(body)
        body = body.then
    return tuple(guards), body


def guarded_by(conditions: Sequence[Expr], body: Stmt) -> Stmt:
    """``body`` inside an If for each condition, the first one outermost."""
    for condition in reversed(conditions):
        body = If(condition, body)
    return body


def require_no_output(kernel: Kernel, tensor: str, *, primitive: str) -> None:
    """Raises IllegalSchedule when ``tensor`` is an output of the kernel, which must be written in full."""
    if any(b.name == tensor for b in kernel.outputs):
        raise IllegalSchedule(
            f"{primitive}: tensor is {tensor!r}, an output; only tensors inside the kernel can be moved away "
            "(write_back splits an output into such a tensor and a copy)",
            field="tensor",
        )


def require_local(scope: MemoryScope, *, primitive: str) -> None:
    """Raises IllegalSchedule unless ``scope`` is private to an iteration."""
    if scope not in (MemoryScope.LOCAL, MemoryScope.REGISTER):
        raise IllegalSchedule(f"{primitive}: scope is {scope!s}; allowed: local, register", field="scope")


def dimension_names(producer: Producer) -> tuple[str, ...]:
    """Return a name for each dimension of the tensor: the name of the loop over it, where the last of its nests has
    one."""
    tensor = producer.buffer
    stores = [s for root in producer.statements for s in walk_statements(root) if isinstance(s, Store)]
    indices = [s for s in stores if s.buffer.name == tensor.name][-1].indices
    return tuple(i.name if isinstance(i, Var) else f"{tensor.name}_{d}" for d, i in enumerate(indices))


def require_no_lanes(path: LoopPath, *, primitive: str) -> None:
    """Raises IllegalSchedule when the loop or one around it is vectorised."""
    for loop in path.loops:
        if loop.kind is LoopKind.VECTORIZED:
            raise IllegalSchedule(
                f"{primitive}: loop is {path.loop.var!r}, and {loop.var!r} is vectorised; allowed: a loop outside "
                "vectorised ones",
                field="loop",
            )


def guarded_nest(chain: Sequence[For], conditions: Sequence[Expr], body: Stmt) -> Stmt:
    """Return the loops around ``body``, each condition directly inside the innermost loop that it uses."""
    depth = {loop.var: position for position, loop in enumerate(chain)}
    inside: dict[int, list[Expr]] = {}
    for condition in conditions:
        position = max((depth[name] for name in free_variables(condition) if name in depth), default=-1)
        inside.setdefault(position, []).append(condition)
    for position in range(len(chain) - 1, -2, -1):
        for condition in reversed(inside.get(position, [])):
            body = If(condition, body)
        if position >= 0:
            body = replace(chain[position], body=body)
    return body
