"""The verifier's rules for operations of warpgroups: ``wgmma`` and ``setmaxnreg``."""

from collections.abc import Callable
from typing import Any

from ...core.dtypes import boolean, float32
from ..buffer import Buffer, MemoryScope
from ..expr import Expr
from ..gpu.barrier import WARPGROUP_THREADS
from ..gpu.mma import WARP_MMA_ATOMS
from ..gpu.setmaxnreg import SetMaxRegisters
from ..gpu.wgmma import SWIZZLE_128B, SWIZZLE_128B_ELEMENTS, WGMMA_M, WarpgroupMma, WarpgroupMmaWait
from ..stmt import Operation
from .operands import check_element, check_fragment
from .types import BoundNames, RuleBroken, type_of

MAX_PENDING = 7
"""How many WarpgroupMma statements a wait may leave in flight."""
REGISTERS = range(24, 241, 8)
"""How many registers a SetMaxRegisters may ask for."""


def _warpgroup_mma(stmt: WarpgroupMma, names: BoundNames) -> None:
    if stmt.n % 8 or not 8 <= stmt.n <= 256:
        raise RuleBroken("operation", f"a wgmma with n = {stmt.n}; 8 to 256 in steps of 8 are allowed")
    if stmt.k % 16 or not 16 <= stmt.k <= SWIZZLE_128B_ELEMENTS:
        raise RuleBroken(
            "operation", f"a wgmma with k = {stmt.k}; 16 to {SWIZZLE_128B_ELEMENTS} in steps of 16 are allowed"
        )
    if not 1 <= stmt.valid_rows <= WGMMA_M:
        raise RuleBroken("operation", f"a wgmma of which {stmt.valid_rows} rows count; 1 to {WGMMA_M} are allowed")
    check_element(stmt.d, stmt.d_indices, names, MemoryScope.REGISTER)
    if stmt.d.dtype != float32:
        raise RuleBroken("operation", f"d of a wgmma is {stmt.d.dtype}, not float32")
    check_fragment(stmt.d, stmt.d_indices, stmt.n // 2)
    if isinstance(stmt.accumulates, Expr) and type_of(stmt.accumulates, names) != (boolean, 1):
        raise RuleBroken("operation", "whether a wgmma accumulates is no scalar bool")
    operands = [("b", stmt.b, stmt.b_indices, stmt.n, stmt.b_transposed)]
    if stmt.a.scope is MemoryScope.REGISTER:
        check_element(stmt.a, stmt.a_indices, names, MemoryScope.REGISTER)
        check_fragment(stmt.a, stmt.a_indices, stmt.k // 2)
        if stmt.a_transposed or stmt.valid_rows != WGMMA_M:
            raise RuleBroken(
                "operation", "a of a wgmma is in registers, and is transposed or has rows that do not count"
            )
    else:
        operands.append(("a", stmt.a, stmt.a_indices, WGMMA_M, stmt.a_transposed))
    for operand, buffer, indices, rows, transposed in operands:
        check_element(buffer, indices, names, MemoryScope.SHARED)
        if buffer.dtype not in {a.operand for a in WARP_MMA_ATOMS.values()} or buffer.dtype != stmt.a.dtype:
            raise RuleBroken("operation", f"{operand} of a wgmma is {buffer.dtype}")
        if (
            buffer.layout is None
            or buffer.layout.swizzle != SWIZZLE_128B
            or buffer.strides[-2:] != (SWIZZLE_128B_ELEMENTS, 1)
        ):
            raise RuleBroken("operation", f"{operand} of a wgmma does not lie as {SWIZZLE_128B} in lines of 128 bytes")
        (_check_transposed if transposed else _check_k_major)(buffer, rows, stmt.k)


def _check_k_major(buffer: Buffer, rows: int, k: int) -> None:
    if buffer.shape[-2] < rows or not k <= buffer.shape[-1] <= SWIZZLE_128B_ELEMENTS:
        raise RuleBroken("operation", f"{rows} rows of {k} do not fit {buffer.name} {list(buffer.shape)}")


def _check_transposed(buffer: Buffer, rows: int, k: int) -> None:
    tiles = -(-rows // SWIZZLE_128B_ELEMENTS)
    there = buffer.shape[-3] if len(buffer.shape) > 2 else 1
    if there < tiles or buffer.shape[-2] < k or buffer.shape[-1] != SWIZZLE_128B_ELEMENTS:
        raise RuleBroken(
            "operation",
            f"{k} lines of {rows} rows do not fit {buffer.name} {list(buffer.shape)}: "
            f"{tiles} times {k} of {SWIZZLE_128B_ELEMENTS} are needed",
        )
    if tiles > 1 and buffer.strides[-3] % (8 * SWIZZLE_128B_ELEMENTS):
        raise RuleBroken("operation", f"the {SWIZZLE_128B_ELEMENTS} next rows of {buffer.name} begin amid 8 lines")


def _warpgroup_mma_wait(stmt: WarpgroupMmaWait, names: BoundNames) -> None:
    if not 0 <= stmt.pending <= MAX_PENDING:
        raise RuleBroken("operation", f"a wait for all but {stmt.pending} wgmmas; 0 to {MAX_PENDING} are allowed")
    if stmt.after is not None and type_of(stmt.after, names) != (float32, 1):
        raise RuleBroken("operation", "what is computed ahead of a wait for wgmmas is no float32 scalar")


def _set_max_registers(stmt: SetMaxRegisters, names: BoundNames) -> None:
    if stmt.count not in REGISTERS:
        raise RuleBroken("operation", f"{stmt.count} registers; 24 to 240 in steps of 8 are allowed")
    if names.launch is not None and names.launch.threads % WARPGROUP_THREADS:
        raise RuleBroken("warps", f"a setmaxnreg in blocks of {names.launch.threads} threads, not whole warpgroups")


WARPGROUP_RULES: dict[type[Operation], Callable[[Any, BoundNames], None]] = {
    WarpgroupMma: _warpgroup_mma,
    WarpgroupMmaWait: _warpgroup_mma_wait,
    SetMaxRegisters: _set_max_registers,
}
"""What each operation of a warpgroup takes."""
