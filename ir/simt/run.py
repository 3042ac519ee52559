"""Running a launch, chunk after chunk of its blocks."""

from ..bounds import loop_range
from ..buffer import Scope as Storage
from ..memory import Cells
from ..stmt import Allocate, HardwareAxis, Launch, walk_statements
from .memory import GlobalMemory
from .scope import Machine, Scope
from .setmaxnreg import check_registers
from .statements import statement_code

CHUNK_THREADS = 8192
"""How many threads run side by side at most (never less than a cluster)."""
CHUNK_BYTES = 1 << 26
"""What the private and shared memory of those takes at most, likewise."""
_SHARED_BYTES, _PRIVATE_BYTES = 80, 9  # about what the interpreter keeps for one element


class Launches:
    """Runs the launches of one kernel on its global memory. ``now`` is the time (see ``order``), which never stops."""

    def __init__(self, kernel: str, cells: dict[str, Cells]) -> None:
        self.kernel = kernel
        self.memory = {name: GlobalMemory(c) for name, c in cells.items()}
        self.now = 0

    def run(self, launch: Launch) -> None:
        """All blocks of ``launch``; raises KernelFault."""
        scope = Scope(self.kernel, launch)
        scope.shared.update(self.memory)
        for bound in launch.bounds:
            scope = scope.with_variable(bound.var, loop_range(bound.extent))
        body = statement_code(launch.body, scope)
        x, y, z = launch.blocks
        blocks, step = x * y * z, _blocks_at_once(launch)
        self.now += 1
        epoch = self.now
        for memory in self.memory.values():
            memory.enter()
        for first in range(0, blocks, step):
            self.now += 1
            m = Machine(launch, first, min(step, blocks - first), scope.counter[0], epoch, self.now)
            for memory in self.memory.values():
                memory.begin(m.order)
            for bound in launch.bounds:
                m.env[scope.slots[bound.var]] = 0 if bound.extent == 1 else m.axis(bound.axis)
            for slot, code in scope.prologue:
                m.env[slot] = code(m)
            body(m)
            _check_end(m, scope)
            check_registers(m, scope)
            self.now = m.order.now


def _check_end(m: Machine, scope: Scope) -> None:
    """No block may end while another one of its cluster uses its shared memory."""
    early = m.order.epochs[1] <= m.peer_uses
    if early.any():
        what = "the cluster does not meet between a use of another block's memory and the end"
        raise scope.fault(what, m, int(early.argmax()))


def _blocks_at_once(launch: Launch) -> int:
    """Blocks of a chunk: whole clusters, within the limits of threads and bytes."""
    per_block = 0
    for stmt in walk_statements(launch.body):
        if isinstance(stmt, Allocate):
            shared = stmt.buffer.scope is Storage.SHARED
            per_block += stmt.buffer.span * (_SHARED_BYTES if shared else launch.threads * _PRIVATE_BYTES)
    most = min(CHUNK_THREADS // launch.threads, CHUNK_BYTES // max(per_block, 1))
    cluster = launch.extent(HardwareAxis.CLUSTER)
    return max(most // cluster, 1) * cluster
