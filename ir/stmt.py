"""Statements and kernels. All of them are frozen: a transformation returns a new value."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from itertools import pairwise
from operator import is_
from typing import Self

from ..core.errors import InvalidParameter
from .bounds import Interval
from .buffer import Buffer
from .expr import Expr


class LoopKind(StrEnum):
    """How the iterations of a loop run. ``parallel`` ones may run at once on different threads, ``vectorized`` ones
    become the lanes of a vector, ``unrolled`` ones are written out one after the other."""

    SERIAL = "serial"
    UNROLLED = "unrolled"
    VECTORIZED = "vectorized"
    PARALLEL = "parallel"


class Stmt:
    """Base of all statements."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class For(Stmt):
    """``for var in range(extent)``. Extents are constants because shapes are; remainders are guarded by If or
    peeled."""

    var: str
    extent: int
    kind: LoopKind
    body: Stmt


@dataclass(frozen=True, slots=True)
class Store(Stmt):
    """``buffer[indices] = value``, with lanes as in Load. Where ``mask`` is false nothing is written."""

    buffer: Buffer
    indices: tuple[Expr, ...]
    value: Expr
    mask: Expr | None = None


@dataclass(frozen=True, slots=True)
class If(Stmt):
    """``then`` runs where ``condition``, a scalar bool, holds."""

    condition: Expr
    then: Stmt


@dataclass(frozen=True, slots=True)
class Seq(Stmt):
    """The statements run one after the other. The empty sequence does nothing."""

    statements: tuple[Stmt, ...]


@dataclass(frozen=True, slots=True)
class Allocate(Stmt):
    """``buffer`` exists, uninitialised, while ``body`` runs. Each loop iteration that reaches it has a buffer of its
    own, also each iteration of a parallel loop; a shared buffer is one for the threads of a block."""

    buffer: Buffer
    body: Stmt


class HardwareAxis(StrEnum):
    """What an axis of a launch counts. The threads of a block are counted either by ``thread`` alone, or by ``warp``
    and ``lane`` (32 of them): thread ``t`` is lane ``t % 32`` of warp ``t // 32``. Where there is a ``cluster`` axis,
    ``grid_x`` counts clusters, and ``cluster`` the blocks in each; its extent is 2, 4, 8 or 16."""

    GRID_X = "grid_x"
    GRID_Y = "grid_y"
    GRID_Z = "grid_z"
    CLUSTER = "cluster"
    THREAD = "thread"
    WARP = "warp"
    LANE = "lane"


GRID_AXES = (HardwareAxis.GRID_X, HardwareAxis.GRID_Y, HardwareAxis.GRID_Z)


@dataclass(frozen=True, slots=True)
class AxisBinding:
    """The variable ``var`` is bound to a hardware axis of ``extent`` indices. Where a kernel has a dynamic extent, an
    axis of the grid may have fewer: ``count`` of them, an expression of such extents alone."""

    var: str
    extent: int
    axis: HardwareAxis
    count: Expr | None = None


@dataclass(frozen=True, slots=True)
class Launch(Stmt):
    """One device function and its launch: ``body`` runs once for every combination of the indices of ``axes``.

    It is a top-level statement of a kernel, and a kernel that has one has nothing else at its top level. ``min_blocks``
    says how many blocks must fit on one multiprocessor at once, which bounds the registers; 0 says nothing.
    ``evict_first`` names global buffers whose data is touched once, so that it may leave the caches first.
    ``prefetch_lines`` names those of which asynchronous copies, and loads of less than 16 bytes, bring whole
    cache lines into L2.
    """

    name: str
    axes: tuple[AxisBinding, ...]
    body: Stmt
    min_blocks: int = 0
    evict_first: tuple[str, ...] = ()
    prefetch_lines: tuple[str, ...] = ()

    def extent(self, axis: HardwareAxis) -> int:
        """Return how many indices ``axis`` has; 1 where it is not bound."""
        return next((b.extent for b in self.axes if b.axis is axis), 1)

    @property
    def threads(self) -> int:
        """Return how many threads a block has."""
        return self.extent(HardwareAxis.THREAD) * self.extent(HardwareAxis.WARP) * self.extent(HardwareAxis.LANE)

    @property
    def blocks(self) -> tuple[int, int, int]:
        """Return the grid as the hardware counts it: blocks along x (clusters included), y and z; at most, where the
        kernel has a dynamic extent."""
        x = self.extent(HardwareAxis.GRID_X) * self.extent(HardwareAxis.CLUSTER)
        return (x, self.extent(HardwareAxis.GRID_Y), self.extent(HardwareAxis.GRID_Z))


