"""CUDA C++ from kernel IR: it compiles, without headers, to the accesses that the IR promises."""

import pytest

from tilewright.codegen.backends import backend_for
from tilewright.codegen.cuda.compile import compiled
from tilewright.codegen.cuda.resources import parse_log
from tilewright.core.dtypes import float32
from tilewright.core.target import Target
from tilewright.ir.buffer import Buffer, Scope
from tilewright.ir.build import Writer
from tilewright.ir.expr import Load, PeerLoad, index
from tilewright.ir.gpu import Level
from tilewright.ir.stmt import HardwareAxis, Kernel
from tilewright.tests.codegen.cuda.launches import LAUNCHES, launched
from tilewright.tests.codegen.kernels import KERNELS

SM90A = Target("cuda", "sm_90a", (), 132, 16)


ALL = {**{name: launched(kernel) for name, kernel in KERNELS.items()}, **LAUNCHES}


@pytest.mark.parametrize("name", ALL)
def test_every_node_of_the_ir_compiles_without_a_header(name: str) -> None:
    backend = backend_for(SM90A)
    final = backend.passes(ALL[name], SM90A)[-1][1]
    source = backend.emit(final, SM90A)
    assert "#include" not in source.text
    result = compiled(source, SM90A)  # some of these kernels hold more than a setting of a sketch may
    assert result.cubin.startswith(b"\x7fELF")
    assert set(parse_log(result.log)) == {g.function for g in source.launches}


@pytest.mark.parametrize("through_memory", [False, True])
def test_blocks_wait_for_stores_to_memory_only_where_others_read_them(through_memory: bool) -> None:
    source, result = Buffer("A", (2, 64), float32), Buffer("O", (2, 2, 64), float32)
    w = Writer()
    with w.launch("turned", [("rank", 2, HardwareAxis.CLUSTER), ("t", 64, HardwareAxis.THREAD)]) as (rank, t):
        part = w.allocate("part", (64,), float32, Scope.SHARED)
        w.store(part, (t,), Load(source, (rank, t)))
        w.store(result, (index(0), rank, t), Load(source, (rank, t)))
        w.barrier(Level.CLUSTER)
        other = Load(result, (index(0), 1 - rank, t)) if through_memory else PeerLoad(part, (t,), 1 - rank)
        w.store(result, (index(1), rank, t), other)
        w.barrier(Level.CLUSTER)
    kernel = Kernel("turned", (source,), (result,), (), w.finish())
    backend = backend_for(SM90A)
    emitted = backend.emit(kernel, SM90A)
    assert ("  cluster_barrier();" in emitted.text) == through_memory
    assert ("  cluster_barrier_shared();" in emitted.text) != through_memory
    assert backend.compile(emitted, SM90A).code.startswith(b"\x7fELF")
