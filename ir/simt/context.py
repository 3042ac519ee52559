"""What the interpreter of launches knows while it turns a launch into closures, and the state on which those run."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Any

import numpy as np

from ...core.errors import KernelFault
from ..bounds import Interval
from ..expr import WARP_LANES, Binary, BinaryOp, Broadcast, Cast, Compare, Const, Expr, Logic, Ramp, Select, Unary, Var
from ..gpu.barrier import WARPGROUP_THREADS, Barrier, SyncScope
from ..interpreter.memory import Array
from ..stmt import HardwareAxis, Launch, Stmt, walk_statements
from .happens_before import HappensBefore, ThreadHierarchy
from .memory import GlobalMemory, PrivateMemory, SharedMemory

_MOST_REMEMBERED = 4096
"""How many results of one closure are kept."""


class LaunchState:
    """The state of one chunk of a launch: whole clusters, with all their threads side by side, block after block.

    ``env`` has a slot for each variable and each hoisted value: variables of loops hold an int, those of the launch
    int64[threads]. ``active`` says who runs: bool[threads], or bool[lanes, threads] inside a branch of a vector select;
    None for all. A thread is named by its *position* in the chunk. ``thread`` and ``block`` are int64[threads]: the
    number of the thread within its block, and of the block within the chunk.

    What is in flight: ``copies`` and ``tma_stores`` list asynchronous copies and TMA stores, ``committed_copies``
    and ``committed_stores`` count the groups of them that each thread has committed. ``wgmmas`` lists WarpgroupMma
    statements, ``started_wgmmas`` counts them by the first thread of the warpgroup. ``tcgen05`` has what a thread
    has issued to tensor memory, by its position. ``mbarriers`` has the state of the mbarriers by buffer.
    ``registers`` is int64[warpgroups], once a thread of any has changed them. ``turns`` is int64[threads], once
    warpgroups take turns: how many begins and ends each has had. ``cluster_uses`` says when each thread last
    accessed the memory of another block. ``grid_arrival``: when all arrived at the barrier of the grid,
    until they wait.
    """

    def __init__(self, launch: Launch, first_block: int, blocks: int, slots: int, launch_epoch: int, now: int) -> None:
        per_block = launch.threads
        self.launch = launch
        self.blocks = blocks
        self.threads = per_block * blocks
        self.cluster = launch.extent(HardwareAxis.CLUSTER)
        self.env: list[Any] = [None] * slots
        self.active: Array | None = None
        self.positions = np.arange(self.threads, dtype=np.int64)
        self.thread = self.positions % per_block
        self.block = self.positions // per_block
        self.block_number = self.block + first_block
        warpgroups = any(map(_is_warpgroup_barrier, walk_statements(launch.body)))
        groups = ThreadHierarchy.of(per_block, self.cluster, warpgroups)
        self.order = HappensBefore(self.block_number * groups.block + self.thread, groups, launch_epoch, now)
        self.copies: list[Any] = []
        self.committed_copies = np.zeros(self.threads, dtype=np.int64)
        self.tma_stores: list[Any] = []
        self.committed_stores = np.zeros(self.threads, dtype=np.int64)
        self.wgmmas: list[Any] = []
        self.started_wgmmas = np.zeros(self.threads, dtype=np.int64)
        self.tcgen05: dict[int, Any] = {}
        self.registers: Array | None = None
        self.turns: Array | None = None
        self.mbarriers: dict[str, Any] = {}
        self.grid_arrival: int | None = None
        self.cluster_uses = np.full(self.threads, -1, dtype=np.int64)

    def axis(self, axis: HardwareAxis) -> Array:
        """Return the index of every thread along an axis: int64[threads]."""
        cluster, x = self.cluster, self.launch.extent(HardwareAxis.GRID_X)
        y = self.launch.extent(HardwareAxis.GRID_Y)
        match axis:
            case HardwareAxis.THREAD:
                return self.thread
            case HardwareAxis.WARP:
                return self.thread // WARP_LANES
            case HardwareAxis.LANE:
                return self.thread % WARP_LANES
            case HardwareAxis.CLUSTER:
                return self.block_number % cluster
            case HardwareAxis.GRID_X:
                return self.block_number // cluster % x
            case HardwareAxis.GRID_Y:
                return self.block_number // (cluster * x) % y
        return self.block_number // (cluster * x * y)

    def running(self, shape: tuple[int, ...]) -> Array | None:
        """Return who runs, in the shape of an access: [threads] or [lanes, threads]; None for all."""
        active = self.active
        if active is None:
            return None
        if len(shape) == 1:
            active = active if active.ndim == 1 else np.asarray(active.any(axis=0))
        return spread_to(active, shape)

    def warpgroups(self, what: str, context: "LaunchContext") -> Array:
        """Return the positions of the first threads of the warpgroups that run: int64[warpgroups]. Raises KernelFault
        where a part of one is missing; ``what`` is the operation in the message."""
        active, per_block = self.running((self.threads,)), self.launch.threads
        blocks = (np.ones(self.threads, dtype=np.bool_) if active is None else active).reshape(-1, per_block)
        padded = np.pad(blocks, ((0, 0), (0, -per_block % WARPGROUP_THREADS)))
        count = padded.reshape(len(blocks), -1, WARPGROUP_THREADS).sum(axis=2)
        block, group = np.nonzero(count)
        leaders: Array = block * per_block + group * WARPGROUP_THREADS
        incomplete = count[block, group] != WARPGROUP_THREADS
        if incomplete.any():
            at = int(incomplete.argmax())
            there = int(count[block, group][at])
            raise context.fault(_incomplete(what, there, WARPGROUP_THREADS), self, int(leaders[at]))
        return leaders

    def converged(self, group: int, what: str, context: "LaunchContext") -> Array | None:
        """Return who takes part in an operation that whole groups of ``group`` neighbouring threads must reach
        together; None for all. Raises KernelFault where a part of a group is missing."""
        active = self.running((self.threads,))
        if active is None:
            return None
        groups = active.reshape(-1, group)
        count = groups.sum(axis=1)
        incomplete = (count != 0) & (count != group)
        if incomplete.any():
            at = int(incomplete.argmax())
            missing = at * group + int((~groups[at]).argmax())
            raise context.fault(_incomplete(what, int(count[at]), group), self, missing)
        return active


def spread_to(value: Any, shape: tuple[int, ...]) -> Array:
    """Return ``value`` in ``shape``, as ``np.broadcast_to`` does, which takes its time where it has that shape already.
    Nobody writes to the result."""
    if isinstance(value, np.ndarray) and value.shape == shape:
        return value
    return np.broadcast_to(value, shape)


def _incomplete(what: str, there: int, group: int) -> str:
    return f"{what} is reached by {there} of {group} threads that must reach it together"


def _is_warpgroup_barrier(stmt: Stmt) -> bool:
    return isinstance(stmt, Barrier) and stmt.scope is SyncScope.WARPGROUP


LaunchClosure = Callable[[LaunchState], Any]
"""An expression as a function of the state. Values broadcast to [threads] (scalars) or [lanes, threads] (vectors). What
is the same in all threads may be a plain number; an index may be an int."""

LaunchAction = Callable[[LaunchState], None]
"""A statement as a function of the state."""


@dataclass(frozen=True)
class LaunchContext:
    """The names that are bound at one place of a launch.

    ``launch_variables`` are those that the launch binds. ``slots`` and ``ranges`` are those of all variables.
    ``prologue`` lists what is computed once per chunk, as (slot, closure), in order; ``hoisted`` has the slots of the
    expressions among them. ``precomputed`` has the slots of shuffles that were computed before the mask of the store in
    which they stand. ``names`` has the variables of the expressions asked for so far. ``counter`` holds how many slots
    were given out; all contexts of a launch share it.
    ``remembers`` says whether expressions remember results; inside of one that does, none has to.
    """

    kernel: str
    launch: Launch
    launch_variables: frozenset[str]
    slots: dict[str, int] = field(default_factory=dict)
    ranges: dict[str, Interval] = field(default_factory=dict)
    shared: dict[str, GlobalMemory | SharedMemory] = field(default_factory=dict)
    private: dict[str, PrivateMemory] = field(default_factory=dict)
    counter: list[int] = field(default_factory=lambda: [0])
    prologue: list[tuple[int, LaunchClosure]] = field(default_factory=list)
    hoisted: dict[Expr, int] = field(default_factory=dict)
    precomputed: dict[Expr, int] = field(default_factory=dict)
    names: dict[Expr, frozenset[str] | None] = field(default_factory=dict)
    remembers: bool = True

    def slot(self) -> int:
        """Return a new slot of the environment."""
        self.counter[0] += 1
        return self.counter[0] - 1

    def with_variable(self, name: str, values: Interval) -> "LaunchContext":
        return replace(self, slots={**self.slots, name: self.slot()}, ranges={**self.ranges, name: values})

    def is_launch_invariant(self, expr: Expr) -> bool:
        """Return whether a scalar depends on variables of the launch alone, so that it can be computed once per
        chunk."""
        names = self._names(expr) if expr.lanes == 1 else None
        return names is not None and names <= self.launch_variables

    def depends_on_loops(self, *exprs: Expr) -> bool:
        """Return whether ``exprs`` depend on variables of loops, and on nothing else."""
        names = [self._names(expr) for expr in exprs]
        return any(names) and all(n is not None and self.launch_variables.isdisjoint(n) for n in names)

    def remembered(self, closure: LaunchClosure, *exprs: Expr) -> LaunchClosure:
        """Return ``closure``, which computes something from ``exprs`` that ``depends_on_loops``, so that it runs once
        for each combination of values of the variables: inner loops compute the same indices in every iteration of an
        outer one. A result that is None is not kept."""
        names = sorted({name for expr in exprs for name in self._names(expr) or ()})
        values = itemgetter(*(self.slots[name] for name in names))
        known: dict[Hashable, Any] = {}

        def run(state: LaunchState) -> Any:
            key = values(state.env)
            found = known.get(key)
            if found is None:
                found = closure(state)
                if found is not None and len(known) < _MOST_REMEMBERED:
                    known[key] = found
            return found

        return run

    def _names(self, expr: Expr) -> frozenset[str] | None:
        """Return the variables that an expression depends on; None where it depends on more, or may be at fault."""
        if expr in self.names:
            return self.names[expr]
        found: frozenset[str] | None = None
        match expr:
            case Var(name=name):
                return frozenset((name,))
            case Const():
                return frozenset()
            case Binary(op=BinaryOp.FLOORDIV | BinaryOp.MOD, a=a, b=b):
                found = self._names(a) if isinstance(b, Const) and b.value > 0 else None
            case Binary() | Compare() | Logic() | Unary() | Select() | Cast() | Ramp() | Broadcast():
                found = frozenset()
                for child in expr.children:
                    below = self._names(child)
                    if below is None:
                        found = None
                        break
                    found |= below
        self.names[expr] = found
        return found

    def fault(self, what: str, state: LaunchState, position: int, buffer: str = "") -> KernelFault:
        """Return the error to raise: what happened, and to which thread, with the values of its variables."""
        at = []
        for name, slot in self.slots.items():
            value = state.env[slot]
            at.append(f"{name}={int(value[position]) if isinstance(value, np.ndarray) else value}")
        where = f" at {', '.join(at)}" if at else ""
        return KernelFault(f"kernel {self.kernel}, launch {self.launch.name}: {what}{where}", field=buffer)

    def thread_name(self, number: int, state: LaunchState) -> str:
        """Return a thread by its number in the launch, for messages."""
        if number < 0:
            return "a bulk copy"
        block, thread = divmod(number, state.order.groups.block)
        return f"thread {thread} of block {block}"
