"""The interpreter: runs a kernel on NumPy arrays and finds what a compiled kernel would do silently.

A kernel is first turned into closures, one for each node, so that no node is looked at twice; then these run. The
iterations of a parallel loop run in order, while a ``LoopRaceDetector`` finds whether they could have run in any other.
``ir.simt`` runs launches.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..core.errors import InvalidParameter, KernelFault
from .bounds import loop_range
from .buffer import Buffer
from .cpu import PROCESSOR_OPERATIONS, written_by
from .dynamic import kernel_at_extent
from .interpreter.access import scalar_store, vector_store
from .interpreter.context import Closure, Env, InterpreterContext
from .interpreter.cpu import OPERATIONS
from .interpreter.expressions import expr_closure
from .interpreter.memory import Array, BufferContents, LoopRaceDetector
from .simt.run import LaunchInterpreter
from .stmt import Allocate, DynamicExtent, For, If, Kernel, LoopKind, Seq, Stmt, Store, walk_statements
from .verify import verify


def interpret(kernel: Kernel, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Return the outputs of ``kernel`` by name, in their buffers' shapes and dtypes.

    ``inputs`` holds one array per input buffer, of its shape and dtype. A dynamic extent is that of the arrays. Kernels
    may be those before or after the passes: vectorised and unrolled loops run like serial ones. float16 and bfloat16
    are computed in float32 and rounded at stores and casts; integers wrap; casts from float to integer saturate.

    Raises InvalidKernel for a kernel that the verifier refuses, InvalidParameter for inputs that do not fit it, and
    KernelFault for

    - an access out of bounds, and an integer divided by zero;
    - a read of an element that was never written, in an output, the workspace or an allocation, whose elements are
      uninitialised at every entry;
    - an element of an output that is left unwritten;
    - two iterations of a parallel loop that access one element, where one of them writes;
    - in launches: two threads that access one element, where one of them writes and nothing orders them; a barrier or
      an operation of a whole warp that only some threads of the group reach; a wait that never ends; a misaligned copy;
      an element that is accessed while an asynchronous copy of it is in flight. Such copies complete as late as they
      can.
    """
    verify(kernel)
    if kernel.dynamic:
        kernel = kernel_at_extent(kernel, *(_extent_of(extent, inputs) for extent in kernel.dynamic))
        verify(kernel)
    context = InterpreterContext(kernel.name)
    for buffer in kernel.inputs:
        context.contents[buffer.name] = BufferContents(buffer, _input(buffer, inputs))
    for name in inputs:
        if name not in context.contents:
            raise InvalidParameter(f"{name} is no input of kernel {kernel.name}", field=name)
    for buffer in kernel.outputs + kernel.workspace:
        context.contents[buffer.name] = BufferContents(buffer)
    with np.errstate(all="ignore"):
        if kernel.launches:
            device = LaunchInterpreter(kernel.name, context.contents)
            for launch in kernel.launches:
                device.run(launch)
        else:
            _statement(kernel.body, context)([None] * context.slot_count)
    for buffer in kernel.outputs:
        _check_written(context.contents[buffer.name])
    return {buffer.name: context.contents[buffer.name].result() for buffer in kernel.outputs}


def _extent_of(dynamic: DynamicExtent, inputs: Mapping[str, Array]) -> int:
    """Return the extent that the first array of a dynamic parameter has; the others are compared with it later on."""
    at = dict(dynamic.places)
    return next((array.shape[at[n]] for n, array in inputs.items() if array.ndim > at.get(n, array.ndim)), dynamic.most)


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


def _check_written(contents: BufferContents) -> None:
    assert contents.written is not None
    missing = contents.written.count(0)
    if missing:
        buffer, first = contents.buffer, contents.element_name(contents.written.find(0))
        raise KernelFault(
            f"output {buffer.name}: {missing} of {buffer.elements} elements left unwritten, first {first}",
            field=buffer.name,
        )


def _statement(stmt: Stmt, context: InterpreterContext) -> Closure:
    return _STATEMENTS[type(stmt)](stmt, context)


def _for(stmt: For, context: InterpreterContext) -> Closure:
    extent = stmt.extent
    detector = _race_detector(stmt) if stmt.kind is LoopKind.PARALLEL else None
    inner = context.with_loop(stmt.var, loop_range(extent), detector)
    slot = inner.slots[stmt.var]
    body = _statement(stmt.body, inner)

    def run(env: Env) -> None:
        for i in range(extent):
            env[slot] = i
            body(env)

    def run_checked(env: Env) -> None:
        assert detector is not None
        detector.enter()
        for i in range(extent):
            detector.current += 1
            env[slot] = i
            body(env)

    return run if detector is None else run_checked


def _race_detector(stmt: For) -> LoopRaceDetector:
    """Return a detector of races on what the loop stores to and its iterations share."""
    detector = LoopRaceDetector(stmt.var)
    inside = list(walk_statements(stmt.body))
    private = {s.buffer.name for s in inside if isinstance(s, Allocate)}
    written = [s.buffer for s in inside if isinstance(s, Store)]
    written += [b for s in inside if isinstance(s, PROCESSOR_OPERATIONS) for b in written_by(s)]
    for buffer in written:
        if buffer.name not in private | detector.writers.keys():
            detector.add(buffer)
    return detector


def _store(stmt: Store, context: InterpreterContext) -> Closure:
    return (
        scalar_store(stmt, context, expr_closure)
        if stmt.value.lanes == 1
        else vector_store(stmt, context, expr_closure)
    )


def _if(stmt: If, context: InterpreterContext) -> Closure:
    condition, then = expr_closure(stmt.condition, context), _statement(stmt.then, context)

    def run(env: Env) -> None:
        if condition(env):
            then(env)

    return run


def _seq(stmt: Seq, context: InterpreterContext) -> Closure:
    steps = tuple(_statement(s, context) for s in stmt.statements)
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


def _allocate(stmt: Allocate, context: InterpreterContext) -> Closure:
    contents = context.contents[stmt.buffer.name] = BufferContents(stmt.buffer)
    body = _statement(stmt.body, context)

    def run(env: Env) -> None:
        contents.forget()
        body(env)

    return run


_STATEMENTS: dict[type[Stmt], Callable[[Any, InterpreterContext], Closure]] = {
    For: _for,
    Store: _store,
    If: _if,
    Seq: _seq,
    Allocate: _allocate,
    **OPERATIONS,
}
"""The closure of each class of statement."""
