"""What the interpreter knows at one place of a kernel while it turns the kernel into closures."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from ...core.errors import KernelFault
from ..bounds import Interval
from .memory import BufferContents, LoopRaceDetector

Env = list[Any]
"""The state of a run: a slot for each loop variable, and the mask of active lanes in slot ``ACTIVE``."""

Closure = Callable[[Env], Any]
"""A node as a function of the state."""

ACTIVE = 0
"""The slot of the lanes for which the branch of a vector select is being evaluated. It holds None for all lanes."""


@dataclass(frozen=True)
class InterpreterContext:
    """The names that are bound: slots and ranges of the loops around, the contents of buffers, and the race detectors
    of the parallel loops around.

    ``guarded`` says that this is a branch of a vector select, where loads must heed the active lanes. ``counter`` holds
    how many slots were given out; all contexts of a kernel share it.
    """

    kernel: str
    slots: dict[str, int] = field(default_factory=dict)
    ranges: dict[str, Interval] = field(default_factory=dict)
    contents: dict[str, BufferContents] = field(default_factory=dict)
    detectors: tuple[LoopRaceDetector, ...] = ()
    guarded: bool = False
    counter: list[int] = field(default_factory=lambda: [1])

    @property
    def slot_count(self) -> int:
        return self.counter[0]

    def with_loop(self, name: str, values: Interval, detector: LoopRaceDetector | None) -> "InterpreterContext":
        """Return the context inside a loop."""
        slot = self.counter[0]
        self.counter[0] += 1
        return replace(
            self,
            slots={**self.slots, name: slot},
            ranges={**self.ranges, name: values},
            detectors=self.detectors if detector is None else (*self.detectors, detector),
        )

    def inside_select(self, guarded: bool = True) -> "InterpreterContext":
        return replace(self, guarded=guarded)

    def detectors_of(self, buffer: str) -> tuple[LoopRaceDetector, ...]:
        """Return the detectors that must be told of accesses to ``buffer``."""
        return tuple(d for d in self.detectors if buffer in d.writers)

    def fault(self, what: str, buffer: str, env: Env) -> KernelFault:
        """Return the error to raise, with the values of the variables of the loops around."""
        at = ", ".join(f"{name}={env[slot]}" for name, slot in self.slots.items())
        return KernelFault(f"kernel {self.kernel}: {what}{f' at {at}' if at else ''}", field=buffer)
