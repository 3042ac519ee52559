"""What the interpreter knows while it turns a kernel into closures."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from ..core.errors import KernelFault
from .bounds import Interval
from .memory import Cells, Watch

Env = list[Any]
"""The state of a run: a slot per loop variable, and the mask of active lanes in slot ``ACTIVE``."""

Code = Callable[[Env], Any]
"""A node turned into a function of the state."""

ACTIVE = 0
"""The slot of the lanes for which the branch of a vector select is being evaluated; None for all."""


@dataclass(frozen=True)
class Scope:
    """Names at one place: slots and ranges of the loops around, the cells of buffers, the watches of parallel loops.

    ``guarded``: inside a branch of a vector select, where loads must heed the active lanes.
    """

    kernel: str
    slots: dict[str, int] = field(default_factory=dict)
    ranges: dict[str, Interval] = field(default_factory=dict)
    cells: dict[str, Cells] = field(default_factory=dict)
    watches: tuple[Watch, ...] = ()
    guarded: bool = False
    counter: list[int] = field(default_factory=lambda: [1])  # slots given out; shared by all scopes of a kernel

    @property
    def slot_count(self) -> int:
        return self.counter[0]

    def with_loop(self, name: str, values: Interval, watch: Watch | None) -> "Scope":
        """Inside a loop."""
        slot = self.counter[0]
        self.counter[0] += 1
        return replace(
            self,
            slots={**self.slots, name: slot},
            ranges={**self.ranges, name: values},
            watches=self.watches if watch is None else (*self.watches, watch),
        )

    def inside_select(self, guarded: bool = True) -> "Scope":
        return replace(self, guarded=guarded)

    def watches_of(self, buffer: str) -> tuple[Watch, ...]:
        """The watches that have to hear of accesses to ``buffer``."""
        return tuple(w for w in self.watches if buffer in w.writers)

    def fault(self, what: str, buffer: str, env: Env) -> KernelFault:
        """The error to raise, with the values of the loops around."""
        at = ", ".join(f"{name}={env[slot]}" for name, slot in self.slots.items())
        return KernelFault(f"kernel {self.kernel}: {what}{f' at {at}' if at else ''}", field=buffer)
