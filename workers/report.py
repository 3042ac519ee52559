"""What came of one candidate at each of the two benches it passes."""

from dataclasses import dataclass

from ..codegen.backend import Binary
from ..core.trial import Clocks, Evidence, Failed, Outcome


@dataclass(frozen=True, slots=True)
class Built:
    """``seconds``: in the compiler; ``overhead_seconds``: around it (queues, pipes, replaced children)."""

    result: Binary | Failed
    seconds: float
    overhead_seconds: float


@dataclass(frozen=True, slots=True)
class Report:
    """What the runner says. ``tainted``: its memory may be damaged, so it must be replaced."""

    outcome: Outcome
    clocks: Clocks
    evidence: Evidence
    tainted: bool = False
