"""The devices of this machine, for tests that run on every one that is present."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tilewright.core.dtypes import float32
from tilewright.core.errors import UnsupportedTarget
from tilewright.ir.buffer import Buffer, MemoryScope
from tilewright.ir.build import Writer
from tilewright.ir.expr import Load, const, index
from tilewright.ir.stmt import HardwareAxis, Kernel
from tilewright.runtime.device import Device
from tilewright.runtime.devices import DEVICES, open_device

_MARKS = {"cuda": [pytest.mark.cuda]}

PRESENT = [pytest.param(kind, marks=_MARKS.get(kind, [])) for kind in sorted(DEVICES)]
"""One parameter for each kind of device, marked with what it needs."""


@contextmanager
def opened(kind: str) -> Iterator[Device]:
    """The device of ``kind``; the test is skipped where this machine has none."""
    try:
        device = open_device(kind)
    except UnsupportedTarget as error:
        pytest.skip(str(error))
    yield device


def matmul_on_a_grid(m: int, n: int, k: int) -> Kernel:
    """``C = A @ B`` on float32, a row of C a block and an element of it a thread."""
    a, b, c = (Buffer(name, shape, float32) for name, shape in zip("ABC", ((m, k), (k, n), (m, n)), strict=True))
    w = Writer()
    with w.launch("matmul", (("i", m, HardwareAxis.GRID_X), ("j", n, HardwareAxis.THREAD))) as (i, j):
        total = w.allocate("total", (1,), float32, MemoryScope.REGISTER)
        w.store(total, (index(0),), const(0.0, float32))
        with w.loop("k", k) as step:
            w.store(total, (index(0),), Load(total, (index(0),)) + Load(a, (i, step)) * Load(b, (step, j)))
        w.store(c, (i, j), Load(total, (index(0),)))
    return Kernel("matmul", (a, b), (c,), (), w.finish())
