"""Reductions in memory (``red``) in the interpreter of launches."""

import numpy as np

from ..expr import BinaryOp
from ..gpu.atomic import AtomicReduce
from .address import checked_flat
from .context import LaunchAction, LaunchContext, LaunchState
from .expressions import value_closure
from .race_check import check_atomic, spread

_UFUNCS: dict[BinaryOp, np.ufunc] = {BinaryOp.ADD: np.add, BinaryOp.MIN: np.minimum, BinaryOp.MAX: np.maximum}


def atomic_reduce(stmt: AtomicReduce, context: LaunchContext) -> LaunchAction:
    """Threads reduce in the order of their numbers, which is as good as any."""
    memory = context.shared[stmt.target.name]
    flat_of = checked_flat(stmt.target_indices, memory, context, value_closure)
    value_of, ufunc = value_closure(stmt.value, context), _UFUNCS[stmt.op]

    def run(state: LaunchState) -> None:
        flat, who = spread(state, flat_of(state), 1)
        check_atomic(memory, state, context, flat, who)
        value = np.broadcast_to(np.asarray(value_of(state), memory.data.dtype), (state.threads,))
        active = state.running((state.threads,))
        ufunc.at(memory.data, flat, value if active is None else value[active])

    return run
