"""Kernels of a program with the places of what they read and write, and runs of kernels that are launched at once."""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from .cpu import LaunchesInARow, launched_in_a_row
from .tensor_library import Capture, Launch

MOST_KNOWN = 8
"""For so many sets of addresses a run of kernels keeps its launches."""

Addresses = Mapping[str, int]
"""By the name of a value."""


class RawKernel(Protocol):
    """A loaded kernel that runs on raw addresses: a ``CpuKernel`` or a ``CudaKernel``."""

    @property
    def parameters(self) -> Sequence[Any]: ...

    @property
    def has_prologue(self) -> bool: ...

    @property
    def prepared(self) -> frozenset[str]:
        """Return the workspace that the prologue fills, by the names of the parameters."""
        ...

    def prepare_at(self, addresses: Sequence[int], stream: int) -> None:
        """Put the prologue into a stream (its handle; 0 on a processor)."""
        ...

    def bind_at(self, addresses: Sequence[int]) -> Launch:
        """Return what runs the kernel on these addresses, as often as it is called, after ``prepare_at``."""
        ...


@dataclass(slots=True)
class BoundKernel:
    """A call of a kernel. ``names``: the value in whose memory each parameter lies, ``own`` bytes behind its beginning;
    None for workspace, which lies at the addresses ``own``. ``workspace``: the memory itself. ``packs``: whether it
    packs its constants once, ahead of its runs. ``latest``: the addresses that were bound last."""

    kernel: RawKernel
    names: tuple[str | None, ...]
    own: tuple[int, ...]
    workspace: tuple[Any, ...]
    packs: bool
    latest: tuple[list[int], Launch] | None = None

    def prepare(self, at: Addresses, stream: int) -> None:
        """Pack the constants, whose addresses are known."""
        if self.packs:
            self.kernel.prepare_at(self._addresses(at), stream)

    def bind(self, at: Addresses) -> Launch:
        """Return what runs the kernel where its values lie."""
        addresses = self._addresses(at)
        if self.latest is None or self.latest[0] != addresses:
            self.latest = addresses, self._launch(addresses)
        return self.latest[1]

    def _launch(self, addresses: list[int]) -> Launch:
        launch = self.kernel.bind_at(addresses)
        if self.packs or not self.kernel.has_prologue:
            return launch

        def with_prologue(stream: int) -> None:
            self.kernel.prepare_at(addresses, stream)
            launch(stream)

        return with_prologue

    def _addresses(self, at: Addresses) -> list[int]:
        return [own if name is None else at.get(name, 0) + own for name, own in zip(self.names, self.own, strict=True)]


@dataclass(slots=True)
class _Launches:
    """``whole`` launches all of ``each`` at once, from the second time on that they are wanted."""

    each: tuple[Launch, ...]
    runs: int = 0
    whole: Launch | None = None

    def run(self, stream: int, capture: Capture | None) -> None:
        self.runs += 1
        if capture is None or len(self.each) == 1:
            self._all(stream)
            return
        if self.whole is None and self.runs > 1:
            self.whole = capture(self._all)
        (self.whole or self._all)(stream)

    def _all(self, stream: int) -> None:
        for launch in self.each:
            launch(stream)


class KernelRun:
    """Kernels with nothing between them. On a GPU, where addresses recur from call to call because allocators give
    memory again, kernels are captured as a CUDA graph. On a processor one native call runs them all, and a value that
    moved costs no more than the pointers to it."""

    def __init__(self, kernels: Sequence[BoundKernel], fixed: Addresses) -> None:
        """``fixed``: the addresses that are the same in every call."""
        self._kernels = kernels
        self._fixed = fixed
        self._places: dict[str, list[tuple[int, int, int]]] = {}  # launch, parameter, bytes behind the beginning
        for launch, kernel in enumerate(kernels):
            for parameter, (name, own) in enumerate(zip(kernel.names, kernel.own, strict=True)):
                if name is not None and name not in fixed:
                    self._places.setdefault(name, []).append((launch, parameter, own))
        self._variable = tuple(self._places)
        self._known: OrderedDict[tuple[int, ...], _Launches] = OrderedDict()
        self._row: LaunchesInARow | None = None
        self._latest: tuple[int, ...] = ()

    def run(self, at: Addresses, stream: int, capture: Capture | None) -> None:
        """Launch the kernels. ``at`` has the addresses that are not fixed. One thread at a time may call it."""
        key = tuple([at[name] for name in self._variable])
        if self._row is not None:
            if key != self._latest:
                self._move(self._row, key)
            self._row(stream)
            return
        found = self._known.get(key)
        if found is None:
            every = {**self._fixed, **at}
            each = tuple(kernel.bind(every) for kernel in self._kernels)
            self._row, self._latest = launched_in_a_row(each) if capture is None else None, key
            found = self._known[key] = _Launches(each)
            if len(self._known) > MOST_KNOWN:
                self._known.popitem(last=False)
        self._known.move_to_end(key)
        found.run(stream, capture)

    def _move(self, row: LaunchesInARow, key: tuple[int, ...]) -> None:
        """Let the kernels read and write where values lie now."""
        for name, before, now in zip(self._variable, self._latest, key, strict=True):
            if now != before:
                for launch, parameter, own in self._places[name]:
                    row.place(launch, parameter, now + own)
        self._latest = key
