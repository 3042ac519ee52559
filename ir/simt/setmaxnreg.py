"""``setmaxnreg`` in the interpreter of launches: whether the registers that warpgroups take ever become free."""

import numpy as np

from ..gpu.barrier import WARPGROUP_THREADS
from ..gpu.setmaxnreg import SetMaxRegisters
from ..stmt import Launch
from .context import LaunchAction, LaunchContext, LaunchState

REGISTERS = 65_536
"""How many registers a multiprocessor has, on all devices that have ``setmaxnreg``."""


def registers_at_entry(launch: Launch) -> int:
    """Return how many registers a thread of ``launch`` has at first: what the compiler may use with its ``min_blocks``,
    in steps of 8."""
    return min(REGISTERS // (launch.threads * max(launch.min_blocks, 1)) // 8 * 8, 256)


def set_max_registers(stmt: SetMaxRegisters, context: LaunchContext) -> LaunchAction:
    def run(state: LaunchState) -> None:
        leaders = state.warpgroups("a setmaxnreg", context)
        if state.registers is None:
            at_entry = registers_at_entry(state.launch)
            state.registers = np.full(state.threads // WARPGROUP_THREADS, at_entry, dtype=np.int64)
        before = state.registers[leaders // WARPGROUP_THREADS]
        wrong = before > stmt.count if stmt.increase else before < stmt.count
        if wrong.any():
            at = int(wrong.argmax())
            what = "increase" if stmt.increase else "decrease"
            raise context.fault(f"no {what} of registers: from {before[at]} to {stmt.count}", state, int(leaders[at]))
        state.registers[leaders // WARPGROUP_THREADS] = stmt.count

    return run


def check_registers(state: LaunchState, context: LaunchContext) -> None:
    """Raise where the warpgroups of a block wait for more registers than all of them have together."""
    if state.registers is None:
        return
    groups = state.registers.reshape(state.blocks, -1)
    there, taken = registers_at_entry(state.launch) * groups.shape[1], groups.sum(axis=1)
    if (taken > there).any():
        at = int(taken.argmax())
        each = ", ".join(map(str, groups[at].tolist()))
        what = f"a wait that never ends: warpgroups want {each} registers a thread, {there} together are there"
        raise context.fault(what, state, at * state.launch.threads)
