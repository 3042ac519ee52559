"""A kernel as CUDA C++ that needs no header: one ``extern "C" __global__`` function for each of its launches."""

from collections.abc import Set
from dataclasses import replace

from ....core.errors import CompileError
from ....core.target import Target
from ....ir.bounds import Interval, loop_range
from ....ir.buffer import Buffer, MemoryScope
from ....ir.expr import Expr, Load
from ....ir.gpu.async_copy import CopyAsync
from ....ir.gpu.barrier import WARPGROUP_THREADS
from ....ir.gpu.bulk_copy import BulkCopy, Prefetch
from ....ir.gpu.tma import TmaLoad, TmaPrefetch, TmaStore
from ....ir.rewrite import free_variables, loads_of
from ....ir.stmt import (
    Allocate,
    For,
    HardwareAxis,
    Kernel,
    Launch,
    Operation,
    Seq,
    Stmt,
    Store,
    expressions,
    walk_statements,
)
from ...backend import LaunchConfig, Parameter, Source
from ...c_names import KEYWORDS, ascii_name
from ...shared_memory import SharedPlan, plan_shared
from ..prelude.prelude import FUNCTIONS, prelude
from .access import Ranges
from .arithmetic import MATH_NAMES
from .cluster_loads import awaits_peers
from .function import Function
from .operations import tensor_map, tensor_of
from .statements import emit_statement
from .text import Text
from .types import is_half, stored
from .warp_roles import split_roles

LANGUAGE = "cuda-c++"
_OF_CUDA = frozenset("blockIdx blockDim gridDim threadIdx warpSize uint2 uint4 shared main min max abs".split())
_RESERVED = KEYWORDS | _OF_CUDA | frozenset(FUNCTIONS) | MATH_NAMES
_BLOCKS = {HardwareAxis.GRID_X: "blockIdx.x", HardwareAxis.GRID_Y: "blockIdx.y", HardwareAxis.GRID_Z: "blockIdx.z"}
_MOST_BLOCKS = ((1 << 31) - 1, 65535, 65535)
_MOST_THREADS = 1024
_FIRST_WITH_CLUSTERS = 90
"""Compute capability, times ten, from which on blocks form clusters and launches overlap."""


def emit(kernel: Kernel, target: Target) -> Source:
    """The CUDA C++ of ``kernel``, all of whose top-level statements are launches. Raises CompileError for others."""
    names = [b.name for b in kernel.parameters]
    for name in names:
        if names.count(name) > 1:
            raise CompileError(f"two parameters are called {name}")
    launches = kernel.body.statements if isinstance(kernel.body, Seq) else (kernel.body,)
    texts: list[str] = []
    grids: list[LaunchConfig] = []
    used: set[str] = set()
    taken: set[str] = set()
    for launch in launches:
        if not isinstance(launch, Launch):
            raise CompileError(f"a kernel for {target} is made of launches, not of {type(launch).__name__}")
        name = f"tw_{ascii_name(launch.name)}"
        while name in taken:
            name += "_2"
        taken.add(name)
        try:
            text, grid, functions = _emit_launch(kernel, launch, name, target)
        except RecursionError as error:
            raise CompileError("an expression or loop nest is nested too deeply to be compiled") from error
        texts.append(text)
        grids.append(grid)
        used |= functions
    head = f"// {kernel.name} for {target}: {', '.join(_summary(g) for g in grids)}\n\n"
    whole = head + prelude(used) + "\n".join(texts)
    return Source(LANGUAGE, whole, grids[0].function, parameters_of(kernel), tuple(grids))


def parameters_of(kernel: Kernel) -> tuple[Parameter, ...]:
    """What a call of ``kernel`` is given."""
    roles = (("input", kernel.inputs), ("output", kernel.outputs), ("workspace", kernel.workspace))
    return tuple(Parameter(b.name, role, b.shape, b.dtype) for role, buffers in roles for b in buffers)


def is_approximate(kernel: Kernel) -> bool:
    """Whether every result is rounded to 16 bits, so that cheap functions of float32 will do (see ``arithmetic``)."""
    return all(is_half(b.dtype) for b in kernel.outputs)


def _summary(grid: LaunchConfig) -> str:
    blocks = "x".join(str(n) for n in grid.blocks if n > 1) or "1"
    return f"{grid.function}<<<{blocks}, {grid.threads}, {grid.shared_bytes}>>>"


