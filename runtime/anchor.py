"""The anchor: a fixed kernel timed between candidates, so that a machine that slowed down shows.

It mixes arithmetic with cache traffic on 48 KiB, takes some ten microseconds, runs on one thread, and is written as
kernel IR, so that no change to a sketch moves it.
"""

from dataclasses import dataclass
from statistics import median

import numpy as np

from ..codegen.backends import backend_for
from ..core.dtypes import float32
from ..core.streams import stream
from ..ir.buffer import Buffer
from ..ir.expr import Broadcast, Expr, Load, Ramp, Var, const
from ..ir.stmt import For, Kernel, LoopKind, Store, seq
from .device import Device, LoadedKernel, Memory

SIZE = 64
LANES = 16


@dataclass(frozen=True, slots=True)
class Anchor:
    """The anchor kernel loaded on a device, with its buffers."""

    kernel: LoadedKernel
    arguments: tuple[Memory, ...]

    def seconds(self, samples: int = 5, launches: int = 4) -> float:
        """The median of ``samples`` timings, each the mean of ``launches`` launches."""
        return median(self.kernel.time([self.arguments], launches) / launches for _ in range(samples))


def anchor_kernel() -> Kernel:
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


def load_anchor(device: Device) -> Anchor:
    """Compile and load the anchor, with fixed data."""
    backend = backend_for(device.info.target)
    target = device.info.target
    binary = backend.compile(backend.emit(anchor_kernel(), target), target)
    generator = stream(0, "anchor")
    memories = []
    for parameter in binary.parameters:
        memory = device.allocate(parameter.bytes)
        data = generator.uniform(-1, 1, parameter.shape).astype(np.float32)
        memory.write(data.reshape(-1).view(np.uint8))
        memories.append(memory)
    return Anchor(device.load(binary), tuple(memories))
