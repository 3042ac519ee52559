"""CUDA C++ from kernel IR: it compiles, without headers, to the accesses that the IR promises."""

import pytest

from tilewright.codegen.backends import backend_for
from tilewright.codegen.cuda.compile import compiled
from tilewright.codegen.cuda.resources import parse_log
from tilewright.core.target import Target
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
