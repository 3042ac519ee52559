"""What came of one candidate at each of the two benches it passes."""

from dataclasses import dataclass
from typing import Protocol

from ..codegen.backend import CompiledKernel
from ..core.trial import Clocks, Evidence, Failed, Outcome


@dataclass(frozen=True, slots=True)
class Built:
    """``seconds``: in the compiler; ``overhead_seconds``: around it (queues, pipes, replaced children)."""

    result: CompiledKernel | Failed
    seconds: float
    overhead_seconds: float


@dataclass(frozen=True, slots=True)
class Report:
    """What the runner says. ``tainted``: its memory may be damaged, so it must be replaced."""

    outcome: Outcome
    clocks: Clocks
    evidence: Evidence
    tainted: bool = False


@dataclass(frozen=True, slots=True)
class Final:
    """What the runner says of finalists: the ``samples`` of each, in the order given; or which one ``failed``, and then
    there are none. ``tainted``: as in Report."""

    samples: tuple[tuple[float, ...], ...] = ()
    failed: int | None = None
    tainted: bool = False


class Announce(Protocol):
    """How a child says which stage begins, and of several things which one, from 0: this restarts the parent's
    clock for the stage. ``note``: what people should be told meanwhile."""

    def __call__(self, stage: str, item: int | None = None, note: str = "") -> None: ...
