"""A binary that is loaded on a CUDA device."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

from ...codegen.backend import CompiledKernel, LaunchConfig
from ...core.errors import CompileError, InvalidParameter
from ..device import Memory
from .launch import CudaFunction, CudaGraph, EventTimer, KernelArguments, LoadedCubin
from .memory import CudaMemory, CudaStream
from .tensor_maps import encode

MOST_CAPTURED = 2048
"""A CUDA graph has at most so many launches; more are timed by replaying it."""
MOST_GRAPHS = 16
"""A kernel keeps at most so many CUDA graphs."""
MOST_EXTENTS = 64
"""A dynamic kernel keeps its launches for at most so many extents."""
ALIGNMENT_BYTES = 16
"""Every buffer must begin at a multiple of so many bytes, which is the widest access of a thread."""


class CudaKernel:
    """A kernel of a CUDA device; see ``runtime.device.LoadedKernel``. One with dynamic extents is launched through
    ``at_extent``."""

    def __init__(
        self, stream: CudaStream, timer: EventTimer, binary: CompiledKernel, cubin: LoadedCubin | None = None
    ) -> None:
        """``cubin``: the code of the binary, where it is loaded already. Raises CompileError when the binary does not
        load here."""
        if binary.format != "cubin":
            raise CompileError(f"a CUDA device runs cubins, not {binary.format}")
        if not binary.launches:
            raise CompileError("the binary has no launches")
        self.parameters = binary.parameters
        self.functions = tuple(grid.function for grid in binary.launches)
        self._stream = stream
        self._timer = timer
        self.dynamic = binary.dynamic
        self._binary = binary
        self._cubin = LoadedCubin(stream.context, binary.code) if cubin is None else cubin
        self._steps = [(self._cubin.function(grid), grid) for grid in binary.launches]
        self._prologue = [step for step in self._steps if step[1].in_prologue]
        self._rest = [step for step in self._steps if not step[1].in_prologue]
        self._extents: OrderedDict[tuple[int, ...], CudaKernel] = OrderedDict()
        self._lock = threading.Lock()  # A launch configuration has one stream at a time.
        self._latest: tuple[object, list[tuple[CudaFunction, KernelArguments]]] | None = None
        self._graphs: OrderedDict[tuple[object, ...], CudaGraph] = OrderedDict()

    def at_extent(self, *extents: int) -> "CudaKernel":
        """Return the kernel as a call with ``extents``, one for each dynamic extent, sees it: its grids, tensor maps
        and the shapes of its parameters. Those of the last extents are kept. Raises InvalidParameter for extents that
        the kernel does not allow."""
        if not self.dynamic:
            return self
        with self._lock:
            found = self._extents.get(extents)
            if found is None:
                found = CudaKernel(self._stream, self._timer, self._binary.at_extent(*extents), self._cubin)
                self._extents[extents] = found
                if len(self._extents) > MOST_EXTENTS:
                    self._extents.popitem(last=False)
            self._extents.move_to_end(extents)
        return found

    def prepare(self, arguments: Sequence[Memory]) -> None:
        addresses = self._addresses(arguments)
        if self._prologue:
            with self._stream.context:
                self.prepare_at(addresses, self._stream.handle)
                self._stream.wait()

    def launch(self, arguments: Sequence[Memory]) -> None:
        with self._stream.context:
            self.enqueue(self._addresses(arguments), self._stream.handle)
            self._stream.wait()

    def enqueue(self, addresses: tuple[int, ...], stream: Any, *, prepared: bool = False) -> None:
        """Put one call into a stream (its handle) of the current context, without waiting. ``addresses`` are raw
        device addresses, one per parameter; the caller must see to their sizes and alignment. The prologue is part of
        it, unless it is ``prepared``: ``prepare_at`` has put it into the stream, or it has ended."""
        with self._lock:
            key = prepared, addresses
            if self._latest is None or self._latest[0] != key:
                self._latest = key, self._packed_arguments(self._rest if prepared else self._steps, addresses)
            _enqueue(self._latest[1], stream)

    @property
    def has_prologue(self) -> bool:
        return bool(self._prologue)

    @property
    def prepared(self) -> frozenset[str]:
        """Return the workspace that the prologue fills, by the names of the parameters."""
        taken = {n for _, grid in self._prologue for n in (*grid.arguments, *(m.parameter for m in grid.tensor_maps))}
        return frozenset(self.parameters[n].name for n in taken if self.parameters[n].role == "workspace")

    def prepare_at(self, addresses: Sequence[int], stream: Any) -> None:
        """Put the prologue into a stream, as ``enqueue`` does with a whole call. Addresses that it does not read may be
        0."""
        with self._lock:
            _enqueue(self._packed_arguments(self._prologue, addresses), stream)

    def bind_at(self, addresses: Sequence[int]) -> Callable[[Any], None]:
        """Return what puts one call on these addresses into a stream, as often as it is wanted. The prologue is not
        part of it."""
        packed = self._packed_arguments(self._rest, addresses)

        def launch(stream: Any) -> None:
            with self._lock:
                _enqueue(packed, stream)

        return launch

    def time(self, argument_sets: Sequence[Sequence[Memory]], launches: int) -> float:
        """Time the replay of a CUDA graph between two events. The graph is kept for the next time with the same
        arguments."""
        if not argument_sets or launches < 1:
            raise InvalidParameter(
                f"{launches} launches over {len(argument_sets)} argument sets; allowed: at least one of each",
                field="launches",
            )
        sets = tuple(self._addresses(arguments) for arguments in argument_sets)
        whole = max(MOST_CAPTURED // len(sets), 1) * len(sets)
        rounds, rest = divmod(launches, whole) if launches > MOST_CAPTURED else (0, launches)
        with self._stream.context:
            graphs = [self._graph(sets, whole)] * rounds if rounds else []
            if rest:
                graphs.append(self._graph(sets, rest))
            return self._timer.seconds(lambda: _replay(graphs))

    def _graph(self, sets: tuple[tuple[int, ...], ...], launches: int) -> CudaGraph:
        key = (sets, launches)
        if key in self._graphs:
            self._graphs.move_to_end(key)
            return self._graphs[key]
        packed = [self._packed_arguments(self._rest, addresses) for addresses in sets[:launches]]

        def enqueue() -> None:
            for n in range(launches):
                _enqueue(packed[n % len(packed)], self._stream.handle)

        while len(self._graphs) >= MOST_GRAPHS:
            self._graphs.popitem(last=False)
        self._graphs[key] = CudaGraph(self._stream, enqueue)
        return self._graphs[key]

    def _packed_arguments(
        self, steps: Sequence[tuple[CudaFunction, LaunchConfig]], addresses: Sequence[int]
    ) -> list[tuple[CudaFunction, KernelArguments]]:
        if self.dynamic:
            allowed = ", ".join(f"{d.var} 1 to {d.most}" for d in self.dynamic)
            raise InvalidParameter(f"the kernel has dynamic extents, {allowed}: at_extent says which", field="extent")
        return [(function, self._arguments(grid, addresses)) for function, grid in steps]

    def _arguments(self, grid: LaunchConfig, addresses: Sequence[int]) -> KernelArguments:
        maps = [encode(m, self.parameters[m.parameter], addresses[m.parameter]) for m in grid.tensor_maps]
        values = [addresses[n] for n in grid.arguments]
        for place, number in grid.numbers:  # in ascending order
            values.insert(place, number)
        return KernelArguments(values, maps)

    def _addresses(self, arguments: Sequence[Memory]) -> tuple[int, ...]:
        if len(arguments) != len(self.parameters):
            raise InvalidParameter(
                f"{len(arguments)} arguments for {len(self.parameters)} parameters: "
                f"{', '.join(p.name for p in self.parameters)}",
                field="arguments",
            )
        addresses = []
        for parameter, memory in zip(self.parameters, arguments, strict=True):
            if not isinstance(memory, CudaMemory) or memory.ordinal != self._stream.context.device.ordinal:
                raise InvalidParameter(f"{parameter.name}: not memory of this device", field="arguments")
            if memory.nbytes != parameter.bytes:
                raise InvalidParameter(
                    f"{parameter.name}: {memory.nbytes} bytes given, {parameter.bytes} needed "
                    f"({parameter.dtype}{list(parameter.shape)})",
                    field="arguments",
                )
            if memory.address % ALIGNMENT_BYTES:
                raise InvalidParameter(
                    f"{parameter.name}: address is no multiple of {ALIGNMENT_BYTES} bytes", field="arguments"
                )
            addresses.append(memory.address)
        return tuple(addresses)


def _enqueue(packed: Sequence[tuple[CudaFunction, KernelArguments]], stream: Any) -> None:
    for function, arguments in packed:
        function.enqueue(stream, arguments)


def _replay(graphs: Sequence[CudaGraph]) -> None:
    for graph in graphs:
        graph.replay()
