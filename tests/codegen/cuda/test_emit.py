"""CUDA C++ from kernel IR: it compiles, without headers, to the accesses that the IR promises."""

from dataclasses import replace

import pytest

from tilewright.codegen.backends import backend_for
from tilewright.core.target import Target
from tilewright.ir.rewrite import map_statements
from tilewright.ir.stmt import Bound, For, HardwareAxis, Kernel, Launch, LoopKind, Stmt
from tilewright.tests.codegen.cuda.launches import LAUNCHES
from tilewright.tests.codegen.kernels import KERNELS

SM90A = Target("cuda", "sm_90a", (), 132, 16)


def launched(kernel: Kernel) -> Kernel:
    """A kernel of loops as one launch of one thread."""

    def serial(stmt: Stmt) -> Stmt:
        is_parallel = isinstance(stmt, For) and stmt.kind is LoopKind.PARALLEL
        return replace(stmt, kind=LoopKind.SERIAL) if is_parallel else stmt  # type: ignore[type-var]

    bounds = (Bound("one_thread", 1, HardwareAxis.THREAD),)
    return replace(kernel, body=Launch(kernel.name, bounds, map_statements(kernel.body, serial)))


ALL = {**{name: launched(kernel) for name, kernel in KERNELS.items()}, **LAUNCHES}


@pytest.mark.parametrize("name", ALL)
def test_every_node_of_the_ir_compiles_without_a_header(name: str) -> None:
    backend = backend_for(SM90A)
    final = backend.passes(ALL[name], SM90A)[-1][1]
    source = backend.emit(final, SM90A)
    assert "#include" not in source.text
    binary = backend.compile(source, SM90A)
    assert binary.code.startswith(b"\x7fELF")
    assert set(binary.resources) == {g.function for g in binary.launches}
