"""Estimates what a workload costs before it is accepted, and refuses one that nobody can measure here, or that is code.

These are bounds against mistakes and attacks: they are far beyond what is useful, and settings change them.
"""

from dataclasses import dataclass

from ..core.errors import Forbidden, InvalidParameter
from ..ir.expr import walk
from ..te.cost import cheapest_stages, stage_flops, stage_points
from ..te.dynamic import at_representative
from ..te.triton import TritonWorkload
from ..te.workload import Workload
from ..workers.reference_data import needed_bytes
from .settings import Settings

PRODUCT_FLOPS, OTHER_FLOPS = 2e10, 2e8
"""How many operations a second the float64 reference is taken to compute: in sums, which are mostly products
of matrices, and in all other stages, which NumPy does one array at a time."""


class WorkloadTooCostly(InvalidParameter):
    """A workload is larger than the service takes."""

    code = "WORKLOAD_TOO_COSTLY"


class CodeNotAccepted(Forbidden):
    """A workload is code, and the service takes none."""

    code = "CODE_NOT_ACCEPTED"


def check_code(workload: Workload, settings: Settings, field: str) -> None:
    """Raise CodeNotAccepted for a Triton kernel where the setting ``accept_code`` is off."""
    if isinstance(workload, TritonWorkload) and not settings.accept_code:
        raise CodeNotAccepted(
            "a Triton kernel is code, which this service does not take: its setting accept_code "
            "(TILEWRIGHT_ACCEPT_CODE) is off",
            field=field,
        )


@dataclass(frozen=True, slots=True)
class WorkloadCost:
    """What a workload takes.

    points: How often bodies are evaluated, in all stages together.
    reference_seconds: About how long the float64 reference takes.
    buffer_bytes: What inputs and reference take on the host while they are computed.
    nodes: How large the expressions are together, which code and compilation grow with.
    """

    points: int
    reference_seconds: float
    buffer_bytes: int
    nodes: int


def workload_cost(workload: Workload) -> WorkloadCost:
    """Return the estimate, at the representative extent of a dynamic dimension. It computes nothing of the workload
    itself."""
    workload = at_representative(workload)
    stages = [part for stage in workload.stages for part in cheapest_stages(stage)]
    seconds = (stage_flops(s) / (PRODUCT_FLOPS if s.reduce_axes else OTHER_FLOPS) for s in stages)
    return WorkloadCost(
        sum(map(stage_points, stages)),
        sum(seconds),
        needed_bytes(workload),
        sum(1 for stage in workload.stages for _ in walk(stage.body)),
    )


def check_cost(workload: Workload, settings: Settings, field: str) -> None:
    """Raise WorkloadTooCostly, with the numbers, for a workload beyond the limits of ``settings``."""
    cost = workload_cost(workload)
    found: list[tuple[str, float, float, str]] = [
        ("points", cost.points, settings.workload_points, ""),
        ("a float64 reference of about", cost.reference_seconds, settings.workload_reference_seconds, " s"),
        ("buffers of", cost.buffer_bytes, settings.workload_bytes, " bytes"),
        ("expressions of", cost.nodes, settings.workload_nodes, " nodes"),
    ]
    over = [f"{what} {given:,.0f}{unit}; allowed: {most:,.0f}" for what, given, most, unit in found if given > most]
    if over:
        raise WorkloadTooCostly(f"the workload is too large to be measured here: {', and '.join(over)}", field=field)
