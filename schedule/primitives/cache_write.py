"""cache_write: a loop accumulates its region of a tensor in a local buffer, and writes that back at the end."""

from dataclasses import dataclass, replace
from math import prod

from ...core.errors import IllegalSchedule
from ...ir.buffer import Buffer, MemoryScope
from ...ir.expr import Compare, CompareOp, Const, Expr, Load, Var
from ...ir.linear_form import linear_form
from ...ir.rewrite import free_variables, fresh_name, stores_of, substitute
from ...ir.simplify import simplify
from ...ir.stmt import Allocate, For, Kernel, LoopKind, Stmt, Store, seq, walk_statements
from ..loop_nest.dependence import accumulation, shared_buffers
from ..loop_nest.region import rebased, region
from ..loop_nest.tree import (
    Access,
    LoopPath,
    Producer,
    accesses,
    find_loop,
    find_producer,
    guarded_by,
    guarded_nest,
    innermost_guarded,
    names_in,
    ranges_of,
    replaced,
    require_local,
    require_no_lanes,
    without,
)


def cache_write(kernel: Kernel, tensor: str, loop: str, *, scope: MemoryScope = MemoryScope.REGISTER) -> Kernel:
    """Inside ``loop``, writes to a local buffer instead of ``tensor``, and copies that to the tensor at the end of the
    body.

    Where the whole reduction of an element happens inside one iteration, its start value is set there too, and the
    nest that did it before is removed. Else the buffer starts from what the tensor holds.

    ::

        for i_init:                           for i:                              # cache_write(k, "S", "i")
          S[i_init] = 0                         register S_i[1]
        for i:                                  S_i[0] = 0
          for k:                      ->        for k:
            S[i] = S[i] + A[i, k]                 S_i[0] = S_i[0] + A[i, k]
                                                S[i] = S_i[0]

    The buffer is called ``<tensor>_<loop>``. The copies of the loops over the tensor's dimensions get the suffixes
    ``_in`` and ``_out``; a number follows a name that is taken.

    Raises IllegalSchedule for a tensor or loop that does not exist; for a loop that does not hold the only store to the
    tensor, or is vectorised; for a tensor that others read in the loop; for a condition inside the loop that mixes the
    tensor's dimensions with other loops; and for a scope other than local and register.
    """
    path = find_loop(kernel, loop, primitive="cache_write")
    producer = find_producer(kernel, tensor, primitive="cache_write")
    require_local(scope, primitive="cache_write")
    require_no_lanes(path, primitive="cache_write")
    guards, inner = innermost_guarded(path.loop)
    site = _store_site(path, inner, tensor)
    old, around = producer.buffer, ranges_of(path.loops)
    spans = region([site.access], old.shape, around)
    taken = names_in(kernel)
    local = Buffer(fresh_name(f"{tensor}_{loop}", taken), tuple(s.extent for s in spans), old.dtype, scope)
    taken.add(local.name)
    known = {**around, **ranges_of(site.access.loops)}
    here = site.store.indices
    there = tuple((linear_form(simplify(i, known)) - span.base).to_expr() for i, span in zip(here, spans, strict=True))
    init = _movable_init(producer, path, site) if site.accumulates else None
    start: tuple[Stmt, ...] = ()
    if init is not None:
        start = (site.nest(Store(local, there, init), "_in", taken),)
    elif site.accumulates:
        start = (site.nest(Store(local, there, Load(old, here)), "_in", taken),)
    end = site.nest(Store(old, here, Load(local, there)), "_out", taken)
    body: Stmt = Allocate(local, seq(*start, rebased(inner, tensor, local, spans, around), end))
    body = guarded_by([guard.condition for guard in guards], body)
    new = replaced(kernel.body, path.loop, replace(path.loop, body=body))
    if init is not None:
        kept = without(new, lambda s: s is producer.statements[0])
        assert kept is not None  # the loop is still there
        new = kept
    return replace(kernel, body=new)