class Operation(Stmt):
    """Base of statements that hold no others. What they are made of is found in their fields, in order."""

    __slots__ = ()

    @property
    def expressions(self) -> tuple[Expr, ...]:
        """Return the expressions in the fields, in order."""
        found: list[Expr] = []
        for value in self._values():
            found.extend(e for e in (value if isinstance(value, tuple) else (value,)) if isinstance(e, Expr))
        return tuple(found)

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        """Return the buffers in the fields, in order."""
        return tuple(value for value in self._values() if isinstance(value, Buffer))

    @property
    def accesses(self) -> tuple[tuple[Buffer, tuple[Expr, ...]], ...]:
        """Return the buffers, each with the indices that follow it in the fields."""
        values = self._values()
        found: list[tuple[Buffer, tuple[Expr, ...]]] = []
        for value, following in pairwise(values):
            if isinstance(value, Buffer) and isinstance(following, tuple | Expr):
                found.append((value, following if isinstance(following, tuple) else (following,)))
        return tuple(found)

    def with_expressions(self, new: Sequence[Expr]) -> Self:
        """Return the same with other expressions, in the order of ``expressions``; itself when none changed."""
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
        """Return the same on other buffers, in the order of ``buffers``."""
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
class DynamicExtent:
    """The extent of a dimension that every call gives, 1 to ``most``: that of the ``places`` (parameter, dimension).
    Expressions of the kernel read it as the variable ``var``. Shapes of the kernel have ``most`` in its place."""

    var: str
    most: int
    places: frozenset[tuple[str, int]]

    @property
    def parameters(self) -> frozenset[str]:
        """Return the names of the parameters that have it."""
        return frozenset(name for name, _ in self.places)

    def check(self, extent: int) -> None:
        """Raise InvalidParameter unless a call may have this extent."""
        if isinstance(extent, bool) or not 1 <= extent <= self.most:
            raise InvalidParameter(f"the dynamic extent is {extent!r}; allowed: 1 to {self.most}", field="extent")

    def shape_at(self, name: str, shape: tuple[int, ...], extent: int) -> tuple[int, ...]:
        """Return the shape that a parameter has at an extent, or a view of it whose dimension of that number holds
        whole multiples of the dynamic one."""
        at = {d for given, d in self.places if given == name}
        return tuple(n // self.most * extent if d in at else n for d, n in enumerate(shape))


class _Verified:
    """What ``ir.verify`` has found out about one object: absent, or how strictly it was verified."""

    __slots__ = ("verified_as_final",)
    verified_as_final: bool  # no field: copies, and other processes, are verified again


@dataclass(frozen=True, slots=True)
class Kernel(_Verified):
    """The lowered form of one schedule.

    ``inputs`` are only read, ``outputs`` are written in full, ``workspace`` is uninitialised global memory that the
    runtime provides. Global buffers never alias. On a device with launches each top-level statement of ``body`` (the
    items of its Seq) is a Launch; on a CPU they run in order inside one call.

    - ``non_temporal`` names outputs that on a CPU are stored past the caches, as far as whole vectors of them are.
    - ``constants`` names inputs that stay the same from call to call, so that what is made of them alone may be kept
      (``ir.prologue``).
    - ``minimal_passes`` says that each statement is what the machine should do: accumulators are in registers and
      nothing is computed twice, so that a compiler need not look for better.
    - ``dynamic`` are the extents that every call gives, in their order (``ir.dynamic``).
    """

    name: str
    inputs: tuple[Buffer, ...]
    outputs: tuple[Buffer, ...]
    workspace: tuple[Buffer, ...]
    body: Stmt
    non_temporal: frozenset[str] = frozenset()
    constants: frozenset[str] = frozenset()
    minimal_passes: bool = False
    dynamic: tuple[DynamicExtent, ...] = ()

    @property
    def parameters(self) -> tuple[Buffer, ...]:
        """Return the buffers that a launch is given: inputs, outputs, workspace, in this order."""
        return self.inputs + self.outputs + self.workspace

    @property
    def ranges(self) -> dict[str, Interval]:
        """Return the values of the variables that are bound in the whole body."""
        return {extent.var: Interval(1, extent.most) for extent in self.dynamic}

    @property
    def launches(self) -> tuple[Launch, ...]:
        """Return the device functions in the order in which they run; a kernel for a CPU has none."""
        top = self.body.statements if isinstance(self.body, Seq) else (self.body,)
        return tuple(s for s in top if isinstance(s, Launch))


def seq(*statements: Stmt) -> Stmt:
    """Return the statements in order, with nested sequences flattened. A single statement stands alone."""
    flat: list[Stmt] = []
    for s in statements:
        if isinstance(s, Seq):
            flat.extend(s.statements)
        else:
            flat.append(s)
    return flat[0] if len(flat) == 1 else Seq(tuple(flat))


def substatements(stmt: Stmt) -> tuple[Stmt, ...]:
    """Return the statements directly below ``stmt``."""
    if isinstance(stmt, Store):  # the most frequent statement first: every walk comes here
        return ()
    if isinstance(stmt, Seq):
        return stmt.statements
    if isinstance(stmt, (For, Allocate, Launch)):
        return (stmt.body,)
    return (stmt.then,) if isinstance(stmt, If) else ()


def with_statements(stmt: Stmt, below: Sequence[Stmt]) -> Stmt:
    """Return ``stmt`` with other statements directly below it; ``stmt`` itself where they are the same. Sequences are
    flattened.

    Passes rewrite these in loops, not by functions of functions: statements stand hundreds of levels deep, and Python
    allows a thousand calls within each other.
    """
    old = substatements(stmt)
    if len(old) == len(below) and all(map(is_, old, below)):
        return stmt
    match stmt:
        case For() | Allocate() | Launch():
            return replace(stmt, body=below[0])
        case If():
            return replace(stmt, then=below[0])
    return seq(*below)


def expressions(stmt: Stmt) -> tuple[Expr, ...]:
    """Return the expressions that stand directly in ``stmt``."""
    match stmt:
        case Store(indices=indices, value=value, mask=mask):
            return (*indices, value) if mask is None else (*indices, value, mask)
        case If(condition=condition):
            return (condition,)
        case Operation():
            return stmt.expressions
    return ()


def walk_statements(stmt: Stmt) -> Iterator[Stmt]:
    """Yield ``stmt`` and everything below it, in program order."""
    waiting = [stmt]
    while waiting:
        here = waiting.pop()
        yield here
        waiting.extend(reversed(substatements(here)))
