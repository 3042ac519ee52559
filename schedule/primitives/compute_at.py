"""compute_at: a tensor is computed inside a loop of its consumer, as much of it as that loop needs."""

from collections.abc import Mapping
from dataclasses import replace

from ...core.errors import IllegalSchedule
from ...ir.buffer import Buffer, MemoryScope
from ...ir.expr import Var, index
from ...ir.rewrite import loads_of, stores_of, substitute
from ...ir.stmt import Allocate, For, Kernel, LoopKind, Stmt, seq, substatements, walk_statements, with_statements
from ..loop_nest.region import Span, inside_dimension, rebased, region
from ..loop_nest.tree import (
    LoopPath,
    Producer,
    accesses,
    find_loop,
    find_producer,
    guarded_by,
    innermost_guarded,
    loads_of_tensor,
    ranges_of,
    require_local,
    require_no_output,
)


def compute_at(kernel: Kernel, tensor: str, loop: str, *, scope: MemoryScope = MemoryScope.LOCAL) -> Kernel:
    """Moves all nests that compute ``tensor`` to the start of the body of ``loop``, which must hold every read of it.
    What they compute shrinks to the region that one iteration of ``loop`` reads, and so does the buffer.

    ::

        for i in 0..6:                    for j in 0..8:                     # compute_at(k, "P", "j")
          P[i] = A[i] * 2                   local P[2]
        for j in 0..8:                      for i in 0..2:
          for r in 0..2:           ->         if j - 1 + i >= 0:             # only where P has an element
            if j + r - 1 ...:                   if j - 1 + i < 6:
              B[j] = B[j] +                       P[i] = A[j - 1 + i] * 2
                     P[j + r - 1]           for r in 0..2:
                                              if j + r - 1 ...:
                                                B[j] = B[j] + P[r]

    The loops of the tensor keep their names, and all dimensions stay, also those of one element. A reduction moves
    with both its nests. Conditions around the whole body of ``loop`` guard the moved nests as well. The region is
    found by interval arithmetic with everything outside the loop fixed; a dimension whose accesses do not move
    together is computed whole. Move consumers before what they consume, since the region is that of the reader where
    it stands at that time.

    Raises IllegalSchedule for a loop or tensor that does not exist; for an output; for a tensor whose loops over its
    own dimensions were split, fused or marked (do so after moving; reduction loops are free); for a loop that does not
    hold all reads, holds the tensor's nest already, or is vectorised; and for a scope other than local and register.
    """
    path = find_loop(kernel, loop, primitive="compute_at")
    producer = find_producer(kernel, tensor, primitive="compute_at")
    require_no_output(kernel, tensor, primitive="compute_at")
    require_local(scope, primitive="compute_at")
    _require_reachable(kernel, producer, path)
    dimensions = _dimension_loops(producer)
    guards, inner = innermost_guarded(path.loop)
    around = ranges_of(path.loops)
    reads = [access for access in accesses(inner) if access.buffer.name == tensor]
    spans = region(reads, producer.buffer.shape, around)
    local = Buffer(tensor, tuple(span.extent for span in spans), producer.buffer.dtype, scope)
    moved = [_shrunk(s, dimensions, spans, producer.buffer.shape) for s in producer.statements]
    computed = [rebased(s, tensor, local, spans, around) for s in moved]
    body: Stmt = Allocate(local, seq(*computed, rebased(inner, tensor, local, spans, around)))
    body = guarded_by([guard.condition for guard in guards], body)
    new = _edited(kernel.body, producer, path.loop, replace(path.loop, body=body))
    assert new is not None  # it holds the loop
    workspace = tuple(b for b in kernel.workspace if b.name != tensor)
    return replace(kernel, body=new, workspace=workspace)


