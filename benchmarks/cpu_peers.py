"""Peers on this machine's CPU, and how calls are timed beside each other.

Peers allocate their outputs, so the C library is told to keep what it has and to give it out again: nobody pays for
pages that are new, and nobody for small ones, since all of them come from one heap of huge pages.
"""

import time
from collections.abc import Callable, Mapping
from ctypes import CDLL, c_size_t, c_void_p
from statistics import median
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch._inductor import config

from .orders import balanced_orders

Call = Callable[[], object]
Inputs = list[NDArray[Any]]

MODES: Mapping[str, str | None] = {
    "torch": None,
    "torch.compile": "default",
    "torch.compile max-autotune": "max-autotune-no-cudagraphs",
}
"""Peer -> mode of torch.compile. Weights are arguments: nobody packs them beforehand."""

PAUSE_SECONDS = 0.1
"""Between blocks: threads of libraries spin for a while after a call and would take time from whoever comes next."""
WARM_SECONDS = 0.02
"""Before a block: threads that were woken on the same processor need as long to part."""
BLOCKS, BLOCK_SECONDS = 3, 0.01
"""In each round; the best counts, for everybody: a thread that was put beside another costs all of them."""

_TRIM_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -4, -8
"""Options of glibc's ``mallopt``."""
_HEAP_BYTES, _HUGE_PAGE_BYTES, _MADV_HUGEPAGE = 1 << 30, 2 << 20, 14


def recycle_memory() -> None:
    """Freed memory stays with the process: no mapping for large blocks, no trimming, one heap for all threads.

    The first GiB of that heap has huge pages, where Linux has some. Otherwise PyTorch's large tensors alone would have
    them, since NumPy and we take what is free of the small pages that others left.
    """
    libc = CDLL(None)
    for option, value in ((_MMAP_MAX, 0), (_TRIM_THRESHOLD, (1 << 31) - 1), (_ARENA_MAX, 1)):
        if libc.mallopt(option, value) != 1:
            raise OSError(f"mallopt({option}, {value}) failed")
    libc.malloc.argtypes, libc.malloc.restype = [c_size_t], c_void_p
    heap = libc.malloc(c_size_t(_HEAP_BYTES))
    begin = -(-heap // _HUGE_PAGE_BYTES) * _HUGE_PAGE_BYTES
    libc.madvise(c_void_p(begin), c_size_t(heap + _HEAP_BYTES - begin), _MADV_HUGEPAGE)
    libc.free(c_void_p(heap))


def aligned(array: NDArray[Any]) -> NDArray[Any]:
    """Return a copy that begins where PyTorch would have it begin; NumPy only cares for 16 bytes."""
    block = np.empty(array.nbytes + 64, np.uint8)
    begin = -block.ctypes.data % 64
    copy = block[begin : begin + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def tensor(array: NDArray[Any]) -> torch.Tensor:
    """``array`` itself, as PyTorch sees it."""
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def torch_calls(function: Callable[..., object], inputs: Inputs, modes: list[str]) -> dict[str, Call]:
    """``function`` of the inputs in some of ``MODES``; compiling happens at the first call."""
    torch._dynamo.reset()
    tensors = [tensor(a) for a in inputs]
    calls: dict[str, Call] = {}
    for name in modes:
        mode = MODES[name]
        compiled = function if mode is None else torch.compile(function, mode=mode, dynamic=False)
        calls[name] = lambda f=compiled: f(*tensors)  # type: ignore[misc]
    return calls


class _Frozen(torch.nn.Module):  # type: ignore[misc]  # torch has no types here
    """``function`` of an argument and of weights that stay as they are."""

    def __init__(self, function: Callable[..., object], weights: list[torch.Tensor]) -> None:
        super().__init__()
        self.function = function
        self.b = torch.nn.ParameterList([torch.nn.Parameter(w, requires_grad=False) for w in weights])

    def forward(self, x: torch.Tensor) -> object:
        return self.function(x, *self.b)


def frozen_calls(function: Callable[..., object], inputs: Inputs, modes: list[str]) -> dict[str, Call]:
    """As ``torch_calls``, with all inputs but the first known when it is compiled, so that weights are packed then."""
    torch._dynamo.reset()
    config.freezing = True
    x, *weights = (tensor(a) for a in inputs)
    module = _Frozen(function, weights).eval()
    calls: dict[str, Call] = {}
    for name in modes:
        mode = MODES[name]
        compiled = module if mode is None else torch.compile(module, mode=mode, dynamic=False)
        calls[name] = lambda f=compiled: f(x)  # type: ignore[misc]
    return calls


def interleaved(
    calls: Mapping[str, Call], rounds: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, list[float] | str]:
    """Seconds per call by ``clock``, a figure a round: in every round each is warmed up and timed in turn, in
    ``BLOCKS`` of so many calls that they last ``BLOCK_SECONDS``, the best of which counts. A call that fails gives the
    error's first line."""
    repeats: dict[str, int] = {}
    results: dict[str, list[float] | str] = {}
    for name, call in calls.items():
        try:
            call()  # compiles
            repeats[name] = max(1, round(BLOCK_SECONDS / min(_seconds(call, 1, clock) for _ in range(3))))
        except Exception as error:  # a peer may fail in any way; the row says so and goes on
            results[name] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    taken: dict[str, list[float]] = {name: [] for name in repeats}
    for order in balanced_orders(list(repeats), rounds):
        for name in order:
            time.sleep(PAUSE_SECONDS)
            warm = time.perf_counter() + WARM_SECONDS
            while time.perf_counter() < warm:
                calls[name]()
            taken[name].append(min(_seconds(calls[name], repeats[name], clock) for _ in range(BLOCKS)))
    return {**results, **taken}


def _seconds(call: Call, repeats: int, clock: Callable[[], float]) -> float:
    """Of one of ``repeats`` calls."""
    began = clock()
    for _ in range(repeats):
        call()
    return max((clock() - began) / repeats, 1e-7)


def middle(times: list[float] | str) -> float | None:
    """Return the median, or None for a failure."""
    return None if isinstance(times, str) else median(times)
