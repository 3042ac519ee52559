"""The anchor: a fixed kernel timed between candidates, so that a machine that slowed down shows.

It mixes arithmetic with cache traffic (48 KiB on one thread of a CPU, 768 KiB on all of a graphics processor), takes
some ten microseconds, and is written as kernel IR, so that no change to a sketch moves it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import numpy as np

from ..codegen.backends import backend_for
from ..core.dtypes import float32
from ..core.errors import UnsupportedTarget
from ..core.streams import stream
from ..ir.buffer import Buffer, MemoryScope
from ..ir.build import Writer
from ..ir.expr import Broadcast, Expr, Load, Ramp, Var, const, index
from ..ir.stmt import For, HardwareAxis, Kernel, LoopKind, Store, seq
from .device import Device, LoadedKernel, Memory

SIZE = 64
LANES = 16
GRID_SIZE = 256


@dataclass(frozen=True, slots=True)
class Anchor:
    """The anchor kernel loaded on a device, with its buffers."""

    kernel: LoadedKernel
    arguments: tuple[Memory, ...]

    def seconds(self, samples: int = 5, launches: int = 4) -> float:
        """The median of ``samples`` timings, each the mean of ``launches`` launches."""
        return median(self.kernel.time([self.arguments], launches) / launches for _ in range(samples))


def serial_anchor() -> Kernel:
    """``C = A @ B`` on float32[64, 64], the plain vectorised loop nest."""
    a, b, c = (Buffer(name, (SIZE, SIZE), float32) for name in "ABC")
    i, j, k = Var("i"), Var("j"), Var("k")
    lanes: Expr = Ramp(j * LANES, 1, LANES)
    zero = Broadcast(const(0.0, float32), LANES)
    product = Broadcast(Load(a, (i, k)), LANES) * Load(b, (k, lanes))
    nest = For(
        "j",
        SIZE // LANES,
        LoopKind.SERIAL,
        seq(
            Store(c, (i, lanes), zero),
            For("k", SIZE, LoopKind.SERIAL, Store(c, (i, lanes), Load(c, (i, lanes)) + product)),
        ),
    )
    return Kernel("anchor", (a, b), (c,), (), For("i", SIZE, LoopKind.SERIAL, nest))


def grid_anchor() -> Kernel:
    """``C = A @ B`` on float32[256, 256]: a row a block, an element a thread, every operand through the caches."""
    a, b, c = (Buffer(name, (GRID_SIZE, GRID_SIZE), float32) for name in "ABC")
    w = Writer()
    bounds = (("i", GRID_SIZE, HardwareAxis.GRID_X), ("j", GRID_SIZE, HardwareAxis.THREAD))
    with w.launch("anchor", bounds) as (i, j):
        total = w.allocate("total", (1,), float32, MemoryScope.REGISTER)
        w.store(total, (index(0),), const(0.0, float32))
        with w.loop("k", GRID_SIZE) as k:
            w.store(total, (index(0),), Load(total, (index(0),)) + Load(a, (i, k)) * Load(b, (k, j)))
        w.store(c, (i, j), Load(total, (index(0),)))
    return Kernel("anchor", (a, b), (c,), (), w.finish())


ANCHORS: dict[str, Callable[[], Kernel]] = {"llvm": serial_anchor, "cuda": grid_anchor}
"""Target kind -> its anchor."""


def load_anchor(device: Device) -> Anchor:
    """Compile and load the anchor, with fixed data. Raises UnsupportedTarget for a kind without one."""
    target = device.info.target
    backend = backend_for(target)
    if target.kind not in ANCHORS:
        raise UnsupportedTarget(f"no anchor for {target}; known: {', '.join(ANCHORS)}", field="target")
    binary = backend.compile(backend.emit(ANCHORS[target.kind](), target), target)
    generator = stream(0, "anchor")
    memories = []
    for parameter in binary.parameters:
        memory = device.allocate(parameter.bytes)
        data = generator.uniform(-1, 1, parameter.shape).astype(np.float32)
        memory.write(data.reshape(-1).view(np.uint8))
        memories.append(memory)
    return Anchor(device.load(binary), tuple(memories))
