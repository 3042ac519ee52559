"""Roles of warps taken apart: what copies and what multiplies in one loop gets a loop for each.

A sketch writes one loop in which some warps copy and others multiply, each under a condition on the warp's number. The
assembler keeps products under way only where it sees that nothing else happens to their registers, and gives
warpgroups numbers of registers of their own only where each runs code of its own. So a run of statements in which no
barrier of the block stands becomes a branch for each set of warpgroups that do the same, simplified by what is known of
their warps. Every thread does exactly what it did before, in the same order.

Threads that have no part in a branch's loops leave them out: a condition that the whole loop stands under is asked
once, before it. Warps that went round without work would cost the others turns, and power, of which large products have
none to spare (on an H200, 3 to 4 % of the time of a product of 4096^3).
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ....ir.bounds import Interval, loop_range
from ....ir.buffer import MemoryScope
from ....ir.expr import WARP_LANES, Expr, Logic, LogicOp, Var, index, logical_and
from ....ir.gpu.barrier import WARPGROUP_THREADS, Barrier, SyncScope
from ....ir.gpu.tma import TmaLoad
from ....ir.gpu.wgmma import WarpgroupMma
from ....ir.rewrite import free_variables, is_pure
from ....ir.simplify import prove, simplify_statement
from ....ir.stmt import Allocate, AxisBinding, For, HardwareAxis, If, Launch, Seq, Stmt, seq, walk_statements

_GROUP_WARPS = WARPGROUP_THREADS // WARP_LANES


def split_roles(launch: Launch) -> Stmt:
    """The body of ``launch`` with a branch for each role; as it is where warps are not numbered, nothing is multiplied
    by warpgroups, or all do the same."""
    warp = next((b for b in launch.axes if b.axis is HardwareAxis.WARP), None)
    if warp is None or not any(isinstance(s, WarpgroupMma) for s in walk_statements(launch.body)):
        return launch.body
    return _Splitter(launch, warp).split(launch.body)


@dataclass(frozen=True)
class _Splitter:
    launch: Launch
    warp: AxisBinding

    def split(self, stmt: Stmt) -> Stmt:
        if _together(stmt):
            return self._branches(stmt)
        match stmt:
            case Allocate(body=body) | For(body=body):
                return replace(stmt, body=self.split(body))
            case Seq(statements=statements):
                done: list[Stmt] = []
                run: list[Stmt] = []
                for below in statements:
                    if _together(below):
                        run.append(below)
                        continue
                    done += [self._branches(seq(*run)), self.split(below)]
                    run = []
                return seq(*done, self._branches(seq(*run)))
        return stmt

    def _branches(self, stmt: Stmt) -> Stmt:
        """A branch for each role in ``stmt``, which all threads of the block may run on their own."""
        roles = self._roles(stmt)
        if len(roles) == 1:
            return stmt
        ranges = {b.var: loop_range(b.extent) for b in self.launch.axes}
        branches = []
        for role in roles:
            body = _asked_once(simplify_statement(stmt, {**ranges, self.warp.var: role}))
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
        """The warps that do the same, as whole warpgroups: told apart by the conditions around what multiplies and what
        copies in a loop."""
        tests = {t for s in walk_statements(stmt) if isinstance(s, For) for t in self._tests(s.body, ())}
        roles: list[tuple[Interval, tuple[bool | None, ...]]] = []
        for first in range(0, self.warp.extent, _GROUP_WARPS):
            group = Interval(first, min(first + _GROUP_WARPS, self.warp.extent) - 1)
            found = tuple(prove(t, {self.warp.var: group}) for t in tests)
            if roles and roles[-1][1] == found:
                group = roles.pop()[0].union(group)
            roles.append((group, found))
        return [group for group, _ in roles]

    def _tests(self, stmt: Stmt, around: tuple[Expr, ...]) -> Iterator[Expr]:
        """The conditions on the warp alone that products and copies below ``stmt`` stand under."""
        match stmt:
            case If(condition=condition, then=then):
                yield from self._tests(then, (*around, *_terms(condition)))
            case Seq(statements=statements):
                for below in statements:
                    yield from self._tests(below, around)
            case For(body=body) | Allocate(body=body):
                yield from self._tests(body, around)
            case WarpgroupMma() | TmaLoad():
                yield from (t for t in around if free_variables(t) == {self.warp.var})


def _asked_once(stmt: Stmt) -> Stmt:
    """``stmt`` with what all of a loop stands under, whatever the step, asked before the loop."""
    match stmt:
        case Seq(statements=statements):
            return seq(*(_asked_once(s) for s in statements))
        case Allocate(body=body):
            return replace(stmt, body=_asked_once(body))
        case For():
            terms = _conditions(stmt)
            return If(logical_and(*terms), _without(stmt, terms)) if terms else stmt
    return stmt


def _conditions(stmt: Stmt) -> tuple[Expr, ...]:
    """What all of ``stmt`` stands under."""
    match stmt:
        case If(condition=condition, then=then):
            inner = _conditions(then)
            return tuple(dict.fromkeys((*(t for t in _terms(condition) if is_pure(t)), *inner)))
        case Seq(statements=(first, *others)):
            return tuple(t for t in _conditions(first) if all(t in _conditions(s) for s in others))
        case For(var=var, body=body):
            return tuple(t for t in _conditions(body) if var not in free_variables(t))
    return ()


def _without(stmt: Stmt, terms: tuple[Expr, ...]) -> Stmt:
    """``stmt`` where ``terms`` hold."""
    match stmt:
        case If(condition=condition, then=then):
            rest = [t for t in _terms(condition) if t not in terms]
            inner = _without(then, terms)
            return If(logical_and(*rest), inner) if rest else inner
        case Seq(statements=statements):
            return seq(*(_without(s, terms) for s in statements))
        case For(body=body):
            return replace(stmt, body=_without(body, terms))
    return stmt


def _terms(condition: Expr) -> tuple[Expr, ...]:
    """The conditions that must all hold."""
    if isinstance(condition, Logic) and condition.op is LogicOp.AND:
        return _terms(condition.a) + _terms(condition.b)
    return (condition,)


def _together(stmt: Stmt) -> bool:
    """Whether nothing in ``stmt`` needs all threads of the block in one place."""
    return not any(
        (isinstance(s, Barrier) and s.scope in (SyncScope.BLOCK, SyncScope.CLUSTER))
        or (isinstance(s, Allocate) and s.buffer.scope is MemoryScope.SHARED)
        for s in walk_statements(stmt)
    )
