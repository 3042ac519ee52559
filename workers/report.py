"""What a builder and a runner report of one candidate."""

from dataclasses import dataclass
from typing import Protocol

from ..codegen.backend import CompiledKernel
from ..core.trial import Clocks, Evidence, Failed, Outcome


@dataclass(frozen=True, slots=True)
class BuildReport:
    """A builder's report. ``seconds`` were spent in the compiler, ``overhead_seconds`` around it: in queues and pipes,
    and
    for replaced children."""

    result: CompiledKernel | Failed
    seconds: float
    overhead_seconds: float


@dataclass(frozen=True, slots=True)
class RunReport:
    """A runner's report. ``tainted`` says that its memory may be damaged, so that it must be replaced."""

    outcome: Outcome
    clocks: Clocks
    evidence: Evidence
    tainted: bool = False


@dataclass(frozen=True, slots=True)
class RemeasureReport:
    """A runner's report of a re-measurement: the ``samples`` of each binary in seconds, in the order given.

    Where a binary failed, ``failed`` is its position, and there are no samples. ``tainted`` is as in RunReport.
    """

    samples: tuple[tuple[float, ...], ...] = ()
    failed: int | None = None
    tainted: bool = False


class Announce(Protocol):
    """How a child says that a ``stage`` begins, which restarts the parent's deadline for it.

    ``item`` counts from 0 where a request has several things.
    """

    def __call__(self, stage: str, item: int | None = None) -> None: ...
