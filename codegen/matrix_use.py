"""Reports which matrix instructions a kernel for a graphics processor has, and why some are missed.

On CUDA they are ``wgmma`` of warpgroups (HGMMA in SASS), ``tcgen05.mma`` of one thread (UTCHMMA), and ``mma.sync`` of
warps (HMMA), on AMD's processors MFMA of
wavefronts. A product that should have them and is done by plain arithmetic runs at a fraction of the device's speed,
so that is reported loudly.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from ..core.dtypes import bfloat16, float16
from ..core.schedule import Schedule
from ..core.target import Target
from ..ir.expr import Expr, Load
from ..schedule.gpu.gemm.repack import ROW_ALIGNMENT_BYTES, uneven_operands
from ..schedule.problems.gemm import LARGEST_SKINNY_M, gemm_of
from ..schedule.sketches import SKETCHES
from ..te.contraction import product_of
from ..te.cost import flops
from ..te.functions import uncast
from ..te.inline import inline_stages
from ..te.workload import Stage, Workload
from .backend import CodeLayer
from .lowering import LoweringStages
from .memory_traffic import matrix_operations

LEAST_SIDE, LEAST_DEPTH = 8, 16
"""A product with at most ``LEAST_SIDE`` rows or columns, or with a k below ``LEAST_DEPTH``, gains nothing from matrix
instructions."""


@dataclass(frozen=True, slots=True)
class MatrixInstruction:
    """This is one kind of matrix instruction.

    name: What people call it.
    description: Which operation it is, and who executes it.
    instruction_class: Which class of machine instructions counts it (``count_instructions`` of the backend).
    mnemonic: Which pattern its mnemonics match in an assembly.
    """

    name: str
    description: str
    instruction_class: str
    mnemonic: str

    def count(self, instructions: Mapping[str, int]) -> int:
        return instructions.get(self.instruction_class, 0)


HGMMA = MatrixInstruction("HGMMA", "wgmma of warpgroups", "matrix_group", r"[HQI]GMMA(?:\.\w+)*")
HMMA = MatrixInstruction("HMMA", "mma.sync of warps", "matrix", r"[HID]MMA(?:\.\w+)*")
UTCMMA = MatrixInstruction("UTCMMA", "tcgen05 of one thread", "matrix_tensor", r"UTC[HIQO]MMA(?:\.\w+)*")
MFMA = MatrixInstruction("MFMA", "products of wavefronts", "matrix", r"v_s?mfma\w+")
MATRIX_INSTRUCTIONS: Mapping[str, tuple[MatrixInstruction, ...]] = {
    "cuda": (HGMMA, HMMA),
    "sm_100a": (UTCMMA, HMMA),
    "amdgpu": (MFMA,),
}
"""It maps a kind of target, or an architecture with others, to the matrix instructions that its kernels may have."""

_NOT_SUMMED = "masked"
"""This class counts instructions that their own class counts, too (``codegen.llvm.instructions``)."""
_WGMMA_SKETCHES = (
    "cuda_gemm",
    "cuda_gemm_swap_ab",
    "cuda_gemm_row_reduction",
    "cuda_conv",
    "cuda_conv_wgrad",
    "cuda_skinny_tma",
    "cuda_attention",
)
_MATRIX_SKETCHES = (
    *_WGMMA_SKETCHES,
    "cuda_gemm_tcgen05",
    "cuda_gemm_mma",
    "cuda_skinny_mma",
    "cuda_skinny_mixed",
    "amdgpu_gemm",
)


@dataclass(frozen=True, slots=True)
class MatrixUse:
    """It reports the matrix instructions of one kernel.

    summary: Which there are, as text with one line for each kind.
    counts: How many there are of each kind, and of all machine instructions (``all``). It is empty where nothing could
        be counted.
    warnings: What is missed and why, in a sentence or two each.
    """

    summary: str
    counts: Mapping[str, int]
    warnings: tuple[str, ...] = ()


def matrix_use(workload: Workload, target: Target, schedule: Schedule, stages: LoweringStages) -> MatrixUse | None:
    """Report the matrix instructions of ``schedule``, whose lowering gave ``stages``. Returns None where there are none
    and nobody would expect any."""
    kinds = MATRIX_INSTRUCTIONS.get(target.arch) or MATRIX_INSTRUCTIONS.get(target.kind, ())
    operations, wanted = matrix_operations(stages.final), matrix_stages(workload)
    if not kinds or not (operations or wanted):
        return None
    instructions = stages.artifacts.instructions
    total = sum(count for name, count in instructions.items() if name != _NOT_SUMMED)
    counts = {kind.name: kind.count(instructions) for kind in kinds} | {"all": total} if total else {}
    assembly = stages.artifacts.layers[-1].text
    lines = [_line(kind, counts, assembly) for kind in kinds]
    needed = flops(workload)
    ratio = f", {operations / needed:.2f} times the operations of the expression" if needed else ""
    lines.append(f"multiplications and additions that they do: {operations:,}{ratio}")
    warning = _missing(workload, target, schedule, wanted, operations, counts) if wanted else None
    return MatrixUse("\n".join(lines), counts, () if warning is None else (warning,))


_IN_LAYERS: Mapping[str, str] = {
    "ir": r"^\s*(?:warpgroup_|tensor_memory_|block_scaled_)?mma\(",
    "cuda-c++": r"^\s+(?:w?g?mma_m\d+n\d+k\d+\w*|tcgen05_mma_\w+)(?:<[^>]*>)?\(",
    "llvm-ir": r"call .*@llvm\.amdgcn\.mfma",
    "ptx": r"\bwgmma\.mma_async|\bmma\.sync|\btcgen05\.mma\b",
    "sass": rf"{HGMMA.mnemonic}|{UTCMMA.mnemonic}|{HMMA.mnemonic}",
    "assembly": MFMA.mnemonic,
}
"""Language of a layer -> what lines with an operation of matrix instructions match."""


def operations_by_layer(workload: Workload, layers: Sequence[CodeLayer]) -> tuple[tuple[str, int], ...]:
    """Return (title of a layer, lines with a matrix operation) from the expression down, where a line is a product of
    the expression, a statement, a call, or an instruction. The first 0 is where they were lost."""
    expression, *below = layers
    found = [(expression.title, len(matrix_stages(workload)))]
    for layer in below:
        found.append((layer.title, len(re.findall(_IN_LAYERS[layer.language], layer.text, re.MULTILINE))))
    return tuple(found)


def matrix_stages(workload: Workload) -> tuple[Stage, ...]:
    """Return the stages that are products of 16-bit floats and would gain from matrix instructions."""
    return tuple(s for s in inline_stages(workload).stages if _gains(s))


def _gains(stage: Stage) -> bool:
    found = product_of(stage)
    if found is None or not (_is_half(found.left) and _is_half(found.right)):
        return False
    extents = {a.name: a.extent for a in (*stage.axes, *stage.reduce_axes)}
    rows, columns, depth = (
        prod(extents[name] for name in names) for names in (found.rows, found.columns, found.shared)
    )
    return min(rows, columns) > LEAST_SIDE and depth >= LEAST_DEPTH


def _is_half(factor: Expr) -> bool:
    element = uncast(factor)
    return isinstance(element, Load) and element.dtype in (float16, bfloat16)


def _line(kind: MatrixInstruction, counts: Mapping[str, int], assembly: str) -> str:
    """Say how many instructions of one kind there are, and of which shapes and types."""
    head = f"{f'{kind.name}, {kind.description}:':<31}"
    if not counts:
        return f"{head}not counted, no disassembler is installed"
    count, total = counts[kind.name], counts["all"]
    if not count:
        return f"{head}none"
    found = Counter(re.findall(rf"(?<![\w.])({kind.mnemonic})", assembly))
    shapes = ", ".join(f"{n:,} {mnemonic}" for mnemonic, n in sorted(found.items()))
    return f"{head}{count:,} of {total:,} instructions ({100 * count / total:.1f} %): {shapes}"


def _missing(
    workload: Workload,
    target: Target,
    schedule: Schedule,
    wanted: tuple[Stage, ...],
    operations: int,
    counts: Mapping[str, int],
) -> str | None:
    """Return a warning that says which instructions are missed and why; None where none are."""
    found = sum(count for name, count in counts.items() if name != "all")
    names = ", ".join(s.name for s in wanted)
    if not operations or (counts and not found):
        able = [s for s in _able(workload, target, _MATRIX_SKETCHES) if s != schedule.sketch]
        hint = f"{', '.join(able)} could write them" if able else "no sketch writes them for this expression"
        return (
            f"NO MATRIX INSTRUCTIONS: {names}, a product of 16-bit floats, is done by plain arithmetic in "
            f"{schedule.sketch}; {hint}"
        )
    if target.arch == "sm_90a" and counts and not counts[HGMMA.name]:
        return (
            f"NO HGMMA: {names} is multiplied by instructions of warps (HMMA) in {schedule.sketch}, not of warpgroups; "
            f"{_why_no_wgmma(workload, target)}"
        )
    return None


def _able(workload: Workload, target: Target, sketches: tuple[str, ...]) -> list[str]:
    return [name for name in sketches if SKETCHES[name].matches(workload, target)]


def _why_no_wgmma(workload: Workload, target: Target) -> str:
    """Return the rule that kept a workload from the sketches with ``wgmma``, or say that none did."""
    p = gemm_of(workload, several=True)
    if p is None:
        return "it is not one product, or several with one left operand, followed by pointwise functions"
    uneven = [
        f"rows of {t.name} begin every {t.strides[-2] * t.dtype.bytes} bytes" for t in uneven_operands(p) if t.shape[1:]
    ]
    unaligned = f"{' and '.join(uneven)}; TMA needs multiples of {ROW_ALIGNMENT_BYTES}" if uneven else ""
    able = _able(workload, target, _WGMMA_SKETCHES)
    if able and unaligned:
        return f"{unaligned}, so {', '.join(able)} would repack operands first, and was not faster or not tried"
    if min(p.m.extent, p.n.extent) <= LARGEST_SKINNY_M and not p.batch:
        skinny = f"with {min(p.m.extent, p.n.extent)} rows it is reading the other matrix that takes the time"
        return f"{unaligned}; {skinny}" if unaligned else skinny
    if able:
        return f"{', '.join(able)} could use them, and was not faster or not tried"
    return unaligned or "an operand is no tensor with an axis for every index, which TMA needs"
