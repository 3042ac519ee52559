"""Emits a kernel as CUDA C++ that needs no header, with one ``extern "C" __global__`` function for each launch.

A function for sm_90 and later begins like this, so that launches overlap (programmatic dependent launch):

    griddepcontrol_launch_dependents();   // the next launch may start
    ...                                   // barriers are initialised, data is prefetched
    griddepcontrol_wait();                // earlier launches have ended
    ...                                   // global memory is read and written
"""

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import replace
from math import prod

from ....core.errors import CompileError
from ....core.target import Target
from ....ir.bounds import Interval, loop_range
from ....ir.buffer import Buffer, MemoryScope
from ....ir.dynamic import with_dynamic_strides
from ....ir.expr import Expr, Load, distinct_nodes, index
from ....ir.global_writes import globals_written
from ....ir.gpu.async_copy import CopyAsync
from ....ir.gpu.barrier import WARPGROUP_THREADS
from ....ir.gpu.bulk_copy import BulkCopy, Prefetch
from ....ir.gpu.grid_barrier import is_cooperative
from ....ir.gpu.mbarrier import MbarrierArrive
from ....ir.gpu.tma import TmaLoad, TmaPrefetch, TmaStore
from ....ir.prologue import prologue_places
from ....ir.rewrite import free_variables, loads_of
from ....ir.stmt import (
    GRID_AXES,
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
from ...backend import LaunchConfig, Origin, Source, parameters_of
from ...c_names import KEYWORDS, ascii_name
from ...shared_memory import SharedMemoryPlan, plan_shared_memory
from ..prelude.prelude import FUNCTIONS, prelude
from .access import IndexRanges
from .arithmetic import MATH_NAMES
from .cluster_loads import awaits_cluster_loads
from .function import EmittedFunction
from .statements import emit_statement
from .text import CppText
from .tma import global_tensor, tensor_map
from .types import is_half, storage_type
from .warp_specialisation import specialise_warps

LANGUAGE = "cuda-c++"
_CUDA_NAMES = frozenset(
    "blockIdx blockDim gridDim threadIdx warpSize uint2 uint4 shared grid_barrier_phase main min max abs".split()
)
_RESERVED = KEYWORDS | _CUDA_NAMES | frozenset(FUNCTIONS) | MATH_NAMES
_GRID = {HardwareAxis.GRID_X: "blockIdx.x", HardwareAxis.GRID_Y: "blockIdx.y", HardwareAxis.GRID_Z: "blockIdx.z"}
_MOST_BLOCKS = ((1 << 31) - 1, 65535, 65535)
_MOST_THREADS = 1024
_HOPPER = 90
"""From this compute capability (times ten) on there are clusters and programmatic dependent launch."""


def emit(kernel: Kernel, target: Target) -> Source:
    """Emit ``kernel``. Raises CompileError where a top-level statement of it is no launch."""
    kernel = with_dynamic_strides(kernel)
    names = [b.name for b in kernel.parameters]
    for name in names:
        if names.count(name) > 1:
            raise CompileError(f"two parameters are called {name}")
    launches = kernel.body.statements if isinstance(kernel.body, Seq) else (kernel.body,)
    first = prologue_places(kernel)
    texts: list[CppText] = []
    configs: list[LaunchConfig] = []
    used: dict[str, list[Stmt]] = {}
    taken: set[str] = set()
    for n, launch in enumerate(launches):
        if not isinstance(launch, Launch):
            raise CompileError(f"a kernel for {target} is made of launches, not of {type(launch).__name__}")
        name = f"tw_{ascii_name(launch.name)}"
        while name in taken:
            name += "_2"
        taken.add(name)
        try:
            text, config, functions = _emit_launch(kernel, launch, name, target)
        except RecursionError as error:
            raise CompileError("an expression or loop nest is nested too deeply to be compiled") from error
        texts.append(text)
        configs.append(replace(config, in_prologue=n in first))
        for function, callers in functions.items():
            used[function] = used.get(function, []) + callers
    lines: list[tuple[str, tuple[Origin, ...]]] = [
        (f"// {kernel.name} for {target}: {', '.join(_summary(c) for c in configs)}", (kernel,)),
        ("", ()),
        *_prelude_lines(used),
    ]
    for n, text in enumerate(texts):
        lines += [("", ())] * (n > 0)
        lines += [(line, () if s is None else (s,)) for line, s in zip(text.lines, text.origins, strict=True)]
    whole = "\n".join(line for line, _ in lines) + "\n"
    origins = tuple(found for _, found in lines)
    return Source(
        *(LANGUAGE, whole, configs[0].function, parameters_of(kernel), tuple(configs)),
        dynamic=kernel.dynamic,
        origins=origins,
    )


def _prelude_lines(used: Mapping[str, Sequence[Stmt]]) -> Iterator[tuple[str, tuple[Origin, ...]]]:
    """Return the lines of the functions that are called, each with the statements that call it, also through others."""
    functions = prelude(used)
    callers = {name: list(used.get(name, ())) for name in functions}
    for name in reversed(functions):  # what calls a function stands behind it
        for needed in FUNCTIONS[name].needs:
            callers[needed] += callers[name]
    for name, text in functions.items():
        origins = tuple({id(s): s for s in callers[name]}.values())
        yield from ((line, origins if line else ()) for line in text.removesuffix("\n").split("\n"))


def uses_fast_math(kernel: Kernel) -> bool:
    """Return whether every result is rounded to 16 bits, so that approximations of float32 are exact enough (see
    ``arithmetic``)."""
    return all(is_half(b.dtype) for b in kernel.outputs)


def _summary(config: LaunchConfig) -> str:
    blocks = "x".join(str(n) for n in config.blocks if n > 1) or "1"
    return f"{config.function}<<<{blocks}, {config.threads}, {config.shared_bytes}>>>"


def _emit_launch(
    kernel: Kernel, launch: Launch, name: str, target: Target
) -> tuple[CppText, LaunchConfig, dict[str, list[Stmt]]]:
    """Emit the function of one launch. Returns its text, how it is launched, and the functions of the prelude it
    uses, with the statements that use each."""
    _check_launch(launch, target)
    cooperative = is_cooperative(launch)
    whole, launch = launch, replace(launch, body=specialise_warps(launch, kernel.ranges))
    buffers = _accessed(launch)
    arguments = [(i, b) for i, b in enumerate(kernel.parameters) if b.name in buffers]
    written = {b.name for s in walk_statements(launch.body) for b in globals_written(s)}
    fn = EmittedFunction(
        target.arch,
        whole,
        IndexRanges({**kernel.ranges, **_ranges(launch)}),
        read_only=frozenset(b.name for _, b in arguments) - written,
        evict_first=frozenset(launch.evict_first),
        prefetch_lines=frozenset(launch.prefetch_lines),
        fast_math=uses_fast_math(kernel),
        taken=set(_RESERVED) | {name},
        parameters=kernel.parameters,
        last=_last(launch.body),
        cluster_syncs_shared_only=_exchanges_no_global_data(launch.body, written),
        awaits_cluster_loads=awaits_cluster_loads(launch.body),
        arrives_remotely=any(
            isinstance(s, MbarrierArrive) and s.rank is not None for s in walk_statements(launch.body)
        ),
    )
    free = free_variables(launch.body)
    extents = tuple(d.var for d in kernel.dynamic if d.var in free)
    signature = _signature(fn, launch, name, [b for _, b in arguments], written, extents)
    plan = plan_shared_memory(launch.body)
    text = CppText()
    _declare_indices(fn, text, launch)
    _declare_shared(fn, text, plan, launch)
    _prefetch_tensor_maps(fn, text)
    dependent_launch = _capability(target) >= _HOPPER
    if dependent_launch:
        text.line(f"{fn.use('griddepcontrol_launch_dependents')}();")
        fn.first = _first_global_access(launch.body)
    if cooperative:
        text.line("unsigned grid_barrier_phase = 0;")
    emit_statement(fn, text, launch.body)
    function = CppText()
    for line in f'extern "C" __global__ void {signature} {{'.split("\n"):
        function.line(line)
    function.append(text, "  ")
    function.line("}")
    function.note_origin(0, whole)
    config = LaunchConfig(
        name,
        launch.blocks,
        launch.threads,
        launch.extent(HardwareAxis.CLUSTER),
        plan.bytes,
        tuple(i for i, _ in arguments),
        tuple(fn.tensor_maps),
        dependent_launch,
        block_counts=_block_counts(launch),
        takes_extents=extents,
        cooperative=cooperative,
    )
    return function, config, fn.used


def _block_counts(launch: Launch) -> tuple[Expr, Expr, Expr] | None:
    """Return how many blocks a call has along x, y and z, where its grid is dynamic."""
    if all(b.count is None for b in launch.axes):
        return None
    counts = {b.axis: b.count if b.count is not None else index(b.extent) for b in launch.axes}
    x, y, z = (counts.get(axis, index(1)) for axis in GRID_AXES)
    return (x * launch.extent(HardwareAxis.CLUSTER), y, z)


def _signature(
    fn: EmittedFunction, launch: Launch, name: str, arguments: list[Buffer], written: Set[str], extents: Sequence[str]
) -> str:
    """Return the attributes, name and parameters of the function: pointers to buffers, the dynamic ``extents`` that the
    function reads, then tensor maps."""
    for copy in (s for s in walk_statements(launch.body) if isinstance(s, TmaLoad | TmaStore)):
        described = tensor_map(fn, copy)
        if described not in fn.tensor_maps:
            fn.tensor_maps[described] = fn.fresh(f"{ascii_name(global_tensor(copy).name)}_map")
    # A const pointer is not __restrict__: its loads would pass for loads of constants, which the compiler moves ahead
    # of griddepcontrol.wait. Nor is a pointer to what blocks exchange at the barrier of the grid, ahead of which the
    # compiler could load what it takes for the block's own.
    exchanged = {load.buffer.name for load in loads_of(launch.body)} if is_cooperative(launch) else set()
    parameters = [
        f"{storage_type(b.dtype)}* {'' if b.name in exchanged else '__restrict__ '}{fn.name_of(b.name)}"
        if b.name in written
        else f"const {storage_type(b.dtype)}* {fn.name_of(b.name)}"
        for b in arguments
    ]
    parameters += [f"const int {fn.name_of(extent)}" for extent in extents]
    parameters += [f"const __grid_constant__ {fn.use('TensorMap')} {map_name}" for map_name in fn.tensor_maps.values()]
    return f"{_attributes(launch)} {name}(\n    " + ",\n    ".join(parameters) + ")"


def _attributes(launch: Launch) -> str:
    cluster = launch.extent(HardwareAxis.CLUSTER)
    min_blocks = f", {launch.min_blocks}" if launch.min_blocks else ""
    dimensions = f"__cluster_dims__({cluster}, 1, 1) " if cluster > 1 else ""
    return f"{dimensions}__launch_bounds__({launch.threads}{min_blocks})"


def _check_launch(launch: Launch, target: Target) -> None:
    if not 1 <= launch.threads <= _MOST_THREADS:
        raise CompileError(f"launch {launch.name} has {launch.threads} threads a block; at most {_MOST_THREADS}")
    for blocks, most, axis in zip(launch.blocks, _MOST_BLOCKS, "xyz", strict=True):
        if not 1 <= blocks <= most:
            raise CompileError(f"launch {launch.name} has {blocks} blocks along {axis}; at most {most}")
    if launch.extent(HardwareAxis.CLUSTER) > 1 and _capability(target) < _HOPPER:
        raise CompileError(f"launch {launch.name} has clusters, {target.arch} has none: sm_90 and later have")
    room = target.threads * max(launch.min_blocks, 1)
    if is_cooperative(launch) and prod(launch.blocks) > room:
        blocks = prod(launch.blocks)
        raise CompileError(f"launch {launch.name} has {blocks} blocks that meet; {target} has room for {room} at once")


def _capability(target: Target) -> int:
    return int("".join(c for c in target.arch if c.isdigit()) or 0)


def _ranges(launch: Launch) -> dict[str, Interval]:
    loops = {s.var: s.extent for s in walk_statements(launch.body) if isinstance(s, For)}
    return {name: loop_range(n) for name, n in {**{b.var: b.extent for b in launch.axes}, **loops}.items()}


def _declare_indices(fn: EmittedFunction, text: CppText, launch: Launch) -> None:
    """Declare the launch's variables: the indices of CTA, cluster rank, warp, lane and thread."""
    used = free_variables(launch.body)
    cluster = launch.extent(HardwareAxis.CLUSTER)
    for bound in launch.axes:
        if bound.var not in used:
            continue
        source = _GRID.get(bound.axis, "threadIdx.x")
        if bound.extent == 1:
            source = "0"
        elif bound.axis is HardwareAxis.GRID_X and cluster > 1:
            source = f"blockIdx.x / {cluster}"
        elif bound.axis is HardwareAxis.CLUSTER:
            source = f"blockIdx.x % {cluster}"
        elif bound.axis is HardwareAxis.WARP:
            source = "threadIdx.x / 32" if launch.threads < WARPGROUP_THREADS else f"{fn.use('warp_index')}()"
        elif bound.axis is HardwareAxis.LANE:
            source = "threadIdx.x % 32"
        text.line(f"const int {fn.name_of(bound.var)} = {source};")


def _declare_shared(fn: EmittedFunction, text: CppText, plan: SharedMemoryPlan, launch: Launch) -> None:
    """Declare dynamic shared memory, and a pointer into it for each shared buffer."""
    if plan.bytes:
        text.line(f"extern __shared__ __align__({plan.alignment}) unsigned char shared[];")
    allocations = {s.buffer.name: s for s in walk_statements(launch.body) if isinstance(s, Allocate)}
    for buffer in plan.buffers:
        type = storage_type(buffer.dtype)
        at, name = plan.offsets[buffer.name], fn.name_of(buffer.name)
        text.line(f"{type}* const {name} = reinterpret_cast<{type}*>(shared + {at});", allocations[buffer.name])


def _prefetch_tensor_maps(fn: EmittedFunction, text: CppText) -> None:
    if fn.tensor_maps:
        with text.block("if (threadIdx.x == 0)") as inside:
            for name in fn.tensor_maps.values():
                inside.line(f"{fn.use('prefetch_tensormap')}(&{name});")


def _exchanges_no_global_data(body: Stmt, written: Set[str]) -> bool:
    """Return whether no buffer in global memory is both written and read. (``mbarrier.init`` has a fence of its
    own.)"""
    operations = [s for s in walk_statements(body) if isinstance(s, Operation)]
    read = {load.buffer.name for load in loads_of(body)} | {
        s.source.name for s in operations if isinstance(s, CopyAsync | BulkCopy | TmaLoad)
    }
    return read.isdisjoint(written)


def _last(body: Stmt) -> Stmt | None:
    """Return the statement that ends the launch for all threads; None where it has another occurrence."""
    last = body
    while isinstance(last, Seq | Allocate):
        if isinstance(last, Seq) and not last.statements:
            return None
        last = last.body if isinstance(last, Allocate) else last.statements[-1]
    return last if sum(s is last for s in walk_statements(body)) == 1 else None


def _first_global_access(body: Stmt) -> Stmt:
    """Return the outermost statement, reached by all threads, ahead of which nothing accesses global memory."""
    while isinstance(body, Allocate | Seq):
        if isinstance(body, Seq) and not body.statements:
            break
        below = body.statements if isinstance(body, Seq) else (body.body,)
        body = next((s for s in below if _accesses_global(s)), below[-1])
    return body


def _accesses_global(body: Stmt) -> bool:
    """Return whether anything in ``body`` reads or writes global memory. A prefetch does neither."""
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


def _accessed(launch: Launch) -> set[str]:
    """Return the names of the buffers that a launch takes pointers to. What only TMA accesses is not among them."""
    found: set[str] = set()
    for stmt in walk_statements(launch.body):
        if isinstance(stmt, Store):
            found.add(stmt.buffer.name)
        elif isinstance(stmt, Operation):
            mapped = global_tensor(stmt) if isinstance(stmt, TmaLoad | TmaPrefetch | TmaStore) else None
            found.update(b.name for b in stmt.buffers if b is not mapped)
        found.update(load.buffer.name for load in _loads(*expressions(stmt)))
    return found


def _loads(*roots: Expr) -> list[Load]:
    """Return the loads in expressions, in which each shared part is visited once."""
    return [expr for expr in distinct_nodes(*roots) if isinstance(expr, Load)]
