"""Memory is filled, searched and compared on the device here; ``runtime.device.Device`` says what each function
does."""

from collections.abc import Sequence

import numpy as np

from ...codegen.backend import LaunchConfig, Source
from ...codegen.cuda.compile.compiler import compile_source
from ...core.dtypes import DType
from ...core.target import Target
from ..cpu_checks import check_pattern, matches, same_size, wanted_dtype
from ..device import Comparison, PatternMatches
from .checks_source import CHECKS
from .launch import CudaFunction, KernelArguments, LoadedCubin
from .memory import Bytes, CudaMemory, CudaStream, DeviceAllocation, Transfers, array_bytes

THREADS = 256
PER_THREAD = 8
"""A thread takes so many elements before it moves on, so that many loads are in flight."""
BLOCKS_PER_MULTIPROCESSOR = 8
_NONE = 2**64 - 1
_RESULT_WORDS = 4


class MemoryChecks:
    """The check kernels of one device. They are compiled when they are first used."""

    def __init__(self, stream: CudaStream, transfers: Transfers, target: Target) -> None:
        self._stream = stream
        self._transfers = transfers
        self._target = target
        self._cubins: dict[str, LoadedCubin] = {}
        self._functions: dict[tuple[str, int], CudaFunction] = {}
        result = DeviceAllocation(stream.context, 8 * _RESULT_WORDS)
        self._result = CudaMemory(transfers, result.address, result.nbytes, result)

    def fill(self, memory: CudaMemory, pattern: bytes) -> None:
        check_pattern(memory.nbytes, pattern)
        self._run("bytes", "fill", memory.nbytes // 8, [memory.address, memory.nbytes, _word(pattern)])

    def sweep(self, memory: CudaMemory) -> None:
        self._run("bytes", "sweep", memory.nbytes // 16, [memory.address, memory.nbytes, self._result.address])

    def changed(self, memory: CudaMemory, pattern: bytes) -> tuple[int, int] | None:
        check_pattern(memory.nbytes, pattern)
        start = [memory.address, memory.nbytes, _word(pattern)]
        first, last = self._run_for_result("bytes", "changed", memory.nbytes // 8, start, [_NONE, 0])
        return None if first == _NONE else (first, last)

    def differs(self, memory: CudaMemory, other: CudaMemory) -> bool:
        same_size(memory.nbytes, other.nbytes)
        (found,) = self._run_for_result(
            "bytes", "differs", memory.nbytes // 8, [memory.address, other.address, memory.nbytes], [0]
        )
        return found != 0

    def matching(self, memory: CudaMemory, pattern: bytes, among: PatternMatches | None) -> PatternMatches:
        check_pattern(memory.nbytes, pattern)
        if among is not None and not among.count:
            return among
        size = len(pattern)
        count, value = memory.nbytes // size, int.from_bytes(pattern, "little")
        (found,) = self._run_for_result(f"elements{size}", f"count{size}", count, [memory.address, count, value], [0])
        if not found:
            return PatternMatches(0, None, np.empty(0, np.uint8))
        bits = DeviceAllocation(self._stream.context, -(-count // 8))
        self._run(f"elements{size}", f"mark{size}", -(-count // 8), [memory.address, count, value, bits.address])
        return matches(CudaMemory(self._transfers, bits.address, bits.nbytes, bits).read(), among)

    def compare(self, got: CudaMemory, dtype: DType, want: CudaMemory, absolute: float, relative: float) -> Comparison:
        wanted = wanted_dtype(dtype, got.nbytes, want.nbytes)
        count = got.nbytes // dtype.bytes
        arguments = [got.address, want.address, count, float(absolute), float(relative)]
        largest, wrong = self._run_for_result(f"compare_{dtype}", f"compare_{dtype}", count, arguments, [0, _NONE])
        error = float(np.uint64(largest).view(np.float64))
        if wrong == _NONE:
            return Comparison(error)
        found = np.dtype(np.uint8) if dtype.is_bool else dtype.numpy
        return Comparison(error, wrong, *(_element(m, d, wrong) for m, d in ((got, found), (want, wanted))))

    def _run_for_result(
        self, unit: str, name: str, work: int, arguments: Sequence[int | float], start: Sequence[int]
    ) -> list[int]:
        """Run a kernel on the result words, which begin as ``start``, and return what it leaves there."""
        result = self._result.view(0, 8 * len(start))
        result.write(array_bytes(np.array(start, np.uint64)))
        self._run(unit, name, work, [*arguments, self._result.address])
        return [int(word) for word in result.read().view(np.uint64)]

    def _run(self, unit: str, name: str, work: int, arguments: Sequence[int | float]) -> None:
        """Launch a function of a translation unit once, and wait. There are threads for ``work`` elements, but at
        most as many as the device holds."""
        blocks = min(max(-(-work // (THREADS * PER_THREAD)), 1), self._target.threads * BLOCKS_PER_MULTIPROCESSOR)
        with self._stream.context:
            self._function(unit, name, blocks).enqueue(self._stream.handle, KernelArguments(arguments))
            self._stream.wait()

    def _function(self, unit: str, name: str, blocks: int) -> CudaFunction:
        if (name, blocks) not in self._functions:
            if unit not in self._cubins:
                source = Source("cuda-c++", CHECKS[unit], f"tilewright_{unit}", ())
                self._cubins[unit] = LoadedCubin(self._stream.context, compile_source(source, self._target).code)
            grid = LaunchConfig(f"tilewright_{name}", (blocks, 1, 1), THREADS)
            self._functions[name, blocks] = self._cubins[unit].function(grid)
        return self._functions[name, blocks]


def _word(pattern: bytes) -> int:
    """Repeat the pattern over eight bytes."""
    return int.from_bytes(pattern * (8 // len(pattern)), "little")


def _element(memory: CudaMemory, dtype: np.dtype[np.generic], index: int) -> np.generic:
    data: Bytes = memory.view(index * dtype.itemsize, dtype.itemsize).read()
    element: np.generic = data.view(dtype)[0]
    return element
