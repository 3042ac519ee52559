"""Measured peaks of a CUDA device: traffic, arithmetic and launches, each by a small kernel written for it.

Every figure is the best of several runs, because a peak is what the device does when nothing disturbs it.
"""

from dataclasses import dataclass
from statistics import median

import numpy as np

from ...codegen.backend import LaunchConfig, Source
from ...codegen.cuda.compile.compiler import compile_source
from ...core.streams import stream as random_stream
from ...core.target import Target
from .launch import CudaGraph, EventTimer, KernelArguments, LoadedCubin
from .memory import CudaMemory, CudaStream, DeviceAllocation, Transfers, array_bytes
from .peaks_source import ACCUMULATORS, PEAKS, ROUNDS, TENSOR_ACCUMULATORS, TENSOR_ROUNDS, UNROLL

MOST_TRAFFIC_BYTES = 1 << 30
"""The bytes of one buffer. It is many times the last-level cache, and long enough for the cost of a launch not to
matter."""
REPEATS = 7
THREADS = 256
_LAUNCHES = 1000
POWER_LAUNCHES = 60
"""So many launches of the power anchor are one sample. It takes some 300 ms until the power limit shows."""
_TENSOR_FLOPS = 2 * 16 * 8 * 16
"""The operations of one matrix instruction of a warp."""


@dataclass(frozen=True, slots=True)
class MeasurementResources:
    """The device, stream and timer with which peaks are measured."""

    stream: CudaStream
    transfers: Transfers
    timer: EventTimer
    target: Target
    memory_bytes: int


def measure(resources: MeasurementResources) -> dict[str, float]:
    """Measure what ``Device.measure_peaks`` says. There are also ``write_bytes_per_second``,
    ``peak_float16_flops_per_second`` (paired multiply-adds) and ``peak_tensor_{float16,bfloat16}_flops_per_second``
    (``mma.sync`` with float32 accumulators). ``launch_seconds`` is the time of an empty kernel, with one block per
    multiprocessor, in a CUDA graph of many."""
    cubin = _cubin(resources)
    return {**_traffic(resources, cubin), **_arithmetic(resources, cubin), "launch_seconds": _launch(resources, cubin)}


def power_anchor_seconds(resources: MeasurementResources) -> float:
    """Measure what ``Device.power_anchor_seconds`` says: the median of launches on a chip that earlier ones have made
    hot, so that its power limit decides the clock."""
    cubin = _cubin(resources)
    grid = LaunchConfig("power_anchor", (2 * resources.target.threads, 1, 1), THREADS)
    function, arguments = cubin.function(grid), KernelArguments([_random(resources, 1 << 14).address])

    def enqueue() -> None:
        for _ in range(POWER_LAUNCHES):
            function.enqueue(resources.stream.handle, arguments)

    graph = CudaGraph(resources.stream, enqueue)
    with resources.stream.context:
        samples = [resources.timer.seconds(graph.replay) / POWER_LAUNCHES for _ in range(2 * REPEATS)]
    return median(samples[REPEATS:])


def _cubin(resources: MeasurementResources) -> LoadedCubin:
    source = Source("cuda-c++", PEAKS, "tilewright_peaks", ())
    return LoadedCubin(resources.stream.context, compile_source(source, resources.target).code)


def _traffic(resources: MeasurementResources, cubin: LoadedCubin) -> dict[str, float]:
    chunk = 16 * UNROLL * THREADS
    nbytes = min(MOST_TRAFFIC_BYTES, resources.memory_bytes // 8) // chunk * chunk
    memories = [_random(resources, nbytes) for _ in range(2)]
    addresses = [memory.address for memory in memories]

    def rate(name: str, moved: int, unroll: int = UNROLL) -> float:
        grid = LaunchConfig(name, (nbytes // (16 * unroll * THREADS), 1, 1), THREADS)
        return moved / _best_seconds(resources, cubin, grid, addresses)

    return {
        "copy_bytes_per_second": max(rate("copy", 2 * nbytes), rate("copy_streaming", 2 * nbytes, unroll=1)),
        "read_bytes_per_second": rate("read", nbytes),
        "write_bytes_per_second": rate("write", nbytes),
    }


def _arithmetic(resources: MeasurementResources, cubin: LoadedCubin) -> dict[str, float]:
    blocks = 8 * resources.target.threads
    memory = _random(resources, 4096)
    peaks = {}
    for name, lanes in (("float32", 1), ("float64", 1), ("float16", 2)):
        grid = LaunchConfig(f"multiply_add_{name}", (blocks, 1, 1), THREADS)
        flops = 2 * lanes * ACCUMULATORS * ROUNDS * THREADS * blocks
        peaks[f"peak_{name}_flops_per_second"] = flops / _best_seconds(resources, cubin, grid, [memory.address])
    for name in ("float16", "bfloat16"):
        grid = LaunchConfig(f"matrix_{name}", (blocks, 1, 1), THREADS)
        flops = _TENSOR_FLOPS * TENSOR_ACCUMULATORS * TENSOR_ROUNDS * THREADS // 32 * blocks
        peaks[f"peak_tensor_{name}_flops_per_second"] = flops / _best_seconds(resources, cubin, grid, [memory.address])
    return peaks


def _launch(resources: MeasurementResources, cubin: LoadedCubin) -> float:
    grid = LaunchConfig("empty", (resources.target.threads, 1, 1), THREADS)
    return _best_seconds(resources, cubin, grid, [], _LAUNCHES) / _LAUNCHES


def _best_seconds(
    resources: MeasurementResources, cubin: LoadedCubin, grid: LaunchConfig, addresses: list[int], launches: int = 1
) -> float:
    function, arguments = cubin.function(grid), KernelArguments(addresses)

    def enqueue() -> None:
        for _ in range(launches):
            function.enqueue(resources.stream.handle, arguments)

    graph = CudaGraph(resources.stream, enqueue)
    with resources.stream.context:
        resources.timer.seconds(graph.replay)
        return min(resources.timer.seconds(graph.replay) for _ in range(REPEATS))


def _random(resources: MeasurementResources, nbytes: int) -> CudaMemory:
    """Return memory of random numbers between 0 and 1. Zeros would take less power, and so less time."""
    allocation = DeviceAllocation(resources.stream.context, nbytes)
    memory = CudaMemory(resources.transfers, allocation.address, nbytes, allocation)
    block = random_stream(0, "peaks").random(min(nbytes, 64 << 20) // 4, np.float32)
    for start in range(0, nbytes, block.nbytes):
        size = min(block.nbytes, nbytes - start)
        memory.view(start, size).write(array_bytes(block)[:size])
    return memory
