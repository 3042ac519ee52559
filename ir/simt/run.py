"""Running the launches of a kernel, a chunk of blocks at a time."""

from ...core.errors import KernelFault
from ..bounds import loop_range
from ..buffer import MemoryScope
from ..gpu.grid_barrier import is_cooperative
from ..interpreter.memory import BufferContents
from ..stmt import Allocate, HardwareAxis, Launch, walk_statements
from .context import LaunchContext, LaunchState
from .grid_barrier import check_grid_barrier
from .memory import GlobalMemory
from .ordered_sequence import check_turns
from .setmaxnreg import check_registers
from .statements import statement_closure

CHUNK_THREADS = 8192
"""How many threads run side by side at most. A cluster is never split."""
CHUNK_BYTES = 1 << 26
"""How many bytes their private and shared memory takes at most. A cluster is never split."""
RESIDENT_THREADS = 1 << 19
"""No device runs more threads at once, as it has to in a cooperative launch."""
_SHARED_BYTES, _PRIVATE_BYTES = 80, 9  # about what the interpreter keeps for one element


class LaunchInterpreter:
    """Runs the launches of one kernel on its global memory. ``now`` is the time (see ``happens_before``), which goes on
    from launch to launch."""

    def __init__(self, kernel: str, contents: dict[str, BufferContents]) -> None:
        self.kernel = kernel
        self.memory = {name: GlobalMemory(c) for name, c in contents.items()}
        self.now = 0

    def run(self, launch: Launch) -> None:
        """Run all blocks of ``launch``. Raises KernelFault."""
        context = LaunchContext(self.kernel, launch, frozenset(b.var for b in launch.axes))
        context.shared.update(self.memory)
        for binding in launch.axes:
            context = context.with_variable(binding.var, loop_range(binding.extent))
        body = statement_closure(launch.body, context)
        x, y, z = launch.blocks
        blocks, step = x * y * z, _chunk_blocks(launch)
        if is_cooperative(launch):
            step = blocks
            if blocks * launch.threads > RESIDENT_THREADS:
                what = (
                    f"{blocks} blocks of {launch.threads} threads, which a cooperative launch would have to run at once"
                )
                raise KernelFault(f"kernel {self.kernel}, launch {launch.name}: {what}")
        self.now += 1
        epoch = self.now
        for memory in self.memory.values():
            memory.enter_launch()
        for first in range(0, blocks, step):
            self.now += 1
            state = LaunchState(launch, first, min(step, blocks - first), context.counter[0], epoch, self.now)
            for memory in self.memory.values():
                memory.enter_chunk(state.order)
            for binding in launch.axes:
                state.env[context.slots[binding.var]] = 0 if binding.extent == 1 else state.axis(binding.axis)
            for slot, closure in context.prologue:
                state.env[slot] = closure(state)
            body(state)
            _check_cluster_uses(state, context)
            check_registers(state, context)
            check_turns(state, context)
            check_grid_barrier(state, context)
            self.now = state.order.now


def _check_cluster_uses(state: LaunchState, context: LaunchContext) -> None:
    """Raise where a block ends while another block of its cluster may still use its shared memory."""
    early = state.order.epochs[1] <= state.cluster_uses
    if early.any():
        what = "there is no barrier of the cluster between a use of another block's memory and the end"
        raise context.fault(what, state, int(early.argmax()))


def _chunk_blocks(launch: Launch) -> int:
    """Return how many blocks a chunk has: whole clusters, within the limits of threads and bytes."""
    per_block = 0
    for stmt in walk_statements(launch.body):
        if isinstance(stmt, Allocate):
            shared = stmt.buffer.scope in (MemoryScope.SHARED, MemoryScope.TENSOR)
            per_block += stmt.buffer.span * (_SHARED_BYTES if shared else launch.threads * _PRIVATE_BYTES)
    most = min(CHUNK_THREADS // launch.threads, CHUNK_BYTES // max(per_block, 1))
    cluster = launch.extent(HardwareAxis.CLUSTER)
    return max(most // cluster, 1) * cluster
