"""What the interpreter of launches knows while it turns one into closures, and the state those run on."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ...core.errors import KernelFault
from ..bounds import Interval
from ..expr import WARP_LANES, Binary, BinaryOp, Broadcast, Cast, Compare, Const, Expr, Logic, Select, Unary, Var
from ..gpu import WARPGROUP_THREADS, Barrier, Level
from ..memory import Array
from ..stmt import HardwareAxis, Launch, Stmt, walk_statements
from .happens_before import Groups, Order
from .memory import GlobalMemory, PrivateMemory, SharedMemory


class Machine:
    """One chunk of a launch at run time: whole clusters, all their threads side by side, block after block.

    ``env``: a slot per variable (loops hold an int, launch variables int64[threads]) and per value worked out once.
    ``active``: who runs, bool[threads], also bool[lanes, threads] inside a branch of a vector select; None for all.
    """

    def __init__(self, launch: Launch, first_block: int, blocks: int, slots: int, launch_epoch: int, now: int) -> None:
        per_block = launch.threads
        self.launch = launch
        self.blocks = blocks
        self.threads = per_block * blocks
        self.cluster = launch.extent(HardwareAxis.CLUSTER)
        self.env: list[Any] = [None] * slots
        self.active: Array | None = None
        self.places = np.arange(self.threads, dtype=np.int64)
        self.thread = self.places % per_block  # within its block
        self.block = self.places // per_block  # within the chunk
        self.block_number = self.block + first_block
        groups = Groups.of(per_block, self.cluster, any(map(_meets_as_group, walk_statements(launch.body))))
        self.order = Order(self.block_number * groups.block + self.thread, groups, launch_epoch, now)
        self.flights: list[Any] = []  # asynchronous copies under way (see ``copies``)
        self.committed = np.zeros(self.threads, dtype=np.int64)  # groups of them, by thread
        self.stores: list[Any] = []  # likewise of tensor stores (see ``stores``)
        self.stored = np.zeros(self.threads, dtype=np.int64)
        self.products: list[Any] = []  # products of warpgroups under way (see ``groups``)
        self.started = np.zeros(self.threads, dtype=np.int64)  # how many, by first thread of the warpgroup
        self.registers: Array | None = None  # of the threads of each warpgroup, once any changed theirs
        self.phases: dict[str, Any] = {}  # arrival barriers, by buffer
        self.peer_uses = np.full(self.threads, -1, dtype=np.int64)  # when threads last touched another block's memory

    def axis(self, axis: HardwareAxis) -> Array:
        """int64[threads]: where every thread is along an axis."""
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
        """Who runs, in the shape of an access: [threads] or [lanes, threads]; None for all."""
        active = self.active
        if active is None:
            return None
        if len(shape) == 1:
            active = active if active.ndim == 1 else np.asarray(active.any(axis=0))
        return np.broadcast_to(active, shape)

    def warpgroups(self, what: str, scope: "Scope") -> Array:
        """int64[groups]: the first threads of the warpgroups that run. Raises KernelFault where part of one is missing;
        ``what`` is being done."""
        active, per_block = self.running((self.threads,)), self.launch.threads
        blocks = (np.ones(self.threads, dtype=np.bool_) if active is None else active).reshape(-1, per_block)
        padded = np.pad(blocks, ((0, 0), (0, -per_block % WARPGROUP_THREADS)))
        count = padded.reshape(len(blocks), -1, WARPGROUP_THREADS).sum(axis=2)
        block, group = np.nonzero(count)
        leaders: Array = block * per_block + group * WARPGROUP_THREADS
        torn = count[block, group] != WARPGROUP_THREADS
        if torn.any():
            at = int(torn.argmax())
            there = int(count[block, group][at])
            what = f"{what} is reached by {there} of {WARPGROUP_THREADS} threads that must meet"
            raise scope.fault(what, self, int(leaders[at]))
        return leaders

    def divided(self, group: int, what: str, scope: "Scope") -> Array | None:
        """Who takes part in something that whole groups of ``group`` neighbouring threads must reach together; None
        for all. Raises KernelFault where a part of a group is missing."""
        active = self.running((self.threads,))
        if active is None:
            return None
        groups = active.reshape(-1, group)
        count = groups.sum(axis=1)
        torn = (count != 0) & (count != group)
        if torn.any():
            at = int(torn.argmax())
            missing = at * group + int((~groups[at]).argmax())
            raise scope.fault(f"{what} is reached by {int(count[at])} of {group} threads that must meet", self, missing)
        return active


def _meets_as_group(stmt: Stmt) -> bool:
    return isinstance(stmt, Barrier) and stmt.level is Level.WARPGROUP


Code = Callable[[Machine], Any]
"""A node as a function of the state. Values broadcast to [threads] (scalars) or [lanes, threads] (vectors); what is
the same in all threads may be a plain number (an int for indices)."""


@dataclass(frozen=True)
class Scope:
    """Names at one place of a launch. ``launch_slots``: the slots of launch variables; ``prologue``: what to work out
    once per chunk (slot, code), in order; ``once``: the expressions that are, with their slots; ``ahead``: shuffles
    worked out before the mask of the store they stand in, with their slots."""

    kernel: str
    launch: Launch
    slots: dict[str, int] = field(default_factory=dict)
    ranges: dict[str, Interval] = field(default_factory=dict)
    shared: dict[str, GlobalMemory | SharedMemory] = field(default_factory=dict)
    private: dict[str, PrivateMemory] = field(default_factory=dict)
    counter: list[int] = field(default_factory=lambda: [0])
    prologue: list[tuple[int, Code]] = field(default_factory=list)
    once: dict[Expr, int] = field(default_factory=dict)
    ahead: dict[Expr, int] = field(default_factory=dict)

    def slot(self) -> int:
        """A new slot of the environment."""
        self.counter[0] += 1
        return self.counter[0] - 1

    def with_variable(self, name: str, values: Interval) -> "Scope":
        return replace(self, slots={**self.slots, name: self.slot()}, ranges={**self.ranges, name: values})

    def is_launch_variable(self, name: str) -> bool:
        return any(b.var == name for b in self.launch.bounds)

    def settled(self, expr: Expr) -> bool:
        """Whether a scalar depends on launch variables alone, so that it can be worked out once."""
        match expr:
            case Var(name=name):
                return self.is_launch_variable(name)
            case Const():
                return True
            case Binary(op=BinaryOp.FLOORDIV | BinaryOp.MOD, a=a, b=b):
                return isinstance(b, Const) and b.value > 0 and self.settled(a)
            case Broadcast():
                return False
            case Binary() | Compare() | Logic() | Unary() | Select() | Cast():
                return all(self.settled(c) for c in expr.children)
        return False

    def fault(self, what: str, machine: Machine, place: int, buffer: str = "") -> KernelFault:
        """The error to raise: what happened, to which thread (by place in the chunk), where."""
        at = []
        for name, slot in self.slots.items():
            value = machine.env[slot]
            at.append(f"{name}={int(value[place]) if isinstance(value, np.ndarray) else value}")
        where = f" at {', '.join(at)}" if at else ""
        return KernelFault(f"kernel {self.kernel}, launch {self.launch.name}: {what}{where}", field=buffer)

    def thread_name(self, number: int, machine: Machine) -> str:
        """A thread by its number in the launch."""
        if number < 0:
            return "a bulk copy"
        block, thread = divmod(number, machine.order.groups.block)
        return f"thread {thread} of block {block}"
