"""A program in the user's process: kernels for its workloads, memory, and calls at raw addresses.

Tensors belong to a *tensor library* (torch, NumPy), which this module knows through a protocol. Inputs must be dense
and aligned to 16 bytes: others are copied. Every output is a fresh tensor. What depends on constants alone is computed
once, and again whenever a guard of the library says that a constant moved or changed.

On a GPU everything is put into the current stream of the library and nothing is waited for, so that a call may be
captured into a CUDA graph of the caller. Each stream has an arena of its own.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import ref

from ..core.errors import InvalidParameter
from ..graph.graph import Value
from ..graph.operators.operator import TensorType
from ..graph.partition import Call, ForeignCall, JoinCall, KernelCall, ViewCall
from ..graph.program import Program, ValuePlace, fresh_values
from ..graph.reference import graph_reference
from .bound_kernel import BoundKernel, KernelRun, RawKernel
from .tensor_library import Guard, TensorLibrary

ALIGNMENT_BYTES = 16
"""What inputs are aligned to at least."""
MOST_STREAMS = 4
"""For so many streams a program keeps an arena."""


Replacement = Callable[[Sequence[Any]], Sequence[Any]]
"""A function of the tensors that a kernel reads, which gives what it writes."""

Arrangement = Callable[[Sequence[Any]], Sequence[Any]]
"""From the tensors that a call is given to the constants of the graph."""

Watch = Callable[[Call, Mapping[str, Any]], None]
"""It is called after each call of a kernel, with everything that is known, while a program is being checked."""


@dataclass(slots=True)
class _Stream:
    """What the calls of one stream share: the arena, the addresses that never change, the kernels by what they write
    first, the steps of a call, and tensors in the arena that the library was given. ``captured``: a graph of the caller
    has such a call, so that all this must stay."""

    arena: Any
    fixed: dict[str, int]
    kernels: dict[str, BoundKernel]
    steps: list[KernelRun | KernelCall | ForeignCall]
    views: dict[str, Any] = field(default_factory=dict)
    captured: bool = False


@dataclass(slots=True)
class _State:
    """What belongs to one run: the tensors by value, and the addresses that are not fixed."""

    stream: _Stream
    handle: int
    tensors: dict[str, Any] = field(default_factory=dict)
    at: dict[str, int] = field(default_factory=dict)


class BoundProgram:
    """``program(inputs, constants)`` runs a program. It is safe to call from several threads: they share the arena, so
    their calls run one after the other."""

    def __init__(
        self,
        program: Program,
        kernels: Mapping[str, RawKernel],
        library: TensorLibrary,
        replaced: Mapping[str, Replacement] | None = None,
        positions: Sequence[int] | None = None,
        arrange: Arrangement = list,
    ) -> None:
        """``kernels``: the kernel of each workload, by key. ``replaced``: functions of the library that run in the
        place of kernels, by the first value that the kernel writes. ``positions``: where the tensors of the graph's
        constants are in the list that calls are given; they are all of it where this is None. ``arrange`` makes the
        constants of these tensors."""
        self.program = program
        self._kernels = kernels
        self._library = library
        self._lock = threading.Lock()
        self._replaced = dict(replaced or {})
        self._positions = range(len(program.graph.constants)) if positions is None else positions
        self._arrange = arrange
        self._fresh = fresh_values(program.graph, program.calls)
        written = (self._place(n).root for c in program.kernels for n in c.writes)
        empty = [n for n in dict.fromkeys(written) if n in self._fresh]
        self._allocators = {name: library.allocator(program.graph.values[name].tensor) for name in empty}
        self._inputs = [(n, v.name, v.type) for n, v in enumerate(program.graph.inputs)]
        places = {v.name: n for n, v in enumerate(program.graph.inputs)}
        self._updated = {target: places[target] for target, _ in program.graph.updates}
        self._kept: Any = None  # the memory of what is computed from constants
        self._packed: dict[str, dict[str, Any]] = {}  # what prologues fill, by what the kernel writes first
        self._is_packed = False
        self._streams: OrderedDict[int, _Stream] = OrderedDict()
        self._captured: list[_Stream] = []
        self._foreign = {c.writes[0]: library.foreign(c.node) for c in program.calls if isinstance(c, ForeignCall)}
        self._guard: Guard | None = None
        self._constants: tuple[dict[str, Any], dict[str, int]] = {}, {}
        self._checked_last: list[tuple[Callable[[], Any], int]] = [(object, 0)] * len(program.graph.inputs)

    def with_replaced(self, replaced: Mapping[str, Replacement]) -> "BoundProgram":
        """Return the program with further calls of kernels replaced."""
        return self._with(self._kernels, {**self._replaced, **replaced})

    def with_kernels(self, kernels: Mapping[str, RawKernel]) -> "BoundProgram":
        """Return the program with other kernels for these workloads, by key. Calls of theirs that were replaced run
        kernels again."""
        kept = {
            call.writes[0]: self._replaced[call.writes[0]]
            for key, call in zip(self.program.kernel_keys, self.program.kernels, strict=True)
            if call.writes[0] in self._replaced and key not in kernels
        }
        return self._with({**self._kernels, **kernels}, kept)

    def _with(self, kernels: Mapping[str, RawKernel], replaced: Mapping[str, Replacement]) -> "BoundProgram":
        """Return the program with these kernels. What has been computed from constants is taken over."""
        other = BoundProgram(self.program, kernels, self._library, replaced, self._positions, self._arrange)
        with self._lock:
            other._captured = [*self._captured, *(s for s in self._streams.values() if s.captured)]
            other._kept, other._constants, other._guard = self._kept, self._constants, self._guard
        return other

    def _stream(self, handle: int) -> _Stream:
        """Return what the calls of the current stream share."""
        found = self._streams.get(handle)
        if found is None:
            found = self._streams[handle] = self._new_stream()
            if len(self._streams) > MOST_STREAMS:
                self._drop_stream()
        if not self._is_packed:
            self._pack(found, handle)
        self._streams.move_to_end(handle)
        return found

    def _pack(self, stream: _Stream, handle: int) -> None:
        """Run the prologues of all kernels. All streams may read what they fill, so that this waits for them. A graph
        of the caller that captures them runs them by itself, every time."""
        for kernel in stream.kernels.values():
            kernel.prepare(stream.fixed, handle)
        if not self._library.is_captured():
            self._library.wait()
            self._is_packed = True

    def _drop_stream(self) -> None:
        """Forget the stream that was used least recently."""
        _, dropped = self._streams.popitem(last=False)
        if dropped.captured:
            self._captured.append(dropped)

    def _new_stream(self) -> _Stream:
        library, program = self._library, self.program
        arena = library.buffer(program.arena.bytes)
        base = library.address(arena)
        fixed = self._constants[1] | {name: base + offset for name, offset in program.arena.offsets.items()}
        keys = {c.writes[0]: key for key, c in zip(program.kernel_keys, program.kernels, strict=True)}
        kernels: dict[str, BoundKernel] = {}
        steps: list[KernelRun | KernelCall | ForeignCall] = []
        run: list[BoundKernel] = []
        for call in program.calls:
            if isinstance(call, KernelCall) and call.writes[0] not in self._replaced:
                run.append(self._bind(call, self._kernels[keys[call.writes[0]]]))
                kernels[call.writes[0]] = run[-1]
            elif not isinstance(call, ViewCall | JoinCall):
                steps += [KernelRun(run, fixed), call] if run else [call]
                run = []
        return _Stream(arena, fixed, kernels, [*steps, KernelRun(run, fixed)] if run else steps)

    def _bind(self, call: KernelCall, kernel: RawKernel) -> BoundKernel:
        values = {b.name: v for b, v in zip(call.workload.inputs, call.reads, strict=True)}
        values |= dict(zip(call.workload.outputs, call.writes, strict=True))
        packs = kernel.has_prologue and bool(call.workload.constants)
        workspace = [p for p in kernel.parameters if p.name not in values]
        packed = self._packed.setdefault(call.writes[0], {}) if packs else {}
        new = [p for p in workspace if packs and p.name in kernel.prepared and p.name not in packed]
        packed.update({p.name: self._library.buffer(p.bytes) for p in new})
        buffers = {p.name: packed[p.name] if p.name in packed else self._library.buffer(p.bytes) for p in workspace}
        places = [self._place(values[p.name]) if p.name in values else None for p in kernel.parameters]
        names = tuple(None if place is None else place.root for place in places)
        own = tuple(
            self._library.address(buffers[p.name]) if place is None else place.offset * p.dtype.bytes
            for p, place in zip(kernel.parameters, places, strict=True)
        )
        return BoundKernel(kernel, names, own, tuple(buffers.values()), packs)

    def _place(self, name: str) -> ValuePlace:
        """Return where a value lies."""
        return self.program.places.get(name) or ValuePlace(name)

    def __call__(
        self, inputs: Sequence[Any], constants: list[Any], watch: Watch | None = None, *, overwrite: bool = True
    ) -> list[Any]:
        """Return the outputs of the graph. Inputs are overwritten as the graph says, unless ``overwrite`` is false.

        Raises InvalidParameter for a tensor of another shape or dtype than the graph says.
        """
        graph, library = self.program.graph, self._library
        with self._lock, library.on_device():
            if self._guard is None or not self._guard(constants):
                self._prepare(constants)
            handle = library.stream()
            state = _State(self._stream(handle), handle)
            for (n, name, kind), tensor in zip(self._inputs, inputs, strict=True):
                self._take(n, name, kind, tensor, state)
            for name, allocate in self._allocators.items():
                state.tensors[name] = made = allocate()
                state.at[name] = library.address(made)
            state.stream.captured |= library.is_captured()
            if watch is None:
                capture = None if state.stream.captured else library.capture()
                for step in state.stream.steps:
                    if isinstance(step, KernelRun):
                        step.run(state.at, handle, capture)
                    else:
                        self._by_library(step, state)
            else:
                self._watched(state, watch)
            own = self._allocators
            outputs = [state.tensors[name] if name in own else self._result(name, state) for name in graph.outputs]
            if overwrite and graph.updates:
                targets = [inputs[n] for n in self._updated.values()]
                library.overwrite(targets, [self._result(name, state) for _, name in graph.updates])
        return outputs

    def _watched(self, state: _State, watch: Watch) -> None:
        """All calls, one by one."""
        for call in self.program.calls:
            if isinstance(call, KernelCall) and call.writes[0] not in self._replaced:
                state.stream.kernels[call.writes[0]].bind(state.stream.fixed | state.at)(state.handle)
            elif not isinstance(call, ViewCall | JoinCall):
                self._by_library(call, state)
            if isinstance(call, KernelCall):
                watch(call, {name: self.tensor(name, state) for name in (*call.reads, *call.writes)})

    def _take(self, n: int, name: str, kind: TensorType | None, tensor: Any, state: _State) -> None:
        """Add the ``n``-th input, checked unless it is the tensor of the last call."""
        if kind is not None:
            address = self._library.address(tensor)
            seen, before = self._checked_last[n]
            if seen() is not tensor or before != address:
                found = self._checked(name, kind, tensor)
                if found is tensor:
                    self._checked_last[n] = ref(tensor), address
                else:
                    tensor, address = found, self._library.address(found)
            state.at[name] = address
        state.tensors[name] = tensor

    def _checked(self, name: str, wanted: TensorType | None, tensor: Any) -> Any:
        """``tensor``, or a copy of it that kernels can read."""
        if wanted is None:
            return tensor
        kind = self._library.type_of(tensor)
        if kind != wanted:
            raise InvalidParameter(f"{name} is {kind}; needed: {wanted}", field=name)
        return self._readable(tensor)

    def _readable(self, tensor: Any) -> Any:
        if self._library.is_dense(tensor) and self._library.address(tensor) % ALIGNMENT_BYTES == 0:
            return tensor
        return self._library.dense_copy(tensor)

    def _add(self, state: _State, name: str, tensor: Any) -> None:
        state.tensors[name] = tensor
        value = self.program.graph.values.get(name)
        if value is not None and value.type is not None:
            state.at[name] = self._library.address(tensor)

    def _prepare(self, constants: list[Any]) -> None:
        """Compute what depends on constants alone. Whatever stream they were prepared in, all may read them
        afterwards."""
        library, graph = self._library, self.program.graph
        tensors = [constants[n] for n in self._positions]
        guard = library.guard(tensors, self._positions)  # what is written from here on has not been seen
        state = _State(_Stream(None, {}, {}, []), 0)
        for value, tensor in zip(graph.constants, self._arrange(tensors), strict=True):
            self._add(state, value.name, self._checked(value.name, value.type, tensor))
        if self._kept is None:
            self._kept = library.buffer(self.program.kept_arena.bytes)
        base = library.address(self._kept)
        state.at |= {name: base + offset for name, offset in self.program.kept_arena.offsets.items()}
        if self.program.recipe.outputs:
            arrays = {v.name: library.to_numpy(state.tensors[v.name]) for v in self.program.recipe.constants}
            for name, array in graph_reference(self.program.recipe, arrays, decide_as_rounded=True).items():
                kept = self.program.kept_arena.offsets[name]
                tensor = library.view_of(self._kept, kept, graph.values[name].tensor)
                library.overwrite([tensor], [library.from_numpy(array, graph.values[name].dtype)])
        while self._streams and state.at != self._constants[1]:
            self._drop_stream()
        self._constants, self._guard = (state.tensors, state.at), guard
        self._is_packed = False
        library.wait()

    def _by_library(self, call: KernelCall | ForeignCall, state: _State) -> None:
        """Have the library compute a call. What kernels read of its results must be dense; some may be left out."""
        reads = [self.tensor(name, state) for name in call.reads]
        if isinstance(call, ForeignCall):
            for value, tensor in zip(call.node.results, self._foreign[call.writes[0]](reads), strict=True):
                if tensor is not None:
                    self._add(state, value.name, tensor if value.type is None else self._as_typed(value, tensor))
        else:
            for name, tensor in zip(call.writes, self._replaced[call.writes[0]](reads), strict=True):
                self._library.overwrite([self.tensor(name, state)], [tensor])

    def _as_typed(self, value: Value, tensor: Any) -> Any:
        """Return a result of a foreign call as kernels read it. What the library computes may have another dtype than
        it says beforehand. Raises InvalidParameter for another shape."""
        kind = self._library.type_of(tensor)
        if kind == value.type:
            return self._readable(tensor)
        if kind is None or kind.shape != value.shape:
            raise InvalidParameter(f"{value.name} is {kind}; needed: {value.type}", field=value.name)
        made = self._library.allocator(value.tensor)()
        self._library.overwrite([made], [tensor])
        return made

    def tensor(self, name: str, state: _State) -> Any:
        """Return a value as a tensor of the library, wherever it lies."""
        place, library = self._place(name), self._library
        root, offset = place.root, place.offset
        found = state.tensors.get(root, self._constants[0].get(root))
        value = self.program.graph.values.get(name)
        if found is not None:
            return found if name == root or value is None else library.reshaped(found, value.shape, offset)
        if value is None:
            raise InvalidParameter(f"{name} has no memory", field=name)
        if root in self.program.kept_arena.offsets:
            at = self.program.kept_arena.offsets[root] + offset * value.dtype.bytes
            return library.view_of(self._kept, at, value.tensor)
        if root in self.program.arena.offsets:
            views = state.stream.views
            if name not in views:
                at = self.program.arena.offsets[root] + offset * value.dtype.bytes
                views[name] = library.view_of(state.stream.arena, at, value.tensor)
            return views[name]
        raise InvalidParameter(f"{name} has no memory", field=name)

    def _result(self, name: str, state: _State) -> Any:
        """Return a value that outlives what it lies in: the memory of what is kept, an input that is overwritten, or a
        value of which it is a part."""
        tensor, root, values = self.tensor(name, state), self._place(name).root, self.program.graph.values
        known = name != root and values[name].type is not None and values[root].type is not None
        part = known and values[name].elements < values[root].elements
        copied = part or root in self._updated or root in self.program.kept_arena.offsets
        return self._library.dense_copy(tensor) if copied else tensor
