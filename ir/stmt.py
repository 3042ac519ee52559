"""Statements and kernels. All frozen; a transformation returns a new value."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from itertools import pairwise
from typing import Self

from .buffer import Buffer
from .expr import Expr


class LoopKind(StrEnum):
    """How the iterations of a loop run. ``parallel`` iterations may run at once on different threads; ``vectorized``
    ones become the lanes of a vector; ``unrolled`` ones are written out one after the other."""

    SERIAL = "serial"
    UNROLLED = "unrolled"
    VECTORIZED = "vectorized"
    PARALLEL = "parallel"


class Stmt:
    """Base of all statements."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class For(Stmt):
    """``for var in range(extent)``; extents are constants (shapes are), remainders are guarded by If or peeled."""

    var: str
    extent: int
    kind: LoopKind
    body: Stmt


@dataclass(frozen=True, slots=True)
class Store(Stmt):
    """``buffer[indices] = value``; lanes as in Load. Where ``mask`` is false nothing is written."""

    buffer: Buffer
    indices: tuple[Expr, ...]
    value: Expr
    mask: Expr | None = None


@dataclass(frozen=True, slots=True)
class If(Stmt):
    """``condition`` is a scalar bool."""

    condition: Expr
    then: Stmt


@dataclass(frozen=True, slots=True)
class Seq(Stmt):
    """One after the other; the empty sequence does nothing."""

    statements: tuple[Stmt, ...]


@dataclass(frozen=True, slots=True)
class Allocate(Stmt):
    """``buffer`` (local or register scope) exists, uninitialised, while ``body`` runs; one per loop iteration
    that reaches it, so each iteration of an enclosing parallel loop has its own."""

    buffer: Buffer
    body: Stmt


class HardwareAxis(StrEnum):
    """What an axis of a launch counts. The threads of a block are counted either by ``thread`` alone, or by ``warp``
    and ``lane`` (32 of them); thread ``t`` is lane ``t % 32`` of warp ``t // 32``. With ``cluster`` present,
    ``grid_x`` counts clusters, and ``cluster`` the blocks in each (its extent 2, 4, 8 or 16)."""

    GRID_X = "grid_x"
    GRID_Y = "grid_y"
    GRID_Z = "grid_z"
    CLUSTER = "cluster"
    THREAD = "thread"
    WARP = "warp"
    LANE = "lane"


@dataclass(frozen=True, slots=True)
class Bound:
    """The variable ``var`` runs over ``extent`` places of a hardware axis."""

    var: str
    extent: int
    axis: HardwareAxis


@dataclass(frozen=True, slots=True)
class Launch(Stmt):
    """One device function and its launch: ``body`` runs once for every combination of ``bounds``.

    A top-level statement of a kernel; nothing else at the top level of a kernel that has one. ``min_blocks``: how
    many blocks must fit on one multiprocessor at once (0: no wish; bounds the registers). ``streamed`` names global
    buffers whose data is touched once, so that caches need not keep it.
    """

    name: str
    bounds: tuple[Bound, ...]
    body: Stmt
    min_blocks: int = 0
    streamed: tuple[str, ...] = ()

    def extent(self, axis: HardwareAxis) -> int:
        """Places along ``axis``; 1 where it is not bound."""
        return next((b.extent for b in self.bounds if b.axis is axis), 1)

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.extent(HardwareAxis.THREAD) * self.extent(HardwareAxis.WARP) * self.extent(HardwareAxis.LANE)

    @property
    def blocks(self) -> tuple[int, int, int]:
        """The grid as the hardware counts it: blocks along x (clusters included), y and z."""
        x = self.extent(HardwareAxis.GRID_X) * self.extent(HardwareAxis.CLUSTER)
        return (x, self.extent(HardwareAxis.GRID_Y), self.extent(HardwareAxis.GRID_Z))