@dataclass(frozen=True, slots=True)
class _StoreSite:
    """The only store to the tensor inside the loop. ``loops``: the loops around it that run over its dimensions.
    ``conditions``: the conditions that say which elements it reaches."""

    access: Access
    store: Store
    loops: tuple[For, ...]
    conditions: tuple[Expr, ...]

    @property
    def accumulates(self) -> bool:
        return accumulation(self.store) is not None

    def nest(self, store: Store, suffix: str, taken: set[str]) -> Stmt:
        """``store`` for all elements that are reached, in copies of the loops with ``suffix`` behind their names."""
        values: dict[str, Expr] = {}
        chain: list[For] = []
        for loop in self.loops:
            name = fresh_name(loop.var + suffix, taken)
            taken.add(name)
            values[loop.var] = Var(name)
            chain.append(For(name, loop.extent, LoopKind.SERIAL, store))
        conditions = [substitute(condition, values) for condition in self.conditions]
        return guarded_nest(chain, conditions, substitute(store, values))


def _store_site(path: LoopPath, inner: Stmt, tensor: str) -> _StoreSite:
    """Finds the store, and the loops and conditions around it that use the tensor's dimensions."""

    def illegal(problem: str, field: str = "loop") -> IllegalSchedule:
        return IllegalSchedule(f"cache_write: tensor is {tensor!r}, loop is {path.loop.var!r}; {problem}", field=field)

    found = [access for access in accesses(inner) if access.buffer.name == tensor]
    stores = [access for access in found if access.store is not None]
    if len(stores) != 1 or stores[0].store is None:
        raise illegal(f"allowed: a loop that holds the only store to the tensor; this one holds {len(stores)}")
    access, store = stores[0], stores[0].store
    if len(found) != (2 if accumulation(store) else 1):
        raise illegal("the tensor is read inside the loop by more than its own accumulation", "tensor")
    indexing = frozenset[str]().union(*map(free_variables, store.indices))
    own = {loop.var for loop in access.loops if loop.var in indexing}
    others = {loop.var for loop in access.loops} - own
    for condition in access.conditions:
        names = free_variables(condition)
        if names & others and (names & own or not accumulation(store)):
            raise illegal("a condition inside it mixes dimensions of the tensor with others; split those apart")
    conditions = tuple(c for c in access.conditions if not free_variables(c) & others)
    return _StoreSite(access, store, tuple(loop for loop in access.loops if loop.var in own), conditions)


def _movable_init(producer: Producer, path: LoopPath, site: _StoreSite) -> Const | None:
    """Return the start value, where it can be set inside the loop instead of in the nest before. The loop, with those
    around it in the accumulating nest, must reach every element in one iteration only."""
    if len(producer.statements) != 2:
        return None
    stores = stores_of(producer.statements[0])
    value = stores[0].value if len(stores) == 1 else None
    root = producer.statements[1]
    own = [s for s in stores_of(root) if s.buffer.name == producer.buffer.name]
    if not isinstance(value, Const) or not any(s is path.loop for s in walk_statements(root)) or len(own) != 1:
        return None
    for position, loop in enumerate(path.loops):
        if producer.holds(loop) and producer.buffer.name in shared_buffers(loop, path.loops[:position]):
            return None
    access = next(a for a in accesses(root) if a.store is site.store)
    return value if _reaches_all(access, producer.buffer) else None


def _reaches_all(access: Access, tensor: Buffer) -> bool:
    """Return whether a store reaches all elements, given that no two iterations of the loops over its dimensions reach
    the same one. There must be enough iterations, which a peeled nest has not, and no condition may cut off more than
    what lies beyond a dimension."""
    extents = {loop.var: loop.extent for loop in access.loops}
    indexing = [free_variables(i) & extents.keys() for i in access.indices]
    every = frozenset[str]().union(*indexing)
    conditions = [c for c in access.conditions if free_variables(c) & every]
    if sum(map(len, indexing)) > len(every):  # one loop runs over several dimensions
        return not conditions and prod(extents[name] for name in every) == tensor.elements
    enough = (prod(extents[n] for n in names) >= d for names, d in zip(indexing, tensor.shape, strict=True))
    return all(enough) and all(_cuts_nothing(c, access, tensor) for c in conditions)


def _cuts_nothing(condition: Expr, access: Access, tensor: Buffer) -> bool:
    """Return whether ``condition`` says no more than that an index lies in its dimension."""
    if not isinstance(condition, Compare) or condition.op is not CompareOp.LT or not isinstance(condition.b, Const):
        return False
    left = linear_form(condition.a)
    pairs = zip(access.indices, tensor.shape, strict=True)
    return any(linear_form(i) == left and int(condition.b.value) >= extent for i, extent in pairs)
