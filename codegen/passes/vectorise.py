"""Vectorises VECTORIZED loops: the loop variable becomes a ramp of lanes.

    for j in vectorized(8):                 C[i, ramp(j0*8, 1, 8)] =
        C[i, j0*8 + j] = A[i, k] * B[..]        broadcast(A[i, k], 8) * B[k, ramp(j0*8, 1, 8)]

Conditions on the loop variable become masks of loads and stores. An update of one element by every iteration,
``T[i] = T[i] + f(j)``, becomes ``T[i] = T[i] + reduce_lanes(add, f(ramp))``. A loop that has no vector form becomes a
serial loop, which is correct but slow. That is one with a vectorised loop inside it, or whose lanes overwrite one
another. In a launch it becomes an unrolled loop, because registers of a thread have no indices that vary.
"""

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field, replace

from ...core.dtypes import INDEX
from ...ir.buffer import Buffer, MemoryScope
from ...ir.expr import (
    Binary,
    BinaryOp,
    Broadcast,
    Cast,
    Compare,
    Const,
    Expr,
    Load,
    Logic,
    LogicOp,
    Ramp,
    ReduceLanes,
    Select,
    Unary,
    UnaryOp,
    Var,
    const,
    index,
    rebuild,
    walk,
)
from ...ir.linear_form import LinearForm, linear_form
from ...ir.provenance import rewrites
from ...ir.rewrite import free_variables, loads_of, replace_buffers, stores_of
from ...ir.stmt import (
    Allocate,
    For,
    If,
    Kernel,
    Launch,
    LoopKind,
    Operation,
    Seq,
    Stmt,
    Store,
    expressions,
    seq,
    substatements,
    walk_statements,
    with_statements,
)
from ...schedule.loop_nest.nest import identity
from .conditions import conjuncts
from .copies import replace_names
from .index_bounds import extents_of, index_bounds

REDUCIBLE = (BinaryOp.ADD, BinaryOp.MUL, BinaryOp.MIN, BinaryOp.MAX)


class _NoVectorForm(Exception):
    """A loop has no vector form."""


def vectorise(kernel: Kernel) -> Kernel:
    """Turn every VECTORIZED loop into vector statements, and leave the rest of the kernel as it is."""
    inputs, extents = frozenset(b.name for b in kernel.inputs), extents_of(kernel.body)
    for dynamic in kernel.dynamic:
        inputs -= dynamic.parameters
        extents[dynamic.var] = dynamic.most + 1
    unmasked = _unmasked_buffers(kernel.body)
    body = _with_whole_vectors(kernel.body, unmasked, extents)
    return replace(kernel, body=_statement(body, _KernelFacts(inputs, extents, unmasked)))


@dataclass(frozen=True, slots=True)
class _KernelFacts:
    """It holds what is known of the whole kernel.

    inputs: Which buffers hold data in all their elements.
    extents: How many values each variable of a loop takes.
    unmasked: Which register buffers need no masks, since lanes that a guard disables may hold anything.
    without_form: What a loop without a vector form becomes.
    """

    inputs: frozenset[str]
    extents: Mapping[str, int]
    unmasked: frozenset[str]
    without_form: LoopKind = LoopKind.SERIAL


def _unmasked_buffers(body: Stmt) -> frozenset[str]:
    """Return the register buffers whose every access is guarded lane by lane, so that nobody reads disabled lanes."""
    registers = {
        s.buffer.name
        for s in walk_statements(body)
        if isinstance(s, Allocate) and s.buffer.scope is MemoryScope.REGISTER
    }
    used: set[str] = set()

    def visit(stmt: Stmt, lane: str | None, guarded: bool) -> None:
        if not guarded:
            if isinstance(stmt, Store):
                used.add(stmt.buffer.name)
            elif isinstance(stmt, Operation):
                used.update(b.name for b in stmt.buffers)
            used.update(e.buffer.name for root in expressions(stmt) for e in walk(root) if isinstance(e, Load))
        if isinstance(stmt, For) and stmt.kind is LoopKind.VECTORIZED:
            lane, guarded = stmt.var, False
        elif isinstance(stmt, If) and lane is not None:
            guarded = guarded or lane in free_variables(stmt.condition)
        for below in substatements(stmt):
            visit(below, lane, guarded)

    visit(body, None, False)
    return frozenset(registers - used)


