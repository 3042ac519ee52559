"""The verifier's rules for matrix instructions of warps and waves: ``mma``, ``ldmatrix``, ``stmatrix``, MFMA."""

from collections.abc import Callable
from typing import Any

from ..buffer import Buffer, MemoryScope
from ..expr import Expr
from ..gpu.ldmatrix import LoadMatrix, StoreMatrix
from ..gpu.mma import MMA_ATOMS, Mma
from ..stmt import Operation
from .operands import check_aligned, check_contiguous, check_element, check_fragment
from .types import BoundNames, RuleBroken


def _mma(stmt: Mma, names: BoundNames) -> None:
    atom = MMA_ATOMS.get(stmt.atom)
    if atom is None:
        raise RuleBroken("operation", f"no matrix instruction {stmt.atom}; known: {', '.join(MMA_ATOMS)}")
    matrices = (
        ("d", stmt.d, stmt.d_indices, atom.accumulator),
        ("a", stmt.a, stmt.a_indices, atom.operand),
        ("b", stmt.b, stmt.b_indices, atom.operand),
    )
    for matrix, buffer, indices, dtype in matrices:
        check_element(buffer, indices, names, MemoryScope.REGISTER)
        if buffer.dtype != dtype:
            raise RuleBroken("operation", f"{matrix} of {stmt.atom} is {buffer.dtype}, not {dtype}")
        check_fragment(buffer, indices, atom.elements(matrix))


def _load_matrix(stmt: LoadMatrix, names: BoundNames) -> None:
    check_element(stmt.target, stmt.target_indices, names, MemoryScope.REGISTER)
    check_element(stmt.source, stmt.source_indices, names, MemoryScope.SHARED)
    _check_matrices(stmt.count, stmt.target, stmt.source, stmt.source_indices)


def _store_matrix(stmt: StoreMatrix, names: BoundNames) -> None:
    check_element(stmt.target, stmt.target_indices, names, MemoryScope.SHARED)
    check_element(stmt.source, stmt.source_indices, names, MemoryScope.REGISTER)
    _check_matrices(stmt.count, stmt.source, stmt.target, stmt.target_indices)


def _check_matrices(count: int, registers: Buffer, shared: Buffer, rows: tuple[Expr, ...]) -> None:
    if count not in (1, 2, 4):
        raise RuleBroken("operation", f"{count} matrices are moved at once, not 1, 2 or 4")
    if registers.dtype != shared.dtype or registers.dtype.bytes != 2:
        raise RuleBroken("operation", f"matrices of {shared.dtype} as {registers.dtype} in registers; 16 bits only")
    if 2 * count > registers.elements:
        raise RuleBroken("operation", f"{2 * count} elements do not fit {registers.name} {list(registers.shape)}")
    check_contiguous(shared, 8)
    check_aligned(shared, rows, 16)


MMA_RULES: dict[type[Operation], Callable[[Any, BoundNames], None]] = {
    Mma: _mma,
    LoadMatrix: _load_matrix,
    StoreMatrix: _store_matrix,
}
"""What each matrix operation of a warp takes."""
