"""What is known, and gathered, while one device function is written."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ....ir.buffer import Buffer, MemoryScope
from ....ir.expr import ClusterLoad, Expr, Load
from ....ir.stmt import Stmt
from ...backend import TensorMap
from ...c_names import ascii_name
from .access import Ranges
from .types import is_half


@dataclass(slots=True)
class Function:
    """One device function as it grows.

    ``ranges``: of all variables. ``read_only``: global buffers that the launch never writes. ``evict_first``: those
    touched once. ``offsets``: where shared buffers begin, in bytes. ``approximate``: whether cheap functions will do
    (see ``arithmetic``). ``parameters``: names of the kernel's. ``maps``: tensor maps, with their names. ``used``:
    functions of the prelude. ``unrolled``: variables of loops written out. ``sums``: register buffers there are at this
    place that warpgroups add their products to. ``first``: the statement that earlier launches are awaited
    ahead of. ``last``: the one that ends the launch. ``meets_in_shared``:
    whether blocks of a cluster tell each other things in shared memory only. ``awaits_peers``: whether every load from
    another block is awaited ahead of the next barrier of the cluster.
    """

    name: str
    arch: str
    ranges: Ranges
    read_only: frozenset[str]
    evict_first: frozenset[str]
    offsets: Mapping[str, int]
    approximate: bool
    taken: set[str]
    parameters: tuple[str, ...] = ()
    maps: dict[TensorMap, str] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)
    unrolled: set[str] = field(default_factory=set)
    sums: list[Buffer] = field(default_factory=list)
    first: Stmt | None = None
    last: Stmt | None = None
    meets_in_shared: bool = False
    awaits_peers: bool = False
    _reads: dict[int, tuple[Expr, bool]] = field(default_factory=dict)
    _names: dict[str, str] = field(default_factory=dict)
    _counts: dict[str, int] = field(default_factory=dict)

    def use(self, function: str) -> str:
        """The name of a function of the prelude, which will be there."""
        self.used.add(function)
        return function

    def reads(self, expr: Expr) -> bool:
        """Whether computing ``expr`` reads memory other than registers."""
        found = self._reads.get(id(expr))
        if found is None:
            is_load = isinstance(expr, ClusterLoad) or (
                isinstance(expr, Load) and expr.buffer.scope is not MemoryScope.REGISTER
            )
            result = is_load or any(self.reads(child) for child in expr.children)
            self._reads[id(expr)] = found = (expr, result)
        return found[1]

    def name_of(self, name: str) -> str:
        """The C++ name of a variable or buffer of the kernel."""
        found = self._names.get(name)
        if found is None:
            found = name if name.isascii() and name not in self.taken else self.fresh(ascii_name(name))
            self.taken.add(found)
            self._names[name] = found
        return found

    def fresh(self, base: str) -> str:
        """A name nobody has: ``base``, or with a number behind it."""
        name, number = base, self._counts.get(base, 0)
        while name in self.taken:
            number += 1
            name = f"{base}_{number}"
        self._counts[base] = number
        self.taken.add(name)
        return name


def is_packed(buffer: Buffer) -> bool:
    """Whether a buffer lies in registers, two elements in a word."""
    return buffer.scope is MemoryScope.REGISTER and is_half(buffer.dtype)
