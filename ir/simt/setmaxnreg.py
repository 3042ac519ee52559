"""Registers that warpgroups give up and take, in the interpreter of launches: whether there are ever enough."""

from collections.abc import Callable

import numpy as np

from ..gpu import WARPGROUP_THREADS, SetMaxRegisters
from ..stmt import Launch
from .scope import Machine, Scope

REGISTERS = 65_536
"""Of a multiprocessor, on all devices whose warpgroups may change theirs."""


def at_entry(launch: Launch) -> int:
    """Registers of a thread of ``launch`` that wishes for so many blocks: what the compiler may use, in steps of 8."""
    return min(REGISTERS // (launch.threads * max(launch.min_blocks, 1)) // 8 * 8, 256)


def set_max_registers(stmt: SetMaxRegisters, scope: Scope) -> Callable[[Machine], None]:
    def run(m: Machine) -> None:
        leaders = m.warpgroups("a change of registers", scope)
        if m.registers is None:
            m.registers = np.full(m.threads // WARPGROUP_THREADS, at_entry(m.launch), dtype=np.int64)
        before = m.registers[leaders // WARPGROUP_THREADS]
        wrong = before > stmt.count if stmt.increase else before < stmt.count
        if wrong.any():
            at = int(wrong.argmax())
            what = "increase" if stmt.increase else "decrease"
            raise scope.fault(f"no {what} of registers: from {before[at]} to {stmt.count}", m, int(leaders[at]))
        m.registers[leaders // WARPGROUP_THREADS] = stmt.count

    return run


def check_registers(m: Machine, scope: Scope) -> None:
    """Raise where warpgroups of a block wait for more registers than all of them have."""
    if m.registers is None:
        return
    groups = m.registers.reshape(m.blocks, -1)
    there, taken = at_entry(m.launch) * groups.shape[1], groups.sum(axis=1)
    if (taken > there).any():
        at = int(taken.argmax())
        each = ", ".join(map(str, groups[at].tolist()))
        what = f"a wait that never ends: warpgroups want {each} registers a thread, {there} together are there"
        raise scope.fault(what, m, at * m.launch.threads)
