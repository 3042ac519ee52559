"""Holds what is known, and what is gathered, while one ``__global__`` function is written."""

from dataclasses import dataclass, field

from ....core.errors import CompileError
from ....ir.buffer import Buffer, MemoryScope
from ....ir.expr import ClusterLoad, Expr, Load
from ....ir.stmt import Stmt
from ...backend import TensorMap
from ...c_names import ascii_name
from .access import IndexRanges
from .types import is_half


@dataclass(slots=True)
class EmittedFunction:
    """This is the ``__global__`` function of one launch while it is written.

    What is known from the start:
        arch: Which architecture the function is for.
        ranges: Which values loop variables and the indices of blocks and threads take.
        read_only: Which global buffers the launch never writes.
        evict_first: Which global buffers have elements that are touched once, so that caches evict them first.
        prefetch_lines: Of which global buffers asynchronous copies, and loads of less than 16 bytes, bring whole cache
            lines into L2.
        fast_math: Whether fast approximations are exact enough (see ``arithmetic``).
        parameters: The kernel's parameters.
        tensor_maps: Which tensor maps the function takes, and what they are called.
        last: Which statement ends the launch, if all threads end with the same.
        cluster_syncs_shared_only: Whether CTAs of a cluster exchange data through shared memory alone.
        awaits_cluster_loads: Whether every load from another CTA's shared memory is awaited before the next barrier of
            the cluster.
        arrives_remotely: Whether a CTA arrives at mbarriers of other CTAs.

    What changes while statements are written:
        taken: Which names may not be given again.
        stmt: Which statement is being written; the launch itself around its body.
        used: Which functions of the prelude are called, each with the statements that call it.
        unrolled: Which variables belong to loops that the compiler unrolls.
        accumulators: In which register buffers, of those in scope, ``wgmma`` accumulates.
        first: Ahead of which statement the function waits for earlier launches. It is None once it waits.
    """

    arch: str
    stmt: Stmt
    ranges: IndexRanges
    read_only: frozenset[str]
    evict_first: frozenset[str]
    prefetch_lines: frozenset[str]
    fast_math: bool
    taken: set[str]
    parameters: tuple[Buffer, ...] = ()
    tensor_maps: dict[TensorMap, str] = field(default_factory=dict)
    used: dict[str, list[Stmt]] = field(default_factory=dict)
    unrolled: set[str] = field(default_factory=set)
    accumulators: list[Buffer] = field(default_factory=list)
    first: Stmt | None = None
    last: Stmt | None = None
    cluster_syncs_shared_only: bool = False
    awaits_cluster_loads: bool = False
    arrives_remotely: bool = False
    _reads_memory: dict[int, tuple[Expr, bool]] = field(default_factory=dict)
    _names: dict[str, str] = field(default_factory=dict)
    _counts: dict[str, int] = field(default_factory=dict)

    def use(self, function: str) -> str:
        """Return the name of a function of the prelude, and note that its text must stand ahead of the kernel."""
        callers = self.used.setdefault(function, [])
        if not any(s is self.stmt for s in callers[-1:]):
            callers.append(self.stmt)
        return function

    @property
    def capability(self) -> int:
        """The number of the architecture: 90 for ``sm_90a``."""
        return int("".join(c for c in self.arch if c.isdigit()) or 0)

    def use_sm_90(self, function: str) -> str:
        """Return as ``use`` does, for a function whose instructions came with Hopper. Raises CompileError before it."""
        if self.capability < 90:
            raise CompileError(f"{self.arch} has no such instruction as {function}; sm_90 and later have it")
        return self.use(function)

    def use_sm_90a(self, function: str) -> str:
        """Return as ``use`` does, for a function whose instructions only Hopper has. Raises CompileError elsewhere."""
        if self.arch != "sm_90a":
            raise CompileError(f"{self.arch} has no such instruction as {function}; only sm_90a has it")
        return self.use(function)

    def use_sm_100a(self, function: str) -> str:
        """Return as ``use`` does, for a function that needs tensor memory. Raises CompileError without it."""
        if self.arch != "sm_100a":
            raise CompileError(f"{self.arch} has no such instruction as {function}; only sm_100a has it")
        return self.use(function)

    def reads_memory(self, expr: Expr) -> bool:
        """Return whether computing ``expr`` loads from anything but registers."""
        found = self._reads_memory.get(id(expr))
        if found is None:
            is_load = isinstance(expr, ClusterLoad) or (
                isinstance(expr, Load) and expr.buffer.scope is not MemoryScope.REGISTER
            )
            result = is_load or any(self.reads_memory(child) for child in expr.children)
            self._reads_memory[id(expr)] = found = (expr, result)
        return found[1]

    def name_of(self, name: str) -> str:
        """Return the C++ name of a variable or buffer of the kernel."""
        found = self._names.get(name)
        if found is None:
            found = name if name.isascii() and name not in self.taken else self.fresh(ascii_name(name))
            self.taken.add(found)
            self._names[name] = found
        return found

    def fresh(self, base: str) -> str:
        """Return a name that nothing has yet: ``base``, or ``base`` with a number behind it."""
        name, number = base, self._counts.get(base, 0)
        while name in self.taken:
            number += 1
            name = f"{base}_{number}"
        self._counts[base] = number
        self.taken.add(name)
        return name


def is_packed(buffer: Buffer) -> bool:
    """Return whether a buffer lies in registers that hold two elements of 16 bits each."""
    return buffer.scope is MemoryScope.REGISTER and is_half(buffer.dtype)