def _with_whole_vectors(body: Stmt, unmasked: Set[str], extents: Mapping[str, int]) -> Stmt:
    """Make the last dimension of ``unmasked`` buffers as long as disabled lanes reach. ``acc[i, 8 lanes]`` of 6 columns
    then needs no masks, which would keep it out of registers."""
    buffers = {s.buffer.name: s.buffer for s in walk_statements(body) if isinstance(s, Allocate)}
    accesses: list[Load | Store] = [*loads_of(body), *stores_of(body)]
    wider, odd = dict[str, Buffer](), set[str]()
    for access in (a for a in accesses if a.buffer.name in unmasked):
        buffer = wider.get(access.buffer.name, buffers[access.buffer.name])
        same = len(access.indices) == len(buffer.shape) > 0 and access.buffer.shape[:-1] == buffer.shape[:-1]
        bounds = index_bounds(access.indices[-1], extents) if same else None
        if bounds is None:
            odd.add(buffer.name)
        elif bounds[1] >= buffer.shape[-1]:
            wider[buffer.name] = replace(buffer, shape=(*buffer.shape[:-1], bounds[1] + 1))
    found = {name: buffer for name, buffer in wider.items() if name not in odd}
    return replace_buffers(body, found) if found else body


@rewrites
def _statement(stmt: Stmt, facts: _KernelFacts) -> Stmt:
    match stmt:
        case For(var=var, extent=extent, kind=kind, body=body):
            inner = _statement(body, facts)
            if kind is not LoopKind.VECTORIZED:
                return For(var, extent, kind, inner)
            if extent == 1:
                return replace_names(inner, {var: index(0)}, {})
            try:
                return _LoopVectoriser(var, extent, facts).statement(inner, None)
            except _NoVectorForm:
                return For(var, extent, facts.without_form, inner)
        case Launch():
            facts = replace(facts, without_form=LoopKind.UNROLLED)
    below = list[Stmt]()
    for s in substatements(stmt):
        below.append(_statement(s, facts))
    return with_statements(stmt, below)


