"""Matrix instructions of a warp (``mma.sync``), and of a wave of AMD's processors (MFMA), on fragments in registers."""

from dataclasses import dataclass

from ...core.dtypes import DType, bfloat16, float16, float32, float64, tfloat32
from ..buffer import Buffer
from ..expr import WARP_LANES, Expr
from ..stmt import Operation

WAVEFRONT_LANES = 2 * WARP_LANES
"""How many lanes a wave of AMD's processors has: two warps."""


@dataclass(frozen=True, slots=True)
class MmaAtom:
    """A matrix instruction of a whole warp or wave: ``D[m, n] += A[m, k] @ B[k, n]`` on fragments in registers of its
    ``lanes``.

    Every lane holds ``m*k/lanes`` elements of A, ``k*n/lanes`` of B and ``m*n/lanes`` of D; ``fragment`` says which
    (PTX ISA, "Matrix Fragments for mma.m16n8k16" and "for mma.m16n8k8", float64 too; AMD Instinct MI300 ISA, "Matrix
    Arithmetic Instructions").
    """

    name: str
    m: int
    n: int
    k: int
    operand: DType
    accumulator: DType
    lanes: int = WARP_LANES

    def elements(self, matrix: str) -> int:
        """Return how many elements of a matrix (``a``, ``b`` or ``d``) a lane holds."""
        rows, columns = {"a": (self.m, self.k), "b": (self.k, self.n), "d": (self.m, self.n)}[matrix]
        return rows * columns // self.lanes

    def fragment(self, matrix: str, lane: int, element: int) -> tuple[int, int]:
        """Return (row, column) in a matrix (``a``, ``b`` or ``d``) of one element of one lane."""
        if self.lanes == WAVEFRONT_LANES:
            outer, inner = lane % 16, self.elements(matrix) * (lane // 16) + element
            return (outer, inner) if matrix == "a" else (inner, outer)
        group, within = lane // 4, lane % 4
        if matrix == "d":
            return (group + 8 * (element // 2), 2 * within + element % 2)
        together = self.register_elements
        register, low = divmod(element, together)
        if matrix == "a":
            return (group + 8 * (register % 2), together * within + low + self.k // 2 * (register // 2))
        return (together * within + low + self.k // 2 * register, group)

    @property
    def register_elements(self) -> int:
        """How many elements of an operand a register of 32 bits holds; 1 where an element takes several."""
        return max(4 // self.operand.bytes, 1)


WARP_MMA_ATOMS: dict[str, MmaAtom] = {
    "m16n8k16_f16": MmaAtom("m16n8k16_f16", 16, 8, 16, float16, float32),
    "m16n8k16_bf16": MmaAtom("m16n8k16_bf16", 16, 8, 16, bfloat16, float32),
    "m16n8k8_tf32": MmaAtom("m16n8k8_tf32", 16, 8, 8, tfloat32, float32),
    "m16n8k8_f64": MmaAtom("m16n8k8_f64", 16, 8, 8, float64, float64),
}
"""Name -> matrix instruction of a warp. All are there from sm_80 on, but for float64, which is from sm_90 on."""
MFMA_ATOMS: dict[str, MmaAtom] = {
    "wave_m16n16k16_f16": MmaAtom("wave_m16n16k16_f16", 16, 16, 16, float16, float32, WAVEFRONT_LANES),
    "wave_m16n16k16_bf16": MmaAtom("wave_m16n16k16_bf16", 16, 16, 16, bfloat16, float32, WAVEFRONT_LANES),
    "wave_m16n16k4_f32": MmaAtom("wave_m16n16k4_f32", 16, 16, 4, float32, float32, WAVEFRONT_LANES),
}
"""Name -> matrix instruction of a wave. All are there on gfx942 and gfx950."""
MMA_ATOMS: dict[str, MmaAtom] = WARP_MMA_ATOMS | MFMA_ATOMS


@dataclass(frozen=True, slots=True)
class Mma(Operation):
    """``d += a @ b`` by one warp, or by each wave of a block.

    ``a``, ``b`` and ``d`` are register buffers. Each fragment is the ``atom.elements(matrix)`` contiguous elements that
    begin at the indices given, along the last dimension. A wave is two neighbouring warps, the first with an even
    number; an Mma of waves orders nothing else that they do, and all threads of a block must reach it.
    """

    atom: str
    d: Buffer
    d_indices: tuple[Expr, ...]
    a: Buffer
    a_indices: tuple[Expr, ...]
    b: Buffer
    b_indices: tuple[Expr, ...]
