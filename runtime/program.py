"""A program in the user's process: kernels for its workloads, memory, and calls at raw addresses.

Tensors belong to a *tensor library* (torch, NumPy), which this module knows through a protocol. Inputs must be dense
and aligned to 16 bytes: others are copied. Every output is a fresh tensor. What depends on constants alone is computed
once, and again whenever a constant has another address or another version.

On a GPU everything is put into the current stream of the library and nothing is waited for, so that a call may be
captured into a CUDA graph of the caller. Each stream has an arena of its own.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..core.dtypes import DType
from ..core.errors import InvalidParameter
from ..graph.graph import Node
from ..graph.operators.operator import Array, TensorType
from ..graph.partition import Call, ForeignCall, KernelCall, ViewCall
from ..graph.program import Program, fresh_values
from ..graph.reference import graph_reference

ALIGNMENT_BYTES = 16
"""What inputs are aligned to at least."""
MOST_STREAMS = 4
"""For so many streams a program keeps an arena."""


class TensorLibrary(Protocol):
    """The tensors of the user's process."""

    def empty(self, kind: TensorType) -> Any:
        """A dense tensor with undefined elements."""
        ...

    def buffer(self, nbytes: int) -> Any:
        """So many bytes, aligned to 64."""
        ...

    def view_of(self, buffer: Any, offset: int, kind: TensorType) -> Any:
        """The bytes of a buffer from ``offset`` on as a dense tensor."""
        ...

    def address(self, tensor: Any) -> int:
        """The address of the first element."""
        ...

    def stamps(self, tensors: Sequence[Any]) -> tuple[Any, ...]:
        """Something that differs once one of ``tensors`` has another address, or was changed in place where the
        library counts such changes."""
        ...

    def on_device(self) -> AbstractContextManager[object]:
        """While it is entered, kernels of the device may be launched in this thread."""
        ...

    def stream(self) -> int:
        """The handle of the stream that the library puts work into now; 0 on a processor."""
        ...

    def wait(self) -> None:
        """Wait for what was put into the current stream."""
        ...

    def type_of(self, tensor: Any) -> TensorType | None:
        """The shape and the dtype; None for a dtype that graphs do not have."""
        ...

    def is_dense(self, tensor: Any) -> bool:
        """Whether the elements lie behind one another in row-major order."""
        ...

    def dense_copy(self, tensor: Any) -> Any:
        """A dense copy in memory of its own."""
        ...

    def reshaped(self, tensor: Any, shape: tuple[int, ...]) -> Any:
        """A view of a dense tensor in another shape."""
        ...

    def to_numpy(self, tensor: Any) -> Array:
        """The elements as an array, in the dtype's own NumPy form."""
        ...

    def from_numpy(self, array: Array, dtype: DType) -> Any:
        """A tensor of ``dtype`` with the elements of an array, rounded."""
        ...

    def overwrite(self, target: Any, source: Any) -> None:
        """Copy the elements of ``source`` to ``target``, which has its shape."""
        ...

    def foreign(self, node: Node) -> Callable[[Sequence[Any]], Sequence[Any]]:
        """The function that computes a foreign node: operands to results."""
        ...


Launch = Callable[[int], None]
"""It puts a kernel with its addresses into the stream of a handle."""


class RawKernel(Protocol):
    """A loaded kernel that runs on raw addresses: a ``CpuKernel`` or a ``CudaKernel``."""

    @property
    def parameters(self) -> Sequence[Any]: ...

    @property
    def has_prologue(self) -> bool: ...

    def prepare_at(self, addresses: Sequence[int]) -> None: ...

    def bind_at(self, addresses: Sequence[int]) -> Launch:
        """What runs the kernel on these addresses, as often as it is called, after ``prepare_at``."""
        ...


Addresses = dict[str, int]


@dataclass(slots=True)
class _BoundKernel:
    """A call of a kernel. ``order``: the value of each parameter that is one, and None for workspace, which lies at the
    addresses ``own``. ``workspace``: the memory itself. ``latest``: the addresses of the last run, and what runs on
    them."""

    kernel: RawKernel
    order: tuple[str | None, ...]
    own: tuple[int, ...]
    workspace: tuple[Any, ...]
    writes: tuple[str, ...]
    prepared: bool
    latest: tuple[list[int], Launch] | None = None

    def addresses(self, at: Addresses) -> list[int]:
        return [own if name is None else at.get(name, 0) for name, own in zip(self.order, self.own, strict=True)]

    def run(self, at: Addresses, stream: int) -> None:
        addresses = self.addresses(at)
        if not self.prepared:
            self.kernel.prepare_at(addresses)
        if self.latest is None or self.latest[0] != addresses:
            self.latest = addresses, self.kernel.bind_at(addresses)
        self.latest[1](stream)


