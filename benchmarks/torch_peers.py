"""PyTorch as a peer on an NVIDIA GPU: eager, torch.compile and its max-autotune mode, timed by graph replay.

Everything runs in one process on the same device buffers, rotated so that launches find cold caches; every output has
memory of its own for each set of buffers, for peers as for us, so that nobody writes into lines that are still cached.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch

from .orders import balanced_orders

Tensors = tuple[torch.Tensor, ...]
Call = Callable[[Tensors], object]
"""One computation on one set of inputs; what it returns is kept until its set comes round again."""

MODES: Mapping[str, str | None] = {
    "torch eager": None,
    "torch.compile": "default",
    "torch.compile max-autotune": "max-autotune-no-cudagraphs",
}
"""Peer -> mode of torch.compile (the graphs are ours, so its own are off). Our launches overlap with their neighbours
(programmatic dependent launch), so max-autotune's may too, where this PyTorch can do it."""

_OVERLAP = "triton.enable_pdl"

_MOST_LAUNCHES = 4000
_WAKING_BYTES, _WAKING_PASSES = 1 << 28, 8
"""Memory that is gone through after a rest: a millisecond of little power."""


def peers(function: Callable[..., object]) -> dict[str, Call]:
    """``function`` of the inputs in every mode; compiling happens at the first call."""
    torch._dynamo.reset()
    calls: dict[str, Call] = {}
    for name, mode in MODES.items():
        compiled = function if mode is None else torch.compile(function, options=_options(mode), dynamic=False)
        calls[name] = lambda inputs, f=compiled: f(*inputs)  # type: ignore[misc]
    return calls


def peer_options() -> dict[str, Mapping[str, object]]:
    """Peer -> what torch.compile is told for it."""
    return {name: {} if mode is None else _options(mode) for name, mode in MODES.items()}


def _options(mode: str) -> dict[str, Any]:
    """Return what a mode of torch.compile sets, launches that overlap included with max-autotune."""
    options: dict[str, Any] = dict(torch._inductor.list_mode_options(mode))
    if mode != "default" and _OVERLAP in torch._inductor.list_options():
        options[_OVERLAP] = True
    return options


@dataclass(frozen=True)
class Replay:
    """A captured graph of ``launches`` calls."""

    graph: torch.cuda.CUDAGraph
    launches: int
    kept: list[object]

    def seconds(self, stream: torch.cuda.Stream) -> float:
        """Of one call, from one replay."""
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        with torch.cuda.stream(stream):
            begin.record()
            self.graph.replay()
            end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3 / self.launches


def capture(call: Call, sets: Sequence[Tensors], seconds: float, stream: torch.cuda.Stream) -> Replay:
    """Return a graph of so many calls, in whole rounds over ``sets``, that one replay takes about ``seconds``."""
    with torch.cuda.stream(stream), torch.no_grad():
        kept: list[object] = [call(inputs) for inputs in sets]  # compiles, and loads lazily loaded kernels
        stream.synchronize()
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for position, inputs in enumerate(sets):
            kept[position] = call(inputs)
        end.record()
        end.synchronize()
        each = max(1e-6, begin.elapsed_time(end) / 1e3 / len(sets))
        rounds = max(1, min(_MOST_LAUNCHES, round(seconds / each)) // len(sets))
        kept = [None] * len(sets)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for _ in range(rounds):
                for position, inputs in enumerate(sets):
                    kept[position] = call(inputs)
    return Replay(graph, rounds * len(sets), kept)


def interleaved(
    calls: Mapping[str, Call], sets: Sequence[Tensors], *, rounds: int, seconds: float, rest_seconds: float = 0.0
) -> dict[str, list[float] | str]:
    """Seconds per call of each, one figure a round: in every round each graph is replayed once, in turn. A call that
    fails gives the error's first line instead. ``rest_seconds``: how long the chip rests before each replay, to be
    woken up then: where power bounds the clock, it is higher for the first tens of milliseconds, and low in the first
    fraction of one (740 TFLOP/s, then 650, but 350 at first, for products of 4096^3 on an H200)."""
    stream = torch.cuda.Stream()
    graphs: dict[str, Replay] = {}
    results: dict[str, list[float] | str] = {}
    for name, call in calls.items():
        try:
            graphs[name] = capture(call, sets, seconds, stream)
            graphs[name].seconds(stream)
        except Exception as error:  # a peer may fail in any way; the row says so and goes on
            results[name] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
            torch.cuda.synchronize()
    taken: dict[str, list[float]] = {name: [] for name in graphs}
    waking = torch.zeros(_WAKING_BYTES if rest_seconds else 0, dtype=torch.uint8, device="cuda")
    for order in balanced_orders(list(graphs), rounds):
        for name in order:
            if rest_seconds:
                time.sleep(rest_seconds)
                with torch.cuda.stream(stream):
                    for _ in range(_WAKING_PASSES):
                        waking.add_(1)
            taken[name].append(graphs[name].seconds(stream))
    return {**results, **taken}


def middle(times: list[float] | str) -> float | None:
    """Return the median, or None for a failure."""
    return None if isinstance(times, str) else median(times)
