"""Lays out local buffers. Small ones live on the stack; large ones have fixed offsets in the thread's scratch
block."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from ...core.errors import CompileError
from ...ir.stmt import Allocate, Stmt, walk_statements

LARGEST_ON_STACK_BYTES = 16 * 1024
STACK_BYTES = 128 * 1024
"""All stack buffers of a kernel together take at most so many bytes; the stacks of threads are far larger."""
SCRATCH_BYTES = 1 << 30
_LINE = 64


@dataclass(frozen=True, slots=True)
class FrameLayout:
    """Where the local buffers of a kernel live.

    ``offsets`` maps the name of a buffer to its offset in bytes in the scratch block; a buffer that is not there is on
    the stack. No two buffers share memory, so that an outlined loop and its caller can both use the scratch block of
    one thread.
    """

    offsets: Mapping[str, int]
    scratch_bytes: int


def plan_frame_layout(kernel_body: Stmt, tiles: Collection[str] = ()) -> FrameLayout:
    """Plan the layout of the local buffers of a kernel. ``tiles`` names buffers that are registers, not memory.
    Raises CompileError when a thread would need more than ``SCRATCH_BYTES``."""
    buffers = {s.buffer.name: s.buffer for s in walk_statements(kernel_body) if isinstance(s, Allocate)}
    for name in tiles:
        del buffers[name]
    offsets: dict[str, int] = {}
    stack, scratch = 0, 0
    for name, buffer in buffers.items():
        size = -(-buffer.bytes // _LINE) * _LINE
        if size <= LARGEST_ON_STACK_BYTES and stack + size <= STACK_BYTES:
            stack += size
            continue
        offsets[name] = scratch
        scratch += size
    if scratch > SCRATCH_BYTES:
        raise CompileError(f"local buffers need {scratch} bytes for each thread; allowed: {SCRATCH_BYTES}")
    return FrameLayout(offsets, scratch)
