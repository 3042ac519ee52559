"""The barrier of the grid in the interpreter of launches. All blocks run in lockstep, so that nobody waits; it is
checked that they arrive and wait in turns, and known what that orders."""

from ..gpu.grid_barrier import GridBarrierArrive, GridBarrierWait
from .context import LaunchAction, LaunchContext, LaunchState


def grid_barrier_arrive(stmt: GridBarrierArrive, context: LaunchContext) -> LaunchAction:
    """``LaunchState.grid_arrival`` has the time of the arrival that nobody has waited for yet."""

    def run(state: LaunchState) -> None:
        state.converged(state.threads, "an arrival at the barrier of the grid", context)
        if state.grid_arrival is not None:
            raise context.fault("an arrival at the barrier of the grid that follows another one", state, 0)
        state.order.synchronise(state.order.block_level, None)
        state.order.now += 1
        state.grid_arrival = state.order.now

    return run


def grid_barrier_wait(stmt: GridBarrierWait, context: LaunchContext) -> LaunchAction:
    """What threads did before they arrived happened before what any of them does from here on."""

    def run(state: LaunchState) -> None:
        state.converged(state.threads, "a wait at the barrier of the grid", context)
        if state.grid_arrival is None:
            raise context.fault("a wait that never ends: nobody has arrived at the barrier of the grid", state, 0)
        state.order.synchronise(state.order.block_level, None)
        state.order.synchronise_launch(state.grid_arrival)
        state.grid_arrival = None

    return run


def check_grid_barrier(state: LaunchState, context: LaunchContext) -> None:
    """Raise where a launch ends without a wait for its last arrival: the barrier would not be as the next one needs
    it."""
    if state.grid_arrival is not None:
        raise context.fault("the launch ends between an arrival at the barrier of the grid and its wait", state, 0)