def _emit_launch(kernel: Kernel, launch: Launch, name: str, target: Target) -> tuple[str, LaunchConfig, set[str]]:
    _check_launch(launch, target)
    launch = replace(launch, body=split_roles(launch))
    buffers = _touched(launch)
    arguments = [(i, b) for i, b in enumerate(kernel.parameters) if b.name in buffers]
    written = {b.name for b in _written(launch.body)}
    plan = plan_shared(launch.body)
    fn = Function(
        name,
        target.arch,
        Ranges(_ranges(launch)),
        frozenset(b.name for _, b in arguments) - written,
        frozenset(launch.evict_first),
        plan.offsets,
        is_approximate(kernel),
        set(_RESERVED) | {name},
    )
    fn.parameters = tuple(b.name for b in kernel.parameters)
    for copy in (s for s in walk_statements(launch.body) if isinstance(s, TmaLoad | TmaStore)):
        described = tensor_map(fn, copy)
        if described not in fn.maps:
            fn.maps[described] = fn.fresh(f"{ascii_name(tensor_of(copy).name)}_map")
    # no const pointer is __restrict__: its loads would pass for constants and move ahead of the wait
    given = [
        f"{stored(b.dtype)}* __restrict__ {fn.name_of(b.name)}"
        if b.name in written
        else f"const {stored(b.dtype)}* {fn.name_of(b.name)}"
        for _, b in arguments
    ]
    given += [f"const __grid_constant__ {fn.use('TensorMap')} {name}" for name in fn.maps.values()]
    fn.last = _last(launch.body)
    fn.awaits_peers = awaits_peers(launch.body)
    fn.meets_in_shared = _meets_in_shared(launch.body, written)
    text = Text()
    _head(fn, text, launch, plan)
    overlaps = _capability(target) >= _FIRST_WITH_CLUSTERS
    if overlaps:
        text.line(f"{fn.use('let_next_launch')}();")
        fn.first = _first(launch.body)
    emit_statement(fn, text, launch.body)
    body = "\n".join(f"  {line}" for line in text.lines)
    signature = f"{_attributes(launch)} {name}(\n    " + ",\n    ".join(given) + ")"
    grid = LaunchConfig(
        name,
        launch.blocks,
        launch.threads,
        launch.extent(HardwareAxis.CLUSTER),
        plan.bytes,
        tuple(i for i, _ in arguments),
        tuple(fn.maps),
        overlaps,
    )
    return f'extern "C" __global__ void {signature} {{\n{body}\n}}\n', grid, fn.used


def _attributes(launch: Launch) -> str:
    cluster = launch.extent(HardwareAxis.CLUSTER)
    least = f", {launch.min_blocks}" if launch.min_blocks else ""
    together = f"__cluster_dims__({cluster}, 1, 1) " if cluster > 1 else ""
    return f"{together}__launch_bounds__({launch.threads}{least})"


def _check_launch(launch: Launch, target: Target) -> None:
    if not 1 <= launch.threads <= _MOST_THREADS:
        raise CompileError(f"launch {launch.name} has {launch.threads} threads a block; at most {_MOST_THREADS}")
    for blocks, most, axis in zip(launch.blocks, _MOST_BLOCKS, "xyz", strict=True):
        if not 1 <= blocks <= most:
            raise CompileError(f"launch {launch.name} has {blocks} blocks along {axis}; at most {most}")
    if launch.extent(HardwareAxis.CLUSTER) > 1 and _capability(target) < _FIRST_WITH_CLUSTERS:
        raise CompileError(f"launch {launch.name} has clusters, {target.arch} has none: sm_90 and later have")


def _capability(target: Target) -> int:
    return int("".join(c for c in target.arch if c.isdigit()) or 0)


def _ranges(launch: Launch) -> dict[str, Interval]:
    loops = {s.var: s.extent for s in walk_statements(launch.body) if isinstance(s, For)}
    return {name: loop_range(n) for name, n in {**{b.var: b.extent for b in launch.axes}, **loops}.items()}


