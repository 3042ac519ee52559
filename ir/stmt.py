"""Statements and kernels. All frozen; a transformation returns a new value."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

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


@dataclass(frozen=True, slots=True)
class Kernel:
    """The lowered form of one schedule.

    ``inputs`` are only read, ``outputs`` are written in full, ``workspace`` is uninitialised global scratch that
    the runtime provides. Each top-level statement of ``body`` (the items of its Seq) is one launch on a device
    with launches; on a CPU they run in order inside one call. Global buffers never alias.
    """

    name: str
    inputs: tuple[Buffer, ...]
    outputs: tuple[Buffer, ...]
    workspace: tuple[Buffer, ...]
    body: Stmt

    @property
    def parameters(self) -> tuple[Buffer, ...]:
        """The buffers a launch is given, in this order: inputs, outputs, workspace."""
        return self.inputs + self.outputs + self.workspace


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
    match stmt:
        case For(body=body) | Allocate(body=body):
            return (body,)
        case If(then=then):
            return (then,)
        case Seq(statements=statements):
            return statements
    return ()


def expressions(stmt: Stmt) -> tuple[Expr, ...]:
    """The expressions that stand directly in ``stmt``."""
    match stmt:
        case Store(indices=indices, value=value, mask=mask):
            return (*indices, value) if mask is None else (*indices, value, mask)
        case If(condition=condition):
            return (condition,)
    return ()


def walk_statements(stmt: Stmt) -> Iterator[Stmt]:
    """``stmt`` and everything below it, in program order."""
    yield stmt
    for below in substatements(stmt):
        yield from walk_statements(below)
