"""Measured peaks of a CPU: arithmetic, memory traffic and launches, each by a kernel written for the purpose.

Every figure is the best of several runs, because a peak is what the machine can do when nothing disturbs it.
"""

from collections.abc import Sequence

import numpy as np

from ..codegen.backends import backend_for
from ..core.dtypes import DType, float32, float64
from ..ir.buffer import Buffer, MemoryScope
from ..ir.build import Writer
from ..ir.cpu import DOT_ATOMS, TILE_ROWS, DotAtom, TileLoad, TileMma, TileStore, TileZero
from ..ir.expr import BinaryOp, Broadcast, Expr, Load, Ramp, ReduceLanes, Var, const, index
from ..ir.stmt import Allocate, For, Kernel, LoopKind, Store, seq
from .device import Device, Memory

ACCUMULATORS = 12
"""So many chains of fused multiply-adds are independent. They are enough to hide the latency, and few enough to stay
in registers."""
ROUNDS = 20_000
TILE_SIDE = 2
"""The accumulators are so many rows and columns of tiles. Four chains of products hide their latency."""
LEAST_TRAFFIC_BYTES, MOST_TRAFFIC_BYTES = 64 << 20, 512 << 20
"""The limits of one buffer in bytes. Within them it has twice the size of the last-level cache."""
L2_BYTES, L2_ROUNDS = 128 << 10, 256
"""What each thread reads again and again from its second-level cache, and how often: more than a first-level cache
holds."""
REPEATS = 7
_BLOCK = 16_384


