"""rfactor: each iteration of a reduction loop gets a partial result of its own, and all are combined at the end."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from ...core.errors import IllegalSchedule
from ...ir.buffer import Buffer, MemoryScope
from ...ir.expr import Binary, BinaryOp, Const, Expr, Load, Var
from ...ir.rewrite import free_variables, fresh_name, stores_of, substitute
from ...ir.stmt import Allocate, For, If, Kernel, LoopKind, Stmt, Store, seq
from ...te.workload import Axis
from ..loop_nest.dependence import accumulation, shared_buffers
from ..loop_nest.nest import identity, nested
from ..loop_nest.tree import (
    Producer,
    dimension_names,
    find_loop,
    find_producer,
    loops_in,
    names_in,
    replaced,
    require_serial,
)

T = TypeVar("T")


def rfactor(kernel: Kernel, tensor: str, loop: str, *, name: str | None = None, first: bool = False) -> Kernel:
    """Gives every iteration of the reduction loop ``loop`` an accumulator of its own, and combines them at the end.

    ::

        for i_init:                           for i_init:                            # rfactor(k, "S", "ji")
          S[i_init] = 0                         S[i_init] = 0
        for i:                                for i_rf, ji_rf in 0..8:
          for jo:                               S_rf[i_rf, ji_rf] = 0
            for ji in 0..8:            ->     for i:
              S[i] = S[i] + A[i, jo*8 + ji]     for jo:
                                                  for ji in 0..8:
                                                    S_rf[i, ji] = S_rf[i, ji] + A[i, jo*8 + ji]
                                              for i_combine:
                                                for ji_combine in 0..8:
                                                  S[i_combine] = S[i_combine] + S_rf[i_combine, ji_combine]

    ``loop`` is then free of dependences and can be vectorised or run in parallel. The new tensor is called
    ``<tensor>_rf`` or ``name``. It has the dimensions of the old one and one of the loop's extent, as the last or
    (``first``) as the first. Like any other tensor it can be moved by ``compute_at``. A number follows a name that is
    taken.

    Raises IllegalSchedule for a tensor or loop that does not exist; for a loop that is not serial, is not of the nest
    that accumulates ``tensor``, or runs over one of its dimensions; for a local tensor whose start values are not set
    by one nest that reaches each element once; and when ``name`` is taken.
    """
    producer = find_producer(kernel, tensor, primitive="rfactor")
    path = find_loop(kernel, loop, primitive="rfactor")
    require_serial(path.loop, primitive="rfactor")
    update = next((s for s in producer.statements if Producer(producer.buffer, (s,), ()).holds(path.loop)), None)
    store = _update_store(path.loop, tensor)
    found = None if store is None else accumulation(store)
    if update is None or store is None or found is None or any(loop in free_variables(i) for i in store.indices):
        raise IllegalSchedule(
            f"rfactor: tensor is {tensor!r}, loop is {loop!r}; allowed: a loop of the nest that accumulates the "
            "tensor, around its only store and not over one of its dimensions",
            field="loop",
        )
    op, addend = found
    taken = names_in(kernel)
    if name is not None and name in taken:
        raise IllegalSchedule(f"rfactor: name is {name!r}, which is taken", field="name")
    old = producer.buffer
    shape = _with_lane(old.shape, path.loop.extent, first)
    partial = Buffer(name or fresh_name(f"{tensor}_rf", taken), shape, old.dtype, old.scope)
    taken.add(partial.name)

    def fresh(base: str) -> str:
        taken.add(new := fresh_name(base, taken))
        return new

    at = _with_lane(store.indices, Var(loop), first)
    accumulate = Store(partial, at, Binary(op, Load(partial, at), addend))
    names = dimension_names(producer)
    axes = [Axis(fresh(f"{n}_rf"), extent) for n, extent in zip(names, old.shape, strict=True)]
    lane = Axis(fresh(f"{loop}_rf"), path.loop.extent)
    start = Store(partial, _with_lane(_variables(axes), Var(lane.name), first), identity(op, old.dtype))
    combine = _combine_nest(producer, op, names, partial, Axis(fresh(f"{loop}_combine"), lane.extent), taken, first)
    changed = replaced(update, path.loop, replaced(path.loop, store, accumulate))
    nests = seq(nested(_with_lane(tuple(axes), lane, first), start), changed, combine)
    if old.scope is not MemoryScope.GLOBAL:
        return replace(kernel, body=replaced(kernel.body, update, Allocate(partial, nests)))
    return replace(kernel, body=replaced(kernel.body, update, nests), workspace=(*kernel.workspace, partial))


def _with_lane(values: tuple[T, ...], value: T, first: bool) -> tuple[T, ...]:
    return (value, *values) if first else (*values, value)


def _variables(axes: Sequence[Axis]) -> tuple[Expr, ...]:
    return tuple(Var(axis.name) for axis in axes)


def _update_store(loop: For, tensor: str) -> Store | None:
    """Return the only store to ``tensor`` inside ``loop``."""
    stores = [s for s in stores_of(loop) if s.buffer.name == tensor]
    return stores[0] if len(stores) == 1 else None


def _combine_nest(
    producer: Producer, op: BinaryOp, names: Sequence[str], partial: Buffer, lane: Axis, taken: set[str], first: bool
) -> Stmt:
    """Return the nest that combines the partial results.

    All elements of a global tensor have a start value. Some of a local one may have none, because they lie outside of
    the whole tensor: there the nest is a copy of the one that sets the start values.
    """
    tensor = producer.buffer

    def combined(indices: tuple[Expr, ...]) -> Stmt:
        partly = Load(partial, _with_lane(indices, Var(lane.name), first))
        return nested((lane,), Store(tensor, indices, Binary(op, Load(tensor, indices), partly)))

    if tensor.scope is MemoryScope.GLOBAL:
        axes = [Axis(fresh_name(f"{n}_combine", taken), extent) for n, extent in zip(names, tensor.shape, strict=True)]
        taken.update(axis.name for axis in axes)
        return nested(axes, combined(_variables(axes)))
    start = producer.statements[0]
    stores = stores_of(start)
    started = [isinstance(store.value, Const) for s in producer.statements for store in stores_of(s)]
    if not started[0] or len(stores) != 1 or sum(started) != 1 or not _reaches_once(start, tensor.name):
        raise IllegalSchedule(
            f"rfactor: tensor is {tensor.name!r}, whose elements are not all started, each once, by one nest before; "
            "use rfactor before compute_at and cache_write",
            field="tensor",
        )
    renamed: dict[str, str] = {}
    for index, dimension in zip(stores[0].indices, names, strict=True):
        if isinstance(index, Var):
            renamed[index.name] = fresh_name(f"{dimension}_combine", taken)
            taken.add(renamed[index.name])
    return _copied_nest(replaced(start, stores[0], combined(stores[0].indices)), renamed, lane.name, taken)


def _reaches_once(stmt: Stmt, tensor: str) -> bool:
    """Return whether no two iterations of the loops of ``stmt`` store to the same element."""
    loops = list(loops_in(stmt))
    return all(tensor not in shared_buffers(loop, loops[:position]) for position, loop in enumerate(loops))


def _copied_nest(stmt: Stmt, renamed: dict[str, str], unchanged: str, taken: set[str]) -> Stmt:
    """``stmt`` with all loops but ``unchanged`` serial and under new names: those in ``renamed``, else with a
    suffix."""
    match stmt:
        case For(var=var, extent=extent, body=body) if var != unchanged:
            new = renamed.get(var) or fresh_name(f"{var}_combine", taken)
            taken.add(new)
            inner = _copied_nest(body, renamed, unchanged, taken)
            return For(new, extent, LoopKind.SERIAL, substitute(inner, {var: Var(new)}))
        case If(condition=condition, then=then):
            return If(condition, _copied_nest(then, renamed, unchanged, taken))
    return stmt
