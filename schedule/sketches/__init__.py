"""The sketches there are: name -> sketch."""

from ...core.target import Target
from ...te.workload import Workload
from ..sketch import Sketch

SKETCHES: dict[str, Sketch] = {}
"""Name -> sketch; a schedule names the sketch that it belongs to."""


def sketches_for(workload: Workload, target: Target) -> tuple[Sketch, ...]:
    """The sketches that can write a kernel for the workload on the target, in the table's order."""
    return tuple(sketch for sketch in SKETCHES.values() if sketch.matches(workload, target))
