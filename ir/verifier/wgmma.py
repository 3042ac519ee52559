"""The verifier's rules for operations of warpgroups: ``wgmma`` and ``setmaxnreg``."""

from collections.abc import Callable
from typing import Any

from ...core.dtypes import INDEX, boolean, float32
from ..buffer import Buffer, MemoryScope
from ..expr import Expr
from ..gpu.barrier import WARPGROUP_THREADS
from ..gpu.setmaxnreg import SetMaxRegisters
from ..gpu.wgmma import WGMMA_ATOMS, WGMMA_M, WarpgroupMma, WarpgroupMmaWait
from ..stmt import Operation
from .operands import check_element, check_fragment, check_matrix_operand
from .types import BoundNames, RuleBroken, type_of

MAX_PENDING = 7
"""How many WarpgroupMma statements a wait may leave in flight."""
REGISTERS = range(24, 241, 8)
"""How many registers a SetMaxRegisters may ask for."""


def _warpgroup_mma(stmt: WarpgroupMma, names: BoundNames) -> None:
    atom = WGMMA_ATOMS.get((stmt.a.dtype.name, stmt.b.dtype.name))
    if atom is None:
        raise RuleBroken("operation", f"a wgmma of {stmt.a.dtype} and {stmt.b.dtype}, which have none")
    if not atom.takes_columns(stmt.n):
        steps = "in steps of 16, and 8, 24" if atom.a.is_integer else "in steps of 8"
        raise RuleBroken("operation", f"a wgmma with n = {stmt.n}; 8 to 256 {steps} are allowed")
    if stmt.k % atom.k or not atom.k <= stmt.k <= atom.line:
        allowed = f"{atom.k} to {atom.line} in steps of {atom.k}"
        raise RuleBroken("operation", f"a wgmma with k = {stmt.k}; {allowed} are allowed")
    if (stmt.a_transposed or stmt.b_transposed) and not atom.transposes:
        raise RuleBroken("operation", f"an operand of {stmt.a.dtype} that is transposed; only 16-bit floats may be")
    for what, count, most in (("rows", stmt.valid_rows, WGMMA_M), ("columns", stmt.valid_columns, stmt.n)):
        if isinstance(count, Expr):
            if type_of(count, names) != (INDEX, 1):
                raise RuleBroken("operation", f"how many {what} of a wgmma count is no scalar of the index type")
        elif count is not None and not 1 <= count <= most:
            raise RuleBroken("operation", f"a wgmma of which {count} {what} count; 1 to {most} are allowed")
    check_element(stmt.d, stmt.d_indices, names, MemoryScope.REGISTER)
    if stmt.d.dtype != atom.accumulator:
        raise RuleBroken("operation", f"d of a wgmma is {stmt.d.dtype}, not {atom.accumulator}")
    check_fragment(stmt.d, stmt.d_indices, stmt.n // 2)
    if isinstance(stmt.accumulates, Expr) and type_of(stmt.accumulates, names) != (boolean, 1):
        raise RuleBroken("operation", "whether a wgmma accumulates is no scalar bool")
    if stmt.b_leading_lines is not None and not stmt.b_transposed:
        raise RuleBroken("operation", "b of a wgmma has leading lines and is not transposed")
    operands: list[tuple[str, Buffer, tuple[Expr, ...], int, bool, int | None]]
    operands = [("b", stmt.b, stmt.b_indices, stmt.n, stmt.b_transposed, stmt.b_leading_lines)]
    if stmt.a.scope is MemoryScope.REGISTER:
        check_element(stmt.a, stmt.a_indices, names, MemoryScope.REGISTER)
        check_fragment(stmt.a, stmt.a_indices, stmt.k // 2)
        if stmt.a_transposed or stmt.valid_rows != WGMMA_M or atom.fragment is None:
            raise RuleBroken(
                "operation",
                "a of a wgmma is in registers, and is transposed, has rows that do not count or elements "
                "that are neither 16-bit floats nor TF32",
            )
    else:
        operands.append(("a", stmt.a, stmt.a_indices, WGMMA_M, stmt.a_transposed, None))
    for operand, buffer, indices, rows, transposed, leading in operands:
        what = f"{operand} of a wgmma"
        check_matrix_operand(what, buffer, indices, rows, stmt.k, atom.line, transposed, names, leading)


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
