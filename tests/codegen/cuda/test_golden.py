"""Golden files of the CUDA C++ of a few kernels."""

import pytest

from tilewright.codegen.backends import backend_for
from tilewright.core.target import Target
from tilewright.tests.codegen.cuda.launches import LAUNCHES
from tilewright.tests.golden import check_golden

SM90A = Target("cuda", "sm_90a", (), 132, 16)


@pytest.mark.parametrize(
    "name",
    [
        "softmax_float16",
        "transpose_bfloat16",
        "cluster_sum_2",
        "matrix_float16",
        "unaligned_loads_float16",
        "unaligned_copies_float16",
        "reduced_in_memory_int64",
        "reduced_in_memory_float32",
    ],
)
def test_cuda_source(name: str) -> None:
    backend = backend_for(SM90A)
    source = backend.emit(backend.passes(LAUNCHES[name])[-1][1], SM90A)
    check_golden(f"codegen/golden/{name}.cu", source.text)