def _head(fn: Function, text: Text, launch: Launch, plan: SharedPlan) -> None:
    """The hardware's numbers under the names of the launch's variables, and the shared buffers."""
    used = free_variables(launch.body)
    cluster = launch.extent(HardwareAxis.CLUSTER)
    for bound in launch.axes:
        if bound.var not in used:
            continue
        source = _BLOCKS.get(bound.axis, "threadIdx.x")
        if bound.extent == 1:
            source = "0"
        elif bound.axis is HardwareAxis.GRID_X and cluster > 1:
            source = f"blockIdx.x / {cluster}"
        elif bound.axis is HardwareAxis.CLUSTER:
            source = f"blockIdx.x % {cluster}"
        elif bound.axis is HardwareAxis.WARP:
            source = "threadIdx.x / 32" if launch.threads < WARPGROUP_THREADS else f"{fn.use('warp_number')}()"
        elif bound.axis is HardwareAxis.LANE:
            source = "threadIdx.x % 32"
        text.line(f"const int {fn.name_of(bound.var)} = {source};")
    if plan.bytes:
        text.line(f"extern __shared__ __align__({plan.alignment}) unsigned char shared[];")
    for buffer in plan.buffers:
        type = stored(buffer.dtype)
        at = plan.offsets[buffer.name]
        text.line(f"{type}* const {fn.name_of(buffer.name)} = reinterpret_cast<{type}*>(shared + {at});")
    if fn.maps:
        with text.block("if (threadIdx.x == 0)") as inside:
            for name in fn.maps.values():
                inside.line(f"{fn.use('prefetch_map')}(&{name});")


def _meets_in_shared(body: Stmt, written: Set[str]) -> bool:
    """Whether nothing in global memory is both written and read. (Preparing arrival barriers orders that itself.)"""
    operations = [s for s in walk_statements(body) if isinstance(s, Operation)]
    read = {load.buffer.name for load in loads_of(body)} | {
        s.source.name for s in operations if isinstance(s, CopyAsync | BulkCopy | TmaLoad)
    }
    return read.isdisjoint(written)


def _last(body: Stmt) -> Stmt | None:
    """The statement that all threads do last, where it stands nowhere else."""
    last = body
    while isinstance(last, Seq | Allocate):
        if isinstance(last, Seq) and not last.statements:
            return None
        last = last.body if isinstance(last, Allocate) else last.statements[-1]
    return last if sum(s is last for s in walk_statements(body)) == 1 else None


def _first(body: Stmt) -> Stmt:
    """The statement that all threads come to ahead of everything that touches global memory."""
    while isinstance(body, Allocate | Seq):
        if isinstance(body, Seq) and not body.statements:
            break
        below = body.statements if isinstance(body, Seq) else (body.body,)
        body = next((s for s in below if _touches_global(s)), below[-1])
    return body


def _touches_global(body: Stmt) -> bool:
    """Whether anything in ``body`` reads or writes global memory; to ask for data does neither."""
    return any(
        (isinstance(s, Store) and s.buffer.scope is MemoryScope.GLOBAL)
        or (
            isinstance(s, Operation)
            and not isinstance(s, Prefetch | TmaPrefetch)
            and any(b.scope is MemoryScope.GLOBAL for b in s.buffers)
        )
        or any(load.buffer.scope is MemoryScope.GLOBAL for load in _loads(*expressions(s)))
        for s in walk_statements(body)
    )


def _touched(launch: Launch) -> set[str]:
    """Names of the global buffers that a launch reads or writes."""
    found: set[str] = set()
    for stmt in walk_statements(launch.body):
        if isinstance(stmt, Store):
            found.add(stmt.buffer.name)
        elif isinstance(stmt, Operation):
            mapped = tensor_of(stmt) if isinstance(stmt, TmaLoad | TmaPrefetch | TmaStore) else None
            found.update(b.name for b in stmt.buffers if b is not mapped)
        found.update(load.buffer.name for load in _loads(*expressions(stmt)))
    return found


def _loads(*roots: Expr) -> list[Load]:
    """The loads in expressions that may share parts, each part looked at once."""
    found, seen, pending = [], set(), list(roots)
    while pending:
        expr = pending.pop()
        if id(expr) not in seen:
            seen.add(id(expr))
            pending.extend(expr.children)
            if isinstance(expr, Load):
                found.append(expr)
    return found


def _written(body: Stmt) -> list[Buffer]:
    """The global buffers that are stored to."""
    found = [s.buffer for s in walk_statements(body) if isinstance(s, Store) and s.buffer.scope is MemoryScope.GLOBAL]
    return found + [s.target for s in walk_statements(body) if isinstance(s, TmaStore)]
