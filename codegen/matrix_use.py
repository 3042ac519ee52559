"""Which matrix instructions a kernel for a graphics processor has, and where some are missed, why."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from ..core.dtypes import bfloat16, float16
from ..core.schedule import Schedule
from ..core.target import Target
from ..ir.expr import Cast, Expr, Load
from ..ir.stmt import Kernel
from ..schedule.gpu.gemm.repack import PIECE_BYTES, uneven_operands
from ..schedule.problems.gemm import LARGEST_SKINNY_M, gemm_of
from ..schedule.sketches import SKETCHES
from ..te.contraction import contraction_of
from ..te.cost import flops
from ..te.inline import inline_stages
from ..te.workload import Stage, Workload
from .memory_traffic import matrix_operations

LEAST_SIDE, LEAST_DEPTH = 8, 16
"""Rows or columns up to which, and places of k below which, a product gains nothing from matrix instructions."""
GROUPS, WARPS = "matrix_group", "matrix"
"""Classes of machine instructions (``codegen.cuda.instructions``): of warpgroups, and of warps."""


@dataclass(frozen=True, slots=True)
class MatrixUse:
    """``said``: what matrix instructions there are. ``counts``: HGMMA, HMMA and all instructions, where they could be
    counted. ``warnings``: what is missed, one sentence or two each."""

    said: str
    counts: Mapping[str, int]
    warnings: tuple[str, ...] = ()


def matrix_use(
    workload: Workload, target: Target, schedule: Schedule, kernel: Kernel, instructions: Mapping[str, int]
) -> MatrixUse | None:
    """None where there are none and nobody would expect any. ``kernel``: as emitted. ``instructions``: class -> how
    many machine instructions, none at all where they could not be counted."""
    if target.kind != "cuda":
        return None
    done, wanted = matrix_operations(kernel), matrix_stages(workload)
    if not done and not wanted:
        return None
    said = _said(workload, done, instructions)
    missing = _missing(workload, target, schedule, wanted, done, instructions) if wanted else None
    total = sum(instructions.values())
    counts = {"HGMMA": instructions.get(GROUPS, 0), "HMMA": instructions.get(WARPS, 0), "all": total} if total else {}
    return MatrixUse(said, counts, () if missing is None else (missing,))


def matrix_stages(workload: Workload) -> tuple[Stage, ...]:
    """The products of 16-bit floats among the stages that matrix instructions would gain from."""
    return tuple(s for s in inline_stages(workload).stages if _gains(s))


def _gains(stage: Stage) -> bool:
    found = contraction_of(stage)
    if found is None or not (_is_half(found.left) and _is_half(found.right)):
        return False
    extents = {a.name: a.extent for a in (*stage.axes, *stage.reduce_axes)}
    rows, columns, depth = (
        prod(extents[name] for name in names) for names in (found.rows, found.columns, found.shared)
    )
    return min(rows, columns) > LEAST_SIDE and depth >= LEAST_DEPTH


def _is_half(factor: Expr) -> bool:
    while isinstance(factor, Cast):
        factor = factor.value
    return isinstance(factor, Load) and factor.dtype in (float16, bfloat16)


def _said(workload: Workload, done: int, instructions: Mapping[str, int]) -> str:
    total = sum(instructions.values())
    lines = []
    for name, what in ((GROUPS, "HGMMA, products of warpgroups"), (WARPS, "HMMA, products of warps")):
        count = instructions.get(name, 0)
        share = f"{count:,} of {total:,} instructions ({100 * count / total:.1f} %)" if count else "none"
        lines.append(f"{what + ':':<31}{share if total else 'not counted, no disassembler is installed'}")
    needed = flops(workload)
    share = f", {done / needed:.2f} times the operations of the expression" if needed else ""
    lines.append(f"multiplications and additions that they do: {done:,}{share}")
    return "\n".join(lines)


def _missing(
    workload: Workload,
    target: Target,
    schedule: Schedule,
    wanted: tuple[Stage, ...],
    done: int,
    instructions: Mapping[str, int],
) -> str | None:
    """What is missed, and why."""
    counted = sum(instructions.values()) > 0
    names = ", ".join(s.name for s in wanted)
    if not done or (counted and not instructions.get(GROUPS, 0) + instructions.get(WARPS, 0)):
        able = [s for s in _with_matrix_instructions(workload, target) if s != schedule.sketch]
        hint = f"{', '.join(able)} could write them" if able else "no sketch writes them for this expression"
        return (
            f"NO MATRIX INSTRUCTIONS: {names}, a product of 16-bit floats, is done by plain arithmetic in "
            f"{schedule.sketch}; {hint}"
        )
    if target.arch == "sm_90a" and counted and not instructions.get(GROUPS, 0):
        return (
            f"NO HGMMA: {names} is multiplied by instructions of warps (HMMA) in {schedule.sketch}, not of warpgroups; "
            f"{_why_no_groups(workload, target)}"
        )
    return None


_OF_GROUPS = ("cuda_gemm", "cuda_skinny_tma")
_OF_WARPS = ("cuda_gemm_mma", "cuda_skinny_mma")


def _with_matrix_instructions(workload: Workload, target: Target) -> list[str]:
    return [name for name in (*_OF_GROUPS, *_OF_WARPS) if SKETCHES[name].matches(workload, target)]


def _why_no_groups(workload: Workload, target: Target) -> str:
    """The rule that kept a workload from the sketches with products of warpgroups, or that none did."""
    p = gemm_of(workload, several=True)
    if p is None:
        return "it is not one product, or several of the same left operand, with pointwise functions of the sums"
    uneven = [
        f"rows of {t.name} begin every {t.strides[-2] * t.dtype.bytes} bytes" for t in uneven_operands(p) if t.shape[1:]
    ]
    even = f"{' and '.join(uneven)}; copies of boxes need multiples of {PIECE_BYTES}" if uneven else ""
    able = [name for name in _OF_GROUPS if SKETCHES[name].matches(workload, target)]
    if able and even:
        return f"{even}, so {', '.join(able)} would first copy what begins elsewhere, and was not faster or not tried"
    if min(p.m.extent, p.n.extent) <= LARGEST_SKINNY_M and not p.batch:
        few = f"with {min(p.m.extent, p.n.extent)} rows it is reading the other matrix that takes the time"
        return f"{even}; {few}" if even else few
    if able:
        return f"{', '.join(able)} could use them, and was not faster or not tried"
    return even or "an operand is no tensor with an axis for every index, as copies of boxes need it"