def measure(device: Device) -> dict[str, float]:
    """Measure the peaks; see ``Device.measure_peaks``."""
    threads = device.info.target.threads
    peaks = {}
    for dtype in (float32, float64):
        lanes = max(device.info.target.vector_bytes // dtype.bytes, 1)
        flops = 2 * lanes * ACCUMULATORS * ROUNDS * threads
        seconds = _best_seconds(device, arithmetic_kernel(dtype, lanes, threads), 1)
        peaks[f"peak_{dtype}_flops_per_second"] = flops / seconds
    for atom in DOT_ATOMS.values():
        if atom.left == atom.right and atom.tile_feature in device.info.target.features:
            flops = 2 * TILE_ROWS * TILE_ROWS * atom.depth * TILE_SIDE**2 * ROUNDS * threads
            seconds = _best_seconds(device, tile_kernel(atom, threads), 1)
            peaks[f"peak_tensor_{atom.left}_flops_per_second"] = flops / seconds
    lanes = max(device.info.target.vector_bytes // 4, 1)
    cache = int(device.info.hardware.get("l3_bytes", device.info.hardware.get("l2_bytes", 0)))
    nbytes = min(max(2 * cache, LEAST_TRAFFIC_BYTES), MOST_TRAFFIC_BYTES) // (4 * _BLOCK) * (4 * _BLOCK)
    traffic = [_ones(device, float32, nbytes) for _ in range(2)]  # both kernels use them: to fill them takes longest
    peaks["copy_bytes_per_second"] = 2 * nbytes / _best_seconds(device, copy_kernel(lanes, nbytes), 1, traffic)
    peaks["read_bytes_per_second"] = nbytes / _best_seconds(device, read_kernel(lanes, nbytes), 1, traffic[:1])
    nbytes, once = threads * L2_BYTES, L2_BYTES // 4
    seconds = _best_seconds(device, read_kernel(lanes, nbytes, block=once, rounds=L2_ROUNDS), 1)
    peaks["l2_read_bytes_per_second"] = nbytes * L2_ROUNDS / seconds
    peaks["launch_seconds"] = _best_seconds(device, launch_kernel(threads), 200)
    return peaks


def arithmetic_kernel(dtype: DType, lanes: int, threads: int) -> Kernel:
    """Each of ``threads`` tasks runs ``ACCUMULATORS`` chains of ``a = a * x + y`` for ``ROUNDS`` steps."""
    source = Buffer("X", (2,), dtype)
    result = Buffer("Y", (threads, ACCUMULATORS, lanes), dtype)
    registers = Buffer("acc", (ACCUMULATORS, lanes), dtype, MemoryScope.REGISTER)
    every = Ramp(index(0), 1, lanes)
    x, y = (Broadcast(Load(source, (index(n),)), lanes) for n in range(2))

    def chain(n: int) -> Expr:
        return Load(registers, (index(n), every))

    numbers = range(ACCUMULATORS)
    start = [Store(registers, (index(n), every), Broadcast(const(float(n), dtype), lanes)) for n in numbers]
    step = [Store(registers, (index(n), every), chain(n) * x + y) for n in numbers]
    finish = [Store(result, (Var("task"), index(n), every), chain(n)) for n in numbers]
    body = Allocate(registers, seq(*start, For("round", ROUNDS, LoopKind.SERIAL, seq(*step)), *finish))
    return Kernel("arithmetic", (source,), (result,), (), For("task", threads, LoopKind.PARALLEL, body))


def tile_kernel(atom: DotAtom, threads: int) -> Kernel:
    """Each of ``threads`` tasks multiplies tiles that it has loaded once, for ``ROUNDS`` steps."""
    width = TILE_ROWS * atom.group
    left, right = Buffer("A", (TILE_ROWS, atom.depth), atom.left), Buffer("B", (TILE_ROWS, width), atom.right)
    result = Buffer("C", (threads, TILE_SIDE, TILE_SIDE, TILE_ROWS, TILE_ROWS), atom.accumulator)
    w, start, side = Writer(), (index(0), index(0)), range(TILE_SIDE)
    indices = [(index(r), index(c)) for r in side for c in side]
    with w.loop("task", threads, LoopKind.PARALLEL) as task:
        accumulators = w.allocate("accumulators", result.shape[1:], atom.accumulator, MemoryScope.REGISTER)
        a = w.allocate("a", (TILE_SIDE, *left.shape), atom.left, MemoryScope.REGISTER)
        b = w.allocate("b", (TILE_SIDE, *right.shape), atom.right, MemoryScope.REGISTER)
        for n in side:
            w.emit(TileLoad(a, (index(n),), left, start))
            w.emit(TileLoad(b, (index(n),), right, start))
        for at in indices:
            w.emit(TileZero(accumulators, at))
        with w.loop("round", ROUNDS):
            for r, c in indices:
                w.emit(TileMma(atom.name, accumulators, (r, c), a, (r,), b, (c,)))
        for at in indices:
            w.emit(TileStore(result, (task, *at, *start), accumulators, at))
    return Kernel("tiles", (left, right), (result,), (), w.finish())


def copy_kernel(lanes: int, nbytes: int) -> Kernel:
    """The kernel computes ``Y[i] = X[i]`` in whole vectors."""
    source, result = _traffic("X", nbytes), _traffic("Y", nbytes)
    at = (Var("block"), Ramp(Var("step") * lanes, 1, lanes))
    inner = For("step", _BLOCK // lanes, LoopKind.SERIAL, Store(result, at, Load(source, at)))
    return Kernel("copy", (source,), (result,), (), For("block", source.shape[0], LoopKind.PARALLEL, inner))


def read_kernel(lanes: int, nbytes: int, block: int = _BLOCK, rounds: int = 1) -> Kernel:
    """The kernel computes one sum for each block of X, which it reads ``rounds`` times."""
    source = _traffic("X", nbytes, block)
    result = Buffer("Y", (source.shape[0],), float32)
    unroll = 8
    registers = Buffer("acc", (unroll, lanes), float32, MemoryScope.REGISTER)
    every, item, step = Ramp(index(0), 1, lanes), Var("block"), Var("step")

    def partial(n: int) -> Expr:
        return Load(registers, (index(n), every))

    def data(n: int) -> Expr:
        return Load(source, (item, Ramp(step * (lanes * unroll) + n * lanes, 1, lanes)))

    start = [Store(registers, (index(n), every), Broadcast(const(0.0, float32), lanes)) for n in range(unroll)]
    add = [Store(registers, (index(n), every), partial(n) + data(n)) for n in range(unroll)]
    finish = Store(result, (item,), ReduceLanes(BinaryOp.ADD, sum(map(partial, range(1, unroll)), partial(0))))
    loop = For("step", block // (lanes * unroll), LoopKind.SERIAL, seq(*add))
    body = Allocate(registers, seq(*start, For("round", rounds, LoopKind.SERIAL, loop), finish))
    return Kernel("read", (source,), (result,), (), For("block", source.shape[0], LoopKind.PARALLEL, body))


def launch_kernel(threads: int) -> Kernel:
    """The kernel does next to nothing on every thread."""
    result = Buffer("Y", (threads,), float32)
    body = Store(result, (Var("task"),), const(1.0, float32))
    return Kernel("launch", (), (result,), (), For("task", threads, LoopKind.PARALLEL, body))


def _traffic(name: str, nbytes: int, block: int = _BLOCK) -> Buffer:
    return Buffer(name, (nbytes // 4 // block, block), float32)


def _best_seconds(device: Device, kernel: Kernel, launches: int, first: Sequence[Memory] = ()) -> float:
    """Return the least seconds of a launch. ``first`` are the memories of the first parameters, where they exist."""
    target = device.info.target
    backend = backend_for(target)
    binary = backend.compile(backend.emit(kernel, target), target)
    memories = [*first, *(_ones(device, p.dtype, p.bytes) for p in binary.parameters[len(first) :])]
    loaded = device.load(binary)
    sets: Sequence[Sequence[Memory]] = [memories]
    loaded.time(sets, launches)
    return min(loaded.time(sets, launches) for _ in range(REPEATS)) / launches


def _ones(device: Device, dtype: DType, nbytes: int) -> Memory:
    memory = device.allocate(nbytes)
    device.fill(memory, np.ones(1, dtype.numpy).tobytes())
    return memory