def _require_reachable(kernel: Kernel, producer: Producer, path: LoopPath) -> None:
    """Raises IllegalSchedule unless the nests of ``producer`` can be moved into the loop and all that read it are
    inside."""
    tensor, loop = producer.buffer.name, path.loop.var

    def illegal(problem: str, field: str = "loop") -> IllegalSchedule:
        return IllegalSchedule(f"compute_at: tensor is {tensor!r}, loop is {loop!r}; {problem}", field=field)

    if producer.holds(path.loop):
        raise illegal("the loop belongs to the tensor's own nest; allowed: a loop around what reads it")
    if any(s is path.loop for s in producer.around):
        raise illegal("the tensor is computed inside that loop already")
    if any(s.kind is LoopKind.VECTORIZED for s in path.loops):
        raise illegal("a vectorised loop holds no computation of its own; allowed: a loop outside it")
    reads = loads_of_tensor(kernel, producer)
    if not reads:
        raise illegal("nothing reads the tensor", "tensor")
    for statements in reads:
        if not any(s is path.loop for s in statements):
            loops = [s.var for s in statements if isinstance(s, For)]
            raise illegal(f"the tensor is also read outside that loop, in the loops {', '.join(loops) or 'none'}")
    for s in producer.around:
        own = isinstance(s, Allocate) and s.buffer.name == tensor
        if isinstance(s, (For, Allocate)) and not own and not any(s is other for other in path.enclosing):
            what = s.var if isinstance(s, For) else s.buffer.name
            raise illegal(f"the tensor's nest uses {what!r}, which that loop is not inside of")


def _dimension_loops(producer: Producer) -> dict[str, int]:
    """Loop -> the dimension that it runs over, in all nests of the tensor."""
    tensor = producer.buffer.name
    dimensions: dict[str, int] = {}
    for root in producer.statements:
        loops = {s.var: s for s in walk_statements(root) if isinstance(s, For)}
        for loop in loops.values():
            if loop.kind is LoopKind.PARALLEL:
                raise IllegalSchedule(
                    f"compute_at: tensor is {tensor!r}, whose loop {loop.var!r} is parallel; parallelise after moving",
                    field="tensor",
                )
        for s in stores_of(root):
            if s.buffer.name != tensor and any(load.buffer.name == tensor for load in loads_of(s.value)):
                raise IllegalSchedule(
                    f"compute_at: tensor is {tensor!r}, which its nest copies to {s.buffer.name!r}; use "
                    "cache_write after moving",
                    field="tensor",
                )
        for access in accesses(root):
            if access.buffer.name != tensor:
                continue
            wide = [d for d, i in enumerate(access.indices) if i != index(0) or access.buffer.shape[d] > 1]
            names = {d: i.name if isinstance(i := access.indices[d], Var) else "" for d in wide}
            plain = all(name in loops and loops[name].kind is LoopKind.SERIAL for name in names.values())
            if not plain or any(dimensions.setdefault(name, d) != d for d, name in names.items()):
                raise IllegalSchedule(
                    f"compute_at: tensor is {tensor!r}; each of its dimensions must be the variable of a serial loop "
                    "of its own: split, fuse and mark them after moving",
                    field="tensor",
                )
    return dimensions


def _shrunk(stmt: Stmt, dimensions: Mapping[str, int], spans: tuple[Span, ...], shape: tuple[int, ...]) -> Stmt:
    """Return a nest of the tensor whose loops over dimensions run over ``spans`` only."""
    if isinstance(stmt, For) and stmt.var in dimensions:
        dimension = dimensions[stmt.var]
        span = spans[dimension]
        at = span.base.to_expr() + Var(stmt.var) if span.base.terms or span.base.constant else Var(stmt.var)
        body = _shrunk(substitute(stmt.body, {stmt.var: at}), dimensions, spans, shape)
        body = guarded_by(inside_dimension(span, at, shape[dimension]), body)
        return For(stmt.var, span.extent, stmt.kind, body)
    below = [_shrunk(s, dimensions, spans, shape) for s in substatements(stmt)]
    return with_statements(stmt, tuple(below))


def _edited(stmt: Stmt, producer: Producer, loop: For, new: Stmt) -> Stmt | None:
    """``stmt`` with ``loop`` replaced by ``new``, and without the producer and its old allocation."""
    if stmt is loop:
        return new
    if any(stmt is own for own in producer.statements):
        return None
    if isinstance(stmt, Allocate) and stmt.buffer.name == producer.buffer.name:
        return _edited(stmt.body, producer, loop, new)
    old = substatements(stmt)
    below = tuple(kept for s in old if (kept := _edited(s, producer, loop, new)) is not None)
    return with_statements(stmt, below) if below or not old else None
