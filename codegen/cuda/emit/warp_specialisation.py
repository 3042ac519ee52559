"""Specialises warps: a loop in which some warps copy and others multiply becomes one loop for each role.

    for step:                                     if warp < 8:                     (consumer warpgroups)
        if warp == 8: wait, TMA load     ->           for step: wait, wgmma
        if warp < 8: wait, wgmma                  if warp >= 8:                    (producer warpgroup)
                                                      if warp == 8: for step: wait, TMA load

A sketch writes the loop on the left. The assembler keeps ``wgmma`` in flight only where it sees that nothing else
happens to the accumulators, and ``setmaxnreg`` gives warpgroups register counts of their own only where each runs code
of its own. So statements between two barriers of the block become one branch for each role, a set of warpgroups that
do the same. Each branch is simplified by what is known of its warps. Every thread does what it did before, in the same
order.

A condition that a whole loop stands under is tested once, ahead of the loop, so that warps without work leave the loop
out. Warps that iterate without work would take issue slots from the others. They would also take power, of which large
products have none to spare: 3 to 4 % of the time of a product of 4096^3 on an H200.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ....ir.bounds import Interval, Ranges, loop_range
from ....ir.buffer import MemoryScope
from ....ir.expr import WARP_LANES, Expr, Var, index, logical_and
from ....ir.gpu.barrier import WARPGROUP_THREADS, Barrier, SyncScope
from ....ir.gpu.grid_barrier import GridBarrierArrive, GridBarrierWait
from ....ir.gpu.tcgen05 import BlockScaledMma, TensorMemoryAllocate, TensorMemoryDeallocate, TensorMemoryMma
from ....ir.gpu.tma import TmaLoad
from ....ir.gpu.wgmma import WarpgroupMma
from ....ir.provenance import rewrites
from ....ir.rewrite import free_variables, is_pure
from ....ir.simplify import prove, simplify_statement
from ....ir.stmt import (
    Allocate,
    AxisBinding,
    For,
    HardwareAxis,
    If,
    Launch,
    Seq,
    Stmt,
    seq,
    substatements,
    walk_statements,
    with_statements,
)
from ...passes.conditions import conjuncts

_WARPGROUP_WARPS = WARPGROUP_THREADS // WARP_LANES


def specialise_warps(launch: Launch, ranges: Ranges) -> Stmt:
    """Return the body of ``launch`` with a branch for each role. It stays as it is where the launch has no axis of
    warps or neither ``wgmma`` nor ``tcgen05.mma``, or where all warpgroups do the same. ``ranges`` are those of
    variables that it does not bind."""
    warp = next((b for b in launch.axes if b.axis is HardwareAxis.WARP), None)
    if warp is None or not any(
        isinstance(s, WarpgroupMma | TensorMemoryMma | BlockScaledMma) for s in walk_statements(launch.body)
    ):
        return launch.body
    return _WarpSpecialiser(launch, warp, ranges).split(launch.body)


@dataclass(frozen=True)
class _WarpSpecialiser:
    """``warp`` is the axis of the launch that counts warps; ``ranges`` are those of the variables around it."""

    launch: Launch
    warp: AxisBinding
    ranges: Ranges

    @rewrites
    def split(self, stmt: Stmt) -> Stmt:
        """Return ``stmt`` with branches in place of each sequence of statements that has no barrier of the block."""
        if _may_diverge(stmt):
            return self._branches(stmt)
        match stmt:
            case Allocate(body=body) | For(body=body):
                return replace(stmt, body=self.split(body))
            case Seq(statements=statements):
                done: list[Stmt] = []
                divergent: list[Stmt] = []
                for below in statements:
                    if _may_diverge(below):
                        divergent.append(below)
                        continue
                    done += [self._branches(seq(*divergent)), self.split(below)]
                    divergent = []
                return seq(*done, self._branches(seq(*divergent)))
        return stmt

    @rewrites
    def _branches(self, stmt: Stmt) -> Stmt:
        """Return a branch for each role in ``stmt``, which warps may run independently of each other."""
        roles = self._roles(stmt)
        if len(roles) == 1:
            return stmt
        ranges = {**self.ranges, **{b.var: loop_range(b.extent) for b in self.launch.axes}}
        branches = []
        for role in roles:
            body = _hoist_conditions(simplify_statement(stmt, {**ranges, self.warp.var: role}))
            if body != Seq(()):
                branches.append(If(self._is(role), body))
        return seq(*branches)

    def _is(self, role: Interval) -> Expr:
        warp, tests = Var(self.warp.var), []
        if role.low > 0:
            tests.append(warp >= index(role.low))
        if role.high < self.warp.extent - 1:
            tests.append(warp < index(role.high + 1))
        return logical_and(*tests)

    def _roles(self, stmt: Stmt) -> list[Interval]:
        """Return the ranges of warps that have one role, in whole warpgroups. Roles differ in the truth of the
        conditions that stand around ``wgmma``, ``tcgen05.mma`` and TMA loads in loops."""
        tests = {t for s in walk_statements(stmt) if isinstance(s, For) for t in self._tests(s.body, ())}
        roles: list[tuple[Interval, tuple[bool | None, ...]]] = []
        for first in range(0, self.warp.extent, _WARPGROUP_WARPS):
            group = Interval(first, min(first + _WARPGROUP_WARPS, self.warp.extent) - 1)
            found = tuple(prove(t, {self.warp.var: group}) for t in tests)
            if roles and roles[-1][1] == found:
                group = roles.pop()[0].union(group)
            roles.append((group, found))
        return [group for group, _ in roles]

    def _tests(self, stmt: Stmt, around: tuple[Expr, ...]) -> Iterator[Expr]:
        """Return the conditions on nothing but the warp's index that ``wgmma``, ``tcgen05.mma`` and TMA loads below
        ``stmt`` stand under."""
        match stmt:
            case If(condition=condition):
                around = (*around, *conjuncts(condition))
            case WarpgroupMma() | TensorMemoryMma() | BlockScaledMma() | TmaLoad():
                yield from (t for t in around if free_variables(t) == {self.warp.var})
        for below in substatements(stmt):
            yield from self._tests(below, around)


@rewrites
def _hoist_conditions(stmt: Stmt) -> Stmt:
    """Move loop-invariant conditions that a whole loop stands under ahead of it."""
    if isinstance(stmt, For):
        terms = _conditions(stmt)
        return If(logical_and(*terms), _without(stmt, terms)) if terms else stmt
    below = list[Stmt]()
    for s in () if isinstance(stmt, If) else substatements(stmt):
        below.append(_hoist_conditions(s))
    return stmt if isinstance(stmt, If) else with_statements(stmt, below)


def _conditions(stmt: Stmt) -> tuple[Expr, ...]:
    """Return the conditions that all of ``stmt`` stands under, and that nothing in it can change."""
    match stmt:
        case If(condition=condition, then=then):
            inner = _conditions(then)
            return tuple(dict.fromkeys((*(t for t in conjuncts(condition) if is_pure(t)), *inner)))
        case Seq(statements=(first, *others)):
            return tuple(t for t in _conditions(first) if all(t in _conditions(s) for s in others))
        case For(var=var, body=body):
            return tuple(t for t in _conditions(body) if var not in free_variables(t))
        case Allocate(body=body):
            return _conditions(body)
    return ()


@rewrites
def _without(stmt: Stmt, terms: tuple[Expr, ...]) -> Stmt:
    """Remove the conditions ``terms``, which hold, from ``stmt``."""
    if isinstance(stmt, If):
        rest = [t for t in conjuncts(stmt.condition) if t not in terms]
        inner = _without(stmt.then, terms)
        return If(logical_and(*rest), inner) if rest else inner
    below = list[Stmt]()
    for s in substatements(stmt):
        below.append(_without(s, terms))
    return with_statements(stmt, below)


def _may_diverge(stmt: Stmt) -> bool:
    """Return whether warps may run ``stmt`` independently: it has no barrier of the block or the cluster, and allocates
    no shared memory, and no tensor memory."""
    return not any(
        (isinstance(s, Barrier) and s.scope in (SyncScope.BLOCK, SyncScope.CLUSTER))
        or isinstance(s, TensorMemoryAllocate | TensorMemoryDeallocate | GridBarrierArrive | GridBarrierWait)
        or (isinstance(s, Allocate) and s.buffer.scope is MemoryScope.SHARED)
        for s in walk_statements(stmt)
    )
