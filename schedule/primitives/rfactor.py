"""rfactor: partial results of a reduction, one for each iteration of a loop, combined at the end."""

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

Item = TypeVar("Item")


def rfactor(kernel: Kernel, tensor: str, loop: str, *, name: str | None = None, first: bool = False) -> Kernel:
    """Gives every iteration of the reduction loop ``loop`` an accumulator of its own; they are combined at the end.

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

    ``loop`` is then free of dependences and can be vectorised or run in parallel. The new tensor ``<tensor>_rf`` (or
    ``name``) has the dimensions of the old one and, last (``first``: before them), one of the loop's extent; it is a
    tensor like any other, to be moved by ``compute_at``. Suffixes are numbered when names are taken.

    Raises IllegalSchedule for a tensor or loop that is not there; a loop that is not serial, not of the nest that
    accumulates ``tensor``, or that runs over one of its dimensions; a local tensor whose start values are not set by
    one nest that reaches each element once; and when ``name`` is taken.
    """
    producer = find_producer(kernel, tensor, primitive="rfactor")
    place = find_loop(kernel, loop, primitive="rfactor")
    require_serial(place.loop, primitive="rfactor")
    update = next((s for s in producer.statements if Producer(producer.buffer, (s,), ()).holds(place.loop)), None)
    store = _update_store(place.loop, tensor)
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
    shape = _with_lane(old.shape, place.loop.extent, first)
    partial = Buffer(name or fresh_name(f"{tensor}_rf", taken), shape, old.dtype, old.scope)
    taken.add(partial.name)

    def fresh(base: str) -> str:
        taken.add(new := fresh_name(base, taken))
        return new

    at = _with_lane(store.indices, Var(loop), first)
    accumulate = Store(partial, at, Binary(op, Load(partial, at), addend))
    names = dimension_names(producer)
    axes = [Axis(fresh(f"{n}_rf"), extent) for n, extent in zip(names, old.shape, strict=True)]
    lane = Axis(fresh(f"{loop}_rf"), place.loop.extent)
    start = Store(partial, _with_lane(_variables(axes), Var(lane.name), first), identity(op, old.dtype))
    combine = _combine_nest(producer, op, names, partial, Axis(fresh(f"{loop}_combine"), lane.extent), taken, first)
    changed = replaced(update, place.loop, replaced(place.loop, store, accumulate))
    nests = seq(nested(_with_lane(tuple(axes), lane, first), start), changed, combine)
    if old.scope is not MemoryScope.GLOBAL:
        return replace(kernel, body=replaced(kernel.body, update, Allocate(partial, nests)))
    return replace(kernel, body=replaced(kernel.body, update, nests), workspace=(*kernel.workspace, partial))


def _with_lane(values: tuple[Item, ...], value: Item, first: bool) -> tuple[Item, ...]:
    return (value, *values) if first else (*values, value)


def _variables(axes: Sequence[Axis]) -> tuple[Expr, ...]:
    return tuple(Var(axis.name) for axis in axes)


def _update_store(loop: For, tensor: str) -> Store | None:
    """The only store to ``tensor`` inside ``loop``."""
    stores = [s for s in stores_of(loop) if s.buffer.name == tensor]
    return stores[0] if len(stores) == 1 else None


def _combine_nest(
    producer: Producer, op: BinaryOp, names: Sequence[str], partial: Buffer, lane: Axis, taken: set[str], first: bool
) -> Stmt:
    """The nest that combines the partial results. All elements of a global tensor have a start value; of a local one
    some may have none (they lie outside the whole tensor), so there it is a copy of the nest that sets them."""
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
    """Whether no two iterations of the loops of ``stmt`` store to the same element."""
    loops = list(loops_in(stmt))
    return all(tensor not in shared_buffers(loop, loops[:position]) for position, loop in enumerate(loops))


def _copied_nest(stmt: Stmt, renamed: dict[str, str], kept: str, taken: set[str]) -> Stmt:
    """``stmt`` with all loops but ``kept`` serial and under new names: those in ``renamed``, else with a suffix."""
    match stmt:
        case For(var=var, extent=extent, body=body) if var != kept:
            new = renamed.get(var) or fresh_name(f"{var}_combine", taken)
            taken.add(new)
            inner = _copied_nest(body, renamed, kept, taken)
            return For(new, extent, LoopKind.SERIAL, substitute(inner, {var: Var(new)}))
        case If(condition=condition, then=then):
            return If(condition, _copied_nest(then, renamed, kept, taken))
    return stmt
