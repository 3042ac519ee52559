"""Passes keep kernels with launches legal, and their results the same bit for bit."""

import numpy as np
import pytest

from tests.codegen.cuda.launches import LAUNCHES
from tests.ir.launches import FAULTS, data_of
from tilewright.codegen.cuda.backend import CudaBackend
from tilewright.codegen.passes.partition import partition
from tilewright.codegen.passes.vectorise import vectorise
from tilewright.core.dtypes import float32
from tilewright.ir.buffer import Buffer, MemoryScope
from tilewright.ir.build import Writer
from tilewright.ir.expr import Load, Shuffle, ShuffleMode, const, index
from tilewright.ir.interpret import interpret
from tilewright.ir.simplify import simplify_kernel
from tilewright.ir.stmt import For, HardwareAxis, Kernel, walk_statements
from tilewright.ir.verify import verify


def guarded_vectors() -> Kernel:
    """Return a kernel with a tail that is guarded element by element in vectorised loops, around a barrier."""
    n, threads, lanes = 250, 32, 4
    a, o = Buffer("A", (n,), float32), Buffer("O", (n,), float32)
    w = Writer()
    with w.launch("tail", [("b", 2, HardwareAxis.GRID_X), ("t", threads, HardwareAxis.THREAD)]) as (b, t):
        kept = w.allocate("S", (threads * lanes,), float32, MemoryScope.SHARED)
        for name, shared_to_global in (("v", False), ("u", True)):
            with w.vectorized(name, lanes) as v:
                at = b * (threads * lanes) + t * lanes + v
                with w.when(at < index(n)):
                    local = (t * lanes + v,)
                    if shared_to_global:
                        w.store(o, (at,), Load(kept, local) * 2.0)
                    else:
                        w.store(kept, local, Load(a, (at,)))
            w.barrier()
        with w.loop("i", 3) as i, w.when(b * 3 + i < index(4)):
            w.barrier()
            w.store(o, (b * 128 + t,), Load(o, (b * 128 + t,)) + Shuffle(ShuffleMode.XOR, Load(kept, (t,)), index(1)))
            w.barrier()
    return Kernel("tail", (a,), (o,), (), w.finish())


def lanes_of_one_register() -> Kernel:
    """Return a kernel with a vectorised loop over registers that has no vector form: one lane alone is written."""
    threads, lanes = 32, 4
    a, o = Buffer("A", (threads,), float32), Buffer("O", (threads, lanes), float32)
    w = Writer()
    with w.launch("lanes", [("t", threads, HardwareAxis.THREAD)]) as (t,):
        kept = w.allocate("R", (lanes,), float32, MemoryScope.REGISTER)
        with w.vectorized("v", lanes) as v:
            w.store(kept, (v,), const(0.0, float32))
            with w.when(v < index(1)):
                w.store(kept, (index(0),), Load(a, (t,)))
        with w.vectorized("u", lanes) as u:
            w.store(o, (t, u), Load(kept, (u,)))
    return Kernel("lanes", (a,), (o,), (), w.finish())


KERNELS = {**LAUNCHES, **{build.__name__: build("") for build in FAULTS}, "guarded_vectors": guarded_vectors()}
KERNELS["lanes_of_one_register"] = lanes_of_one_register()


@pytest.mark.parametrize("name", KERNELS)
def test_passes_keep_results(name: str) -> None:
    kernel = KERNELS[name]
    data = data_of(kernel)
    wanted = interpret(kernel, data)
    final = CudaBackend().passes(kernel)[-1][1]
    verify(final, final=True)
    cut = simplify_kernel(vectorise(partition(simplify_kernel(kernel))))
    for variant in (final, cut):
        for output, result in interpret(variant, data).items():
            np.testing.assert_array_equal(result, wanted[output])


def test_loops_that_meet_stay_whole_and_vectors_are_made() -> None:
    final = CudaBackend().passes(guarded_vectors())[-1][1]
    loops = [s.var for s in walk_statements(final.body) if isinstance(s, For)]
    assert loops == ["i"]
