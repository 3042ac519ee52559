"""inline: a tensor is computed where it is read, and never stored."""

from dataclasses import replace

from ...core.errors import IllegalSchedule
from ...ir.expr import Expr, Load, Var, walk
from ...ir.rewrite import map_loads, map_statements, substitute
from ...ir.stmt import Allocate, For, Kernel, Stmt, Store, expressions, walk_statements
from ..loop_nest.tree import find_producer, require_no_output, without

MOST_NODES = 20_000


def inline(kernel: Kernel, tensor: str) -> Kernel:
    """Replaces every load of ``tensor`` by the expression that computes that element, and removes the tensor.

    ::

        for i:
          P[i] = A[i] * 2                               # inline(k, "P")
        for j:                            for j:
          B[j] = P[j + 1] + 1      ->       B[j] = A[j + 1] * 2 + 1

    Raises IllegalSchedule for a tensor that the kernel does not compute, for outputs and reductions, for a nest that
    was split or guarded (inline first), and when an expression would grow beyond 20,000 nodes.
    """
    producer = find_producer(kernel, tensor, primitive="inline")
    require_no_output(kernel, tensor, primitive="inline")
    store = _single_store(producer.statements, tensor)
    names = [i.name if isinstance(i, Var) else "" for i in store.indices]

    def body(load: Load) -> Expr:
        if load.buffer.name != tensor:
            return load
        return substitute(store.value, dict(zip(names, load.indices, strict=True)))

    def dropped(stmt: Stmt) -> bool:
        return any(stmt is own for own in producer.statements)

    kept = without(kernel.body, dropped)
    if kept is None:
        raise IllegalSchedule(f"inline: tensor is {tensor!r}, which nothing reads", field="tensor")
    new = _unallocated(map_loads(kept, body), tensor)
    for s in walk_statements(new):
        nodes = sum(1 for e in expressions(s) for _ in walk(e))
        if nodes > MOST_NODES:
            raise IllegalSchedule(
                f"inline: tensor is {tensor!r}; a statement would grow to {nodes} nodes, allowed are {MOST_NODES}",
                field="tensor",
            )
    workspace = tuple(b for b in kernel.workspace if b.name != tensor)
    return replace(kernel, body=new, workspace=workspace)


def _single_store(statements: tuple[Stmt, ...], tensor: str) -> Store:
    """Return the store of a plain nest, which has a loop for each dimension and nothing else."""
    if len(statements) == 1:
        below = statements[0]
        loops = []
        while isinstance(below, For):
            loops.append(below.var)
            below = below.body
        reads_itself = isinstance(below, Store) and any(
            isinstance(e, Load) and e.buffer.name == tensor for e in walk(below.value)
        )
        if isinstance(below, Store) and not reads_itself:
            names = [i.name for i in below.indices if isinstance(i, Var)]
            if len(names) == len(below.indices) and sorted(names) == sorted(loops):
                return below
    raise IllegalSchedule(
        f"inline: tensor is {tensor!r}; only a tensor computed by one plain nest, a loop for each dimension around "
        "one store, can be inlined: no reduction, and before its nest is changed",
        field="tensor",
    )


def _unallocated(stmt: Stmt, tensor: str) -> Stmt:
    """``stmt`` without the allocation of ``tensor``."""

    def at(s: Stmt) -> Stmt:
        return s.body if isinstance(s, Allocate) and s.buffer.name == tensor else s

    return map_statements(stmt, at)