class Operation(Stmt):
    """Base of statements that hold no others: what they are made of is in their fields."""

    __slots__ = ()

    @property
    def expressions(self) -> tuple[Expr, ...]:
        """The expressions in the fields, in order."""
        found: list[Expr] = []
        for value in self._values():
            found.extend(e for e in (value if isinstance(value, tuple) else (value,)) if isinstance(e, Expr))
        return tuple(found)

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        """The buffers in the fields, in order."""
        return tuple(value for value in self._values() if isinstance(value, Buffer))

    @property
    def places(self) -> tuple[tuple[Buffer, tuple[Expr, ...]], ...]:
        """The buffers with the indices that follow them in the fields."""
        values = self._values()
        found: list[tuple[Buffer, tuple[Expr, ...]]] = []
        for value, following in pairwise(values):
            if isinstance(value, Buffer) and isinstance(following, tuple | Expr):
                found.append((value, following if isinstance(following, tuple) else (following,)))
        return tuple(found)

    def with_expressions(self, new: Sequence[Expr]) -> Self:
        """The same with other expressions, in the order of ``expressions``; itself when none changed."""
        if all(a is b for a, b in zip(new, self.expressions, strict=True)):
            return self
        rest = iter(new)
        changed: dict[str, object] = {}
        for f, value in zip(fields(self), self._values(), strict=True):  # type: ignore[arg-type]
            if isinstance(value, Expr):
                changed[f.name] = next(rest)
            elif isinstance(value, tuple) and any(isinstance(e, Expr) for e in value):
                changed[f.name] = tuple(next(rest) for _ in value)
        return replace(self, **changed)  # type: ignore[type-var]

    def with_buffers(self, new: Sequence[Buffer]) -> Self:
        """The same on other buffers, in the order of ``buffers``."""
        rest = iter(new)
        changed = {
            f.name: next(rest)
            for f, value in zip(fields(self), self._values(), strict=True)  # type: ignore[arg-type]
            if isinstance(value, Buffer)
        }
        return replace(self, **changed)  # type: ignore[type-var]

    def _values(self) -> tuple[object, ...]:
        return tuple(getattr(self, f.name) for f in fields(self))  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Kernel:
    """The lowered form of one schedule.

    ``inputs`` are only read, ``outputs`` are written in full, ``workspace`` is uninitialised global scratch that
    the runtime provides. Each top-level statement of ``body`` (the items of its Seq) is one launch on a device
    with launches (a Launch); on a CPU they run in order inside one call. Global buffers never alias. ``streamed``:
    outputs that on a CPU go past the caches, as far as whole vectors of them are stored. ``constants``: inputs that
    stay the same from call to call, so that what is made of them alone may be kept (``ir.prologue``).
    ``minimal_passes``:
    each statement is what the machine should do, sums in registers and nothing said twice, so that a compiler need not
    look for better.
    """

    name: str
    inputs: tuple[Buffer, ...]
    outputs: tuple[Buffer, ...]
    workspace: tuple[Buffer, ...]
    body: Stmt
    streamed: frozenset[str] = frozenset()
    constants: frozenset[str] = frozenset()
    minimal_passes: bool = False

    @property
    def parameters(self) -> tuple[Buffer, ...]:
        """The buffers a launch is given, in this order: inputs, outputs, workspace."""
        return self.inputs + self.outputs + self.workspace

    @property
    def launches(self) -> tuple[Launch, ...]:
        """The device functions in the order in which they run; none on a CPU."""
        top = self.body.statements if isinstance(self.body, Seq) else (self.body,)
        return tuple(s for s in top if isinstance(s, Launch))


def seq(*statements: Stmt) -> Stmt:
    """The statements in order, nested sequences flattened; a single one stands alone."""
    flat: list[Stmt] = []
    for s in statements:
        if isinstance(s, Seq):
            flat.extend(s.statements)
        else:
            flat.append(s)
    return flat[0] if len(flat) == 1 else Seq(tuple(flat))


def substatements(stmt: Stmt) -> tuple[Stmt, ...]:
    """The statements directly below ``stmt``."""
    if isinstance(stmt, Store):  # first what there is most of: every walk comes here
        return ()
    if isinstance(stmt, Seq):
        return stmt.statements
    if isinstance(stmt, (For, Allocate, Launch)):
        return (stmt.body,)
    return (stmt.then,) if isinstance(stmt, If) else ()


def expressions(stmt: Stmt) -> tuple[Expr, ...]:
    """The expressions that stand directly in ``stmt``."""
    match stmt:
        case Store(indices=indices, value=value, mask=mask):
            return (*indices, value) if mask is None else (*indices, value, mask)
        case If(condition=condition):
            return (condition,)
        case Operation():
            return stmt.expressions
    return ()


def walk_statements(stmt: Stmt) -> Iterator[Stmt]:
    """``stmt`` and everything below it, in program order."""
    waiting = [stmt]
    while waiting:
        here = waiting.pop()
        yield here
        waiting.extend(reversed(substatements(here)))
