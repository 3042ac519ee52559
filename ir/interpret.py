"""The interpreter: runs a kernel on NumPy arrays and finds what a compiled kernel would do silently.

A kernel is first turned into closures (one per node, so that nothing is looked at twice), then run. Iterations of a
parallel loop run in order, while a ``Watch`` sees whether they could have run in any other. What launches do is in
``simt``.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..core.errors import InvalidParameter, KernelFault
from .bounds import loop_range
from .buffer import Buffer
from .cpu import PROCESSOR_OPERATIONS, written_by
from .interpret_access import scalar_store, vector_store
from .interpret_cpu import OPERATIONS
from .interpret_expr import expr_code
from .interpret_scope import Code, Env, Scope
from .memory import Array, Cells, Watch
from .simt.run import Launches
from .stmt import Allocate, For, If, Kernel, LoopKind, Seq, Stmt, Store, walk_statements
from .verify import verify


def interpret(kernel: Kernel, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """The outputs of ``kernel`` by name, in their buffers' shapes and dtypes.

    ``inputs`` holds one array per input buffer, of its shape and dtype. Runs kernels before and after the passes:
    vectorised and unrolled loops run like serial ones. float16 and bfloat16 are computed in float32 and rounded at
    stores and casts; integers wrap; casts from float to integer saturate.

    Raises InvalidKernel for a kernel the verifier refuses, InvalidParameter for inputs that do not fit it, and
    KernelFault for an access out of bounds, a read of an element never written (in an output, the workspace or an
    allocation, whose elements are forgotten at every entry), an output element left unwritten, two iterations of a
    parallel loop touching one element where one of them writes, and an integer divided by zero. In launches also for
    two threads touching one element where one of them writes and nothing orders them, barriers and operations of whole
    warps that only a part of a group reaches, waits without end, misaligned copies, and elements touched while an
    asynchronous copy of them is under way; those copies arrive as late as they can.
    """
    verify(kernel)
    scope = Scope(kernel.name)
    for buffer in kernel.inputs:
        scope.cells[buffer.name] = Cells(buffer, _input(buffer, inputs))
    for name in inputs:
        if name not in scope.cells:
            raise InvalidParameter(f"{name} is no input of kernel {kernel.name}", field=name)
    for buffer in kernel.outputs + kernel.workspace:
        scope.cells[buffer.name] = Cells(buffer)
    with np.errstate(all="ignore"):
        if kernel.launches:
            device = Launches(kernel.name, scope.cells)
            for launch in kernel.launches:
                device.run(launch)
        else:
            _statement(kernel.body, scope)([None] * scope.slot_count)
    for buffer in kernel.outputs:
        _check_written(scope.cells[buffer.name])
    return {buffer.name: scope.cells[buffer.name].result() for buffer in kernel.outputs}


def _input(buffer: Buffer, inputs: Mapping[str, Array]) -> Array:
    array = inputs.get(buffer.name)
    if array is None:
        raise InvalidParameter(f"input {buffer.name} is missing", field=buffer.name)
    if array.shape != buffer.shape or array.dtype != buffer.dtype.numpy:
        raise InvalidParameter(
            f"input {buffer.name} is {array.dtype}{list(array.shape)}, not {buffer.dtype}{list(buffer.shape)}",
            field=buffer.name,
        )
    return array


def _check_written(cells: Cells) -> None:
    assert cells.written is not None
    missing = cells.written.count(0)
    if missing:
        first = cells.place(cells.written.find(0))
        raise KernelFault(
            f"output {cells.buffer.name}: {missing} of {cells.buffer.elements} elements left unwritten, first {first}",
            field=cells.buffer.name,
        )


def _statement(stmt: Stmt, scope: Scope) -> Code:
    return _STATEMENTS[type(stmt)](stmt, scope)


def _for(stmt: For, scope: Scope) -> Code:
    extent = stmt.extent
    watch = _watch(stmt, scope) if stmt.kind is LoopKind.PARALLEL else None
    inner = scope.with_loop(stmt.var, loop_range(extent), watch)
    slot = inner.slots[stmt.var]
    body = _statement(stmt.body, inner)

    def run(env: Env) -> None:
        for i in range(extent):
            env[slot] = i
            body(env)

    def run_watched(env: Env) -> None:
        assert watch is not None
        watch.enter()
        for i in range(extent):
            watch.current += 1
            env[slot] = i
            body(env)

    return run if watch is None else run_watched


def _watch(stmt: For, scope: Scope) -> Watch:
    """Watches what the loop stores to and its iterations share."""
    watch = Watch(stmt.var)
    inside = list(walk_statements(stmt.body))
    private = {s.buffer.name for s in inside if isinstance(s, Allocate)}
    written = [s.buffer for s in inside if isinstance(s, Store)]
    written += [b for s in inside if isinstance(s, PROCESSOR_OPERATIONS) for b in written_by(s)]
    for buffer in written:
        if buffer.name not in private | watch.writers.keys():
            watch.add(buffer)
    return watch


def _store(stmt: Store, scope: Scope) -> Code:
    return scalar_store(stmt, scope, expr_code) if stmt.value.lanes == 1 else vector_store(stmt, scope, expr_code)


def _if(stmt: If, scope: Scope) -> Code:
    condition, then = expr_code(stmt.condition, scope), _statement(stmt.then, scope)

    def run(env: Env) -> None:
        if condition(env):
            then(env)

    return run


def _seq(stmt: Seq, scope: Scope) -> Code:
    steps = tuple(_statement(s, scope) for s in stmt.statements)
    if len(steps) == 2:
        first, second = steps

        def run_two(env: Env) -> None:
            first(env)
            second(env)

        return run_two

    def run(env: Env) -> None:
        for step in steps:
            step(env)

    return run


def _allocate(stmt: Allocate, scope: Scope) -> Code:
    cells = scope.cells[stmt.buffer.name] = Cells(stmt.buffer)
    body = _statement(stmt.body, scope)

    def run(env: Env) -> None:
        cells.forget()
        body(env)

    return run


_STATEMENTS: dict[type[Stmt], Callable[[Any, Scope], Code]] = {
    For: _for,
    Store: _store,
    If: _if,
    Seq: _seq,
    Allocate: _allocate,
    **OPERATIONS,
}
"""How each class of statement is run."""