Replacement = Callable[[Sequence[Any]], Sequence[Any]]
"""A function of the tensors that a kernel reads, which gives what it writes."""

Watch = Callable[[Call, Mapping[str, Any]], None]
"""It is called after each call of a kernel, with everything that is known, while a program is being checked."""


@dataclass(slots=True)
class _Stream:
    """What the calls of one stream share: the arena, where its values lie, and the bound kernels."""

    arena: Any
    at: Addresses
    bound: dict[str, _BoundKernel]


@dataclass(slots=True)
class _State:
    """What belongs to one run: the tensors by value, and the addresses."""

    stream: _Stream
    handle: int
    tensors: dict[str, Any] = field(default_factory=dict)
    at: Addresses = field(default_factory=dict)


class BoundProgram:
    """``program(inputs, constants)`` runs a program. It is safe to call from several threads: they share the arena, so
    their calls run one after the other."""

    def __init__(
        self,
        program: Program,
        kernels: Mapping[str, RawKernel],
        library: TensorLibrary,
        replaced: Mapping[str, Replacement] | None = None,
    ) -> None:
        """``kernels``: the kernel of each workload, by key. ``replaced``: functions of the library that run in the
        place of kernels, by the first value that the kernel writes."""
        self.program = program
        self._kernels = kernels
        self._library = library
        self._lock = threading.Lock()
        self._replaced = dict(replaced or {})
        self._fresh = fresh_values(program.graph, program.calls)
        self._kept = library.buffer(program.kept_arena.bytes)
        kept = library.address(self._kept)
        self._kept_at: Addresses = {name: kept + offset for name, offset in program.kept_arena.offsets.items()}
        self._streams: OrderedDict[int, _Stream] = OrderedDict()
        self._foreign = {c.writes[0]: library.foreign(c.node) for c in program.calls if isinstance(c, ForeignCall)}
        self._seen: tuple[Any, ...] | None = None
        self._held: tuple[Any, ...] = ()
        self._constants: tuple[dict[str, Any], Addresses] = {}, {}

    def with_replaced(self, replaced: Mapping[str, Replacement]) -> "BoundProgram":
        """The program with further calls of kernels replaced."""
        return self._with(self._kernels, {**self._replaced, **replaced})

    def with_kernels(self, kernels: Mapping[str, RawKernel]) -> "BoundProgram":
        """The program with other kernels for these workloads, by key. Calls of theirs that were replaced run kernels
        again."""
        kept = {
            call.writes[0]: self._replaced[call.writes[0]]
            for key, call in zip(self.program.kernel_keys, self.program.kernels, strict=True)
            if call.writes[0] in self._replaced and key not in kernels
        }
        return self._with({**self._kernels, **kernels}, kept)

    def _with(self, kernels: Mapping[str, RawKernel], replaced: Mapping[str, Replacement]) -> "BoundProgram":
        """The program with these kernels. What has been computed from constants is taken over."""
        other = BoundProgram(self.program, kernels, self._library, replaced)
        with self._lock:
            other._kept, other._kept_at = self._kept, self._kept_at
            other._seen, other._held, other._constants = self._seen, self._held, self._constants
        return other

    def _stream(self, handle: int) -> _Stream:
        """What the calls of the current stream share."""
        found = self._streams.get(handle)
        if found is None:
            library, program = self._library, self.program
            arena = library.buffer(program.arena.bytes)
            base = library.address(arena)
            bound = {
                c.writes[0]: self._bind(c, self._kernels[key])
                for key, c in zip(program.kernel_keys, program.kernels, strict=True)
                if c.writes[0] not in self._replaced
            }
            found = _Stream(arena, {name: base + offset for name, offset in program.arena.offsets.items()}, bound)
            self._streams[handle] = found
            self._prepare_kernels(found)
            if len(self._streams) > MOST_STREAMS:
                self._streams.popitem(last=False)
        self._streams.move_to_end(handle)
        return found

    def _bind(self, call: KernelCall, kernel: RawKernel) -> _BoundKernel:
        values = {b.name: v for b, v in zip(call.workload.inputs, call.reads, strict=True)}
        values |= dict(zip(call.workload.outputs, call.writes, strict=True))
        buffers = {p.name: self._library.buffer(p.bytes) for p in kernel.parameters if p.name not in values}
        order = tuple(values.get(p.name) for p in kernel.parameters)
        own = tuple(self._library.address(buffers[p.name]) if p.name in buffers else 0 for p in kernel.parameters)
        ahead = kernel.has_prologue and bool(call.workload.constants)
        prepared = ahead or not kernel.has_prologue
        return _BoundKernel(kernel, order, own, tuple(buffers.values()), call.writes, prepared)

    def __call__(
        self, inputs: Sequence[Any], constants: Sequence[Any], watch: Watch | None = None
    ) -> tuple[list[Any], list[Any]]:
        """The outputs of the graph, and the values that overwrite inputs, which is left to the caller.

        Raises InvalidParameter for a tensor of another shape or dtype than the graph says.
        """
        graph = self.program.graph
        given = [self._checked(v.name, v.type, t) for v, t in zip(graph.inputs, inputs, strict=True)]
        with self._lock, self._library.on_device():
            self._prepare(constants)
            handle = self._library.stream()
            stream = self._stream(handle)
            tensors, at = self._constants
            state = _State(stream, handle, dict(tensors), {**at, **stream.at})
            for value, tensor in zip(graph.inputs, given, strict=True):
                self._add(state, value.name, tensor)
            for call in self.program.calls:
                self._run(call, state)
                if watch is not None:
                    watch(call, self._visible(call, state))
            outputs = [self._result(name, state) for name in graph.outputs]
            updates = [self._result(name, state) for _, name in graph.updates]
        return outputs, updates

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

    def _prepare(self, constants: Sequence[Any]) -> None:
        """Compute what depends on constants alone, unless that has been done for these. Whatever stream they were
        prepared in, all may read them afterwards."""
        library, graph = self._library, self.program.graph
        seen = library.stamps(constants)
        if seen == self._seen:
            return
        state = _State(_Stream(None, {}, {}), 0, at=dict(self._kept_at))
        for value, tensor in zip(graph.constants, constants, strict=True):
            self._add(state, value.name, self._checked(value.name, value.type, tensor))
        if self.program.recipe.outputs:
            arrays = {v.name: library.to_numpy(state.tensors[v.name]) for v in self.program.recipe.constants}
            for name, array in graph_reference(self.program.recipe, arrays).items():
                kept = self.program.kept_arena.offsets[name]
                tensor = library.view_of(self._kept, kept, self.program.graph.values[name].tensor)
                library.overwrite(tensor, library.from_numpy(array, self.program.graph.values[name].dtype))
        for view in self.program.prepared:
            self._view(view, state)
        self._constants, self._seen = (state.tensors, state.at), seen
        self._held = tuple(constants)  # as long as they are held, no other tensor can have their addresses
        for stream in self._streams.values():
            self._prepare_kernels(stream)
        library.wait()

    def _prepare_kernels(self, stream: _Stream) -> None:
        """Have kernels pack the constants that they read, where they do so."""
        _, at = self._constants
        for bound in stream.bound.values():
            if bound.prepared and bound.kernel.has_prologue:
                bound.kernel.prepare_at(bound.addresses(at))

    def _run(self, call: Call, state: _State) -> None:
        if isinstance(call, ViewCall):
            self._view(call, state)
        elif isinstance(call, ForeignCall):
            results = self._foreign[call.writes[0]]([self.tensor(name, state) for name in call.reads])
            self._take(call.node, results, state)
        else:
            for name in call.writes:
                if name in self._fresh:
                    self._add(state, name, self._library.empty(self.program.graph.values[name].tensor))
            replacement = self._replaced.get(call.writes[0])
            if replacement is None:
                state.stream.bound[call.writes[0]].run(state.at, state.handle)
            else:
                results = replacement([self.tensor(name, state) for name in call.reads])
                for name, tensor in zip(call.writes, results, strict=True):
                    self._library.overwrite(self.tensor(name, state), tensor)

    def _view(self, call: ViewCall, state: _State) -> None:
        shape = self.program.graph.values[call.value].shape
        if call.of in state.tensors:
            self._add(state, call.value, self._library.reshaped(state.tensors[call.of], shape))
        else:
            state.at[call.value] = state.at[call.of]

    def _take(self, node: Node, results: Sequence[Any], state: _State) -> None:
        """Note the results of a foreign call. What kernels read must be dense."""
        for value, tensor in zip(node.results, results, strict=True):
            self._add(state, value.name, tensor if value.type is None else self._readable(tensor))

    def tensor(self, name: str, state: _State) -> Any:
        """A value as a tensor of the library, wherever it lies."""
        if name in state.tensors:
            return state.tensors[name]
        kind = self.program.graph.values[name].tensor
        for arena, offsets in ((state.stream.arena, self.program.arena), (self._kept, self.program.kept_arena)):
            root = self.program.roots.get(name, name)
            if root in offsets.offsets:
                return self._library.view_of(arena, offsets.offsets[root], kind)
        raise InvalidParameter(f"{name} has no memory", field=name)

    def _visible(self, call: Call, state: _State) -> Mapping[str, Any]:
        """The tensors that a call of a kernel reads and writes."""
        if not isinstance(call, KernelCall):
            return {}
        return {name: self.tensor(name, state) for name in (*call.reads, *call.writes)}

    def _result(self, name: str, state: _State) -> Any:
        root = self.program.roots.get(name, name)
        tensor = self.tensor(name, state)
        return self._library.dense_copy(tensor) if root in self.program.kept_arena.offsets else tensor
