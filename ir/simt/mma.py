"""``mma`` of warps and waves in the interpreter of launches, and fragments in registers."""

from collections.abc import Callable
from functools import cache

import numpy as np

from ..buffer import Buffer
from ..expr import WARP_LANES, Expr
from ..gpu.mma import MMA_ATOMS, Mma
from ..interpreter.memory import Array
from .access import check_awaited, check_private, write_private
from .address import address_of, is_uniform
from .context import LaunchAction, LaunchContext, LaunchState
from .expressions import value_closure
from .memory import PrivateMemory


@cache
def fragment(atom: str, matrix: str) -> tuple[Array, Array]:
    """Return (rows, columns) in a matrix (``a``, ``b`` or ``d``) of every element of every lane: int64[lanes,
    elements]."""
    known = MMA_ATOMS[atom]
    elements = range(known.elements(matrix))
    both = np.array(
        [[known.fragment(matrix, lane, e) for e in elements] for lane in range(known.lanes)], dtype=np.int64
    )
    return both[..., 0], both[..., 1]


def fragment_rows(
    buffer: Buffer,
    indices: tuple[Expr, ...],
    elements: int,
    extent: int,
    context: LaunchContext,
    *,
    accumulators: bool = False,
    reads_only: bool = False,
) -> tuple[PrivateMemory, Callable[[LaunchState], slice]]:
    """Return a closure that gives the rows of a private buffer that a fragment takes. The fragment lies within
    ``extent`` contiguous elements. ``accumulators`` says that a wgmma in flight may accumulate in the very same
    fragment, ``reads_only`` that one may read it too."""
    memory = context.private[buffer.name]
    address = address_of(indices, buffer, context, value_closure)

    def rows(state: LaunchState) -> slice:
        flat = address.flat(state)
        if not is_uniform(flat):
            raise context.fault(f"a fragment of {buffer.name} begins elsewhere in other threads", state, 0, buffer.name)
        first = int(flat)
        if first % extent + elements > extent:
            what = f"{elements} elements from {memory.name(first)} on are out of bounds"
            raise context.fault(what, state, 0, buffer.name)
        found = slice(first, first + elements)
        if state.wgmmas:
            check_awaited(memory, state, context, found, whole=accumulators, reads_only=reads_only)
        return found

    return memory, rows


def mma(stmt: Mma, context: LaunchContext) -> LaunchAction:
    atom = MMA_ATOMS[stmt.atom]
    operands = {"d": (stmt.d, stmt.d_indices), "a": (stmt.a, stmt.a_indices), "b": (stmt.b, stmt.b_indices)}
    fragments = {
        matrix: fragment_rows(buffer, indices, atom.elements(matrix), buffer.shape[-1], context)
        for matrix, (buffer, indices) in operands.items()
    }
    shapes = {"d": (atom.m, atom.n), "a": (atom.m, atom.k), "b": (atom.k, atom.n)}

    def gathered(state: LaunchState, matrix: str) -> Array:
        """Return the matrices of all warps: [warps, rows, columns]."""
        memory, rows_of = fragments[matrix]
        rows = rows_of(state)
        if not all(memory.full[rows]):
            check_private(memory, state, context, rows, state.running((state.threads,)))
        lanes = memory.data[rows].reshape(atom.elements(matrix), -1, atom.lanes).transpose(1, 2, 0)
        whole = np.zeros((state.threads // atom.lanes, *shapes[matrix]), dtype=memory.data.dtype)
        whole[:, *fragment(stmt.atom, matrix)] = lanes
        return whole

    def run(state: LaunchState) -> None:
        if state.order.groups.block % atom.lanes:
            what = f"an mma of {atom.lanes} lanes in blocks that are no multiple of it"
            raise context.fault(what, state, 0)
        who = state.converged(atom.lanes, "a matrix operation", context)
        if atom.lanes == WARP_LANES:
            state.order.synchronise(state.order.warp_level, who)
        d = gathered(state, "d") + gathered(state, "a") @ gathered(state, "b")
        lanes = d[:, *fragment(stmt.atom, "d")]  # [warps, lanes, elements]
        memory, rows_of = fragments["d"]
        write_private(memory, state, rows_of(state), lanes.transpose(2, 0, 1).reshape(-1, state.threads))

    return run