@dataclass(slots=True)
class _LoopVectoriser:
    """Vectorises one loop: widens what depends on its variable.

    privatised: Which buffers are allocated inside the loop, as they are with one copy for each lane.
    strict: Whether a load with the same index in every lane might not happen in the scalar program.
    certain: Loads that the conditions of the selects around an expression have done, and the masks they had.
    """

    var: str
    count: int
    facts: _KernelFacts
    privatised: dict[str, Buffer] = field(default_factory=dict)
    strict: bool = False
    certain: Mapping[Load, Expr | None] = field(default_factory=dict)

    # Statements

    @rewrites
    def statement(self, stmt: Stmt, mask: Expr | None) -> Stmt:
        match stmt:
            case Store():
                return self.store(stmt, mask)
            case For(kind=LoopKind.PARALLEL | LoopKind.VECTORIZED):
                raise _NoVectorForm
            case For(var=var, extent=extent, kind=kind, body=body):
                return For(var, extent, kind, self.statement(body, mask))
            case Seq(statements=statements):
                return seq(*(self.statement(s, mask) for s in statements))
            case Allocate(buffer=buffer, body=body) if buffer.scope is not MemoryScope.SHARED:
                lanes = Buffer(buffer.name, (*buffer.shape, self.count), buffer.dtype, buffer.scope)
                self.privatised[buffer.name] = lanes
                return Allocate(lanes, self.statement(body, mask))
            case If(condition=condition, then=then):
                return self.guarded(condition, then, mask)
        raise _NoVectorForm

    def guarded(self, condition: Expr, then: Stmt, mask: Expr | None) -> Stmt:
        terms = conjuncts(condition)
        scalar = [t for t in terms if not self.varies(t)]
        varying = [t for t in terms if self.varies(t)]
        if not varying:
            return If(condition, self.statement(then, mask))
        for term in varying:
            mask = _and(mask, self.vector(term, mask))
        # A load with one index for all lanes must not happen where no lane is enabled.
        before = self.strict
        some = self.some_lane(varying[0]) if len(varying) == 1 and not self.strict else None
        self.strict = some is None
        body = self.statement(then, mask)
        self.strict = before
        for term in reversed([*scalar, some] if some is not None and self.has_unsafe_load(then) else scalar):
            body = If(term, body)
        return body

    def some_lane(self, term: Expr) -> Expr | None:
        """Return a scalar condition that holds exactly when ``term`` holds in some lane; None where none is known."""
        if not isinstance(term, Compare) or term.a.dtype != INDEX or any(isinstance(e, Load) for e in walk(term)):
            return None
        a, b = linear_form(term.a), linear_form(term.b)
        difference = a - b
        slope = difference.coefficient(self.var)
        if not slope or any(self.varies(e) for e in difference.without((Var(self.var),)).terms):
            return None
        rising = {"lt": False, "le": False, "gt": True, "ge": True}.get(term.op.value)
        if rising is None:
            return None
        lane = self.count - 1 if rising == (slope > 0) else 0
        return Compare(term.op, a.substituted(self.var, lane).to_expr(), b.substituted(self.var, lane).to_expr())

    def has_unsafe_load(self, stmt: Stmt) -> bool:
        """Return whether ``stmt`` has a load with one index for all lanes that must not happen unconditionally."""
        roots = (e for s in walk_statements(stmt) for e in expressions(s))
        return any(isinstance(e, Load) and self.unsafe(e) for root in roots for e in walk(root))

    def unsafe(self, load: Load) -> bool:
        """Return whether a load has one index for all lanes and might be out of bounds, or read what nobody wrote."""
        if self.varies(load):
            return False
        if load.buffer.name not in self.facts.inputs and load.indices:
            return True
        for i, extent in zip(load.indices, load.buffer.shape, strict=True):
            bounds = index_bounds(i, self.facts.extents)
            if bounds is None or bounds[0] < 0 or bounds[1] >= extent:
                return True
        return False

    def store(self, stmt: Store, mask: Expr | None) -> Stmt:
        if stmt.mask is not None or stmt.value.lanes > 1 or any(i.lanes > 1 for i in stmt.indices):
            raise _NoVectorForm
        indices = self.indices(stmt.buffer, stmt.indices, mask)
        buffer = self.privatised.get(stmt.buffer.name, stmt.buffer)
        if any(i.lanes > 1 for i in indices):
            value = self.vector(stmt.value, mask)
            return Store(buffer, indices, value, None if self.unmasked(buffer, stmt.indices) else mask)
        return self.update(stmt, mask)

    def unmasked(self, buffer: Buffer, indices: tuple[Expr, ...]) -> bool:
        """Return whether disabled lanes may access the buffer, too. An accumulator without masks stays in a
        register."""
        if buffer.name not in self.facts.unmasked or buffer.name in self.privatised:
            return False
        all_bounds = [index_bounds(i, self.facts.extents) for i in indices]
        return all(
            bounds is not None and bounds[0] >= 0 and bounds[1] < extent
            for bounds, extent in zip(all_bounds, buffer.shape, strict=True)
        )

    def update(self, stmt: Store, mask: Expr | None) -> Stmt:
        """Vectorise a store to one element by every lane: a reduction, or a value that is the same in every lane."""
        here = Load(stmt.buffer, stmt.indices)
        value = stmt.value
        if isinstance(value, Binary) and value.op in REDUCIBLE and here in (value.a, value.b):
            term = value.b if value.a == here else value.a
            if not self.reads(term, stmt.buffer):
                wide = self.vector(term, mask)
                if mask is not None:
                    wide = Select(mask, wide, Broadcast(identity(value.op, wide.dtype), self.count))
                return Store(stmt.buffer, stmt.indices, Binary(value.op, here, ReduceLanes(value.op, wide)))
        if mask is None and not self.varies(value) and not self.reads(value, stmt.buffer):
            return stmt
        raise _NoVectorForm

    # Expressions

    def varies(self, expr: Expr) -> bool:
        """Return whether the lanes of ``expr`` differ."""
        return any(
            (isinstance(e, Var) and e.name == self.var) or (isinstance(e, Load) and e.buffer.name in self.privatised)
            for e in walk(expr)
        )

    @staticmethod
    def reads(expr: Expr, buffer: Buffer) -> bool:
        return any(isinstance(e, Load) and e.buffer.name == buffer.name for e in walk(expr))

    def vector(self, expr: Expr, mask: Expr | None) -> Expr:
        """Return ``expr`` in ``count`` lanes."""
        wide = self.expr(expr, mask)
        return wide if wide.lanes > 1 else Broadcast(wide, self.count)

    def expr(self, expr: Expr, mask: Expr | None) -> Expr:
        """Return ``expr`` in ``count`` lanes, or as it is where its lanes do not differ."""
        if expr.lanes > 1 or isinstance(expr, ReduceLanes):
            raise _NoVectorForm
        if not self.varies(expr):
            if not self.strict or not any(isinstance(e, Load) and self.unsafe(e) for e in walk(expr)):
                return expr
            if isinstance(expr, Load):
                return Load(expr.buffer, tuple(self.vector(i, mask) for i in expr.indices), mask)
        elif expr.dtype == INDEX and not isinstance(expr, Load | Cast | Select):
            affine = self.affine(expr)
            if affine is not None:
                return affine
        match expr:
            case Load(buffer=buffer, indices=indices, mask=None):
                mask = self.certain.get(expr, mask)
                wide = self.indices(buffer, indices, mask)
                unmasked = mask is None or self.unmasked(buffer, indices)
                return Load(self.privatised.get(buffer.name, buffer), wide, None if unmasked else mask)
            case Select(condition=condition, then=then, otherwise=otherwise):
                return self.select(condition, then, otherwise, mask)
            case Binary(op=BinaryOp.FLOORDIV | BinaryOp.MOD as op, a=a, b=b) if mask is not None and self.varies(b):
                one = Broadcast(const(1, b.dtype), self.count)  # a masked lane must not divide by zero
                return Binary(op, self.vector(a, mask), Select(mask, self.vector(b, mask), one))
            case Binary() | Compare() | Logic() | Unary() | Cast():
                return rebuild(expr, [self.vector(c, mask) for c in expr.children])
        raise _NoVectorForm

    def indices(self, buffer: Buffer, indices: tuple[Expr, ...], mask: Expr | None) -> tuple[Expr, ...]:
        wide = [self.expr(i, mask) for i in indices]
        if buffer.name in self.privatised:
            wide.append(Ramp(index(0), 1, self.count))
        return tuple(wide)

    def affine(self, expr: Expr) -> Expr | None:
        """Return a ramp where ``expr`` has a constant stride from lane to lane; None elsewhere."""
        form = linear_form(expr)
        slope = 0
        base = LinearForm({}, form.constant)
        for atom, coefficient in form.terms.items():
            if atom == Var(self.var):
                slope += coefficient
            elif not self.varies(atom):
                base = base.plus(linear_form(atom), coefficient)
            elif (split := self.divided(atom)) is not None:
                slope += coefficient * split[0]
                base = base.plus(linear_form(split[1]), coefficient)
            else:
                return None
        scalar = base.to_expr()
        return Ramp(scalar, slope, self.count) if slope else Broadcast(scalar, self.count)

    def divided(self, atom: Expr) -> tuple[int, Expr] | None:
        """Return (slope, base) of ``e // n`` or ``e % n`` where ``e // n`` is provably the same in all lanes."""
        if not isinstance(atom, Binary) or atom.op not in (BinaryOp.FLOORDIV, BinaryOp.MOD):
            return None
        if not isinstance(atom.b, Const):
            return None
        divisor = int(atom.b.value)
        form = linear_form(atom.a)
        others = form.without((Var(self.var),))
        if any(self.varies(e) for e in others.terms) or divisor <= 0:
            return None
        if form.coefficient(self.var) != 1 or divisor % self.count:
            return None
        if others.constant % self.count or any(c % self.count for c in others.terms.values()):
            return None
        base = Binary(atom.op, others.to_expr(), atom.b)
        return (0 if atom.op is BinaryOp.FLOORDIV else 1), base

    def select(self, condition: Expr, then: Expr, otherwise: Expr, mask: Expr | None) -> Expr:
        wide = self.vector(condition, mask)
        inverse, before = Unary(UnaryOp.NOT, wide), self.certain
        self.certain = {**{load: mask for load in _certain_loads(condition)}, **before}
        result = Select(wide, self.arm(then, wide, mask), self.arm(otherwise, inverse, mask))
        self.certain = before
        return result

    def arm(self, expr: Expr, chosen: Expr, mask: Expr | None) -> Expr:
        """Vectorise one arm of a select. Its loads happen only in the lanes that select it."""
        before, self.strict = self.strict, True
        wide = self.vector(expr, _and(mask, chosen))
        self.strict = before
        return wide


def _certain_loads(expr: Expr) -> Iterator[Load]:
    """Yield the loads that computing ``expr`` does whatever its selects choose."""
    if isinstance(expr, Load):
        yield expr
    for child in (expr.condition,) if isinstance(expr, Select) else expr.children:
        yield from _certain_loads(child)


def _and(a: Expr | None, b: Expr) -> Expr:
    return b if a is None else Logic(LogicOp.AND, a, b)
