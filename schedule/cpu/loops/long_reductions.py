"""Long reductions to few elements are cut into chunks that can run on different threads.

T = sum over r < 1000000 of X[r]      ->      T_chunks[c] = sum over r < 31250 of X[c*31250 + r]
                                              T = sum over c < 32 of T_chunks[c]
"""

from dataclasses import replace
from math import prod

from ....ir.buffer import Buffer
from ....ir.expr import Load, Select, Var
from ....ir.rewrite import fresh_name, substitute
from ....te.workload import Axis, Stage, Workload
from ...loop_nest.nest import COMBINE, identity

CHUNKS_PER_THREAD = 16
ELEMENTS_PER_THREAD = 4
"""With fewer, a thread that takes its elements alone has too few accumulators, or others have no element."""
LONG_CHUNK, WHOLE_VECTORS = 1024, 64
"""Chunks of so many elements are multiples of this: they are whole vectors, and aligned where the first one is."""
LONG_WORK = 1 << 17
"""With fewer points in a reduction, one thread is as fast."""


def chunked(workload: Workload, threads: int) -> Workload:
    """Return ``workload`` with every such reduction in two stages. For one thread it stays as it is."""
    taken = {a.name for s in workload.stages for a in (*s.axes, *s.reduce_axes)}
    taken |= {b.name for b in workload.inputs} | {s.name for s in workload.stages}
    stages: list[Stage] = []
    for stage in workload.stages:
        stages.extend(_two_stages(stage, threads * CHUNKS_PER_THREAD, taken) if _is_long(stage, threads) else (stage,))
    return replace(workload, stages=tuple(stages))


def _is_long(stage: Stage, threads: int) -> bool:
    if stage.reducer is None or threads == 1:
        return False
    elements, longest = prod(stage.tensor.shape), max((a.extent for a in stage.reduce_axes), default=1)
    return (
        elements < ELEMENTS_PER_THREAD * threads
        and elements * prod(a.extent for a in stage.reduce_axes) >= LONG_WORK
        and longest >= 2 * threads * CHUNKS_PER_THREAD
    )


def _two_stages(stage: Stage, chunks: int, taken: set[str]) -> tuple[Stage, Stage]:
    def fresh(base: str) -> str:
        taken.add(name := fresh_name(base, taken))
        return name

    assert stage.reducer is not None
    longest = max(stage.reduce_axes, key=lambda a: a.extent)
    length = -(-longest.extent // chunks)
    if length >= LONG_CHUNK:
        length = -(-length // WHOLE_VECTORS) * WHOLE_VECTORS
    chunks = -(-longest.extent // length)
    dtype = stage.tensor.dtype
    chunk, step = Axis(fresh(f"{longest.name}_chunk"), chunks), Axis(fresh(f"{longest.name}_step"), length)
    inner = [Axis(fresh(f"{a.name}_c"), a.extent) for a in stage.axes]
    at = Var(chunk.name) * length + Var(step.name)
    body = substitute(
        stage.body, {longest.name: at, **{a.name: Var(b.name) for a, b in zip(stage.axes, inner, strict=True)}}
    )
    if chunks * length != longest.extent:
        body = Select(at < longest.extent, body, identity(COMBINE[stage.reducer], dtype))
    tensor = Buffer(fresh(f"{stage.name}_chunks"), (chunks, *stage.tensor.shape), dtype)
    reduced = tuple(step if a is longest else a for a in stage.reduce_axes)
    first = Stage(tensor, (chunk, *inner), body, reduced, stage.reducer)
    over = Axis(fresh(f"{longest.name}_part"), chunks)
    load = Load(tensor, (Var(over.name), *(Var(a.name) for a in stage.axes)))
    return first, Stage(stage.tensor, stage.axes, load, (over,), stage.reducer)
