"""Tests of how many bytes a kernel's accesses ask for."""

from tilewright.codegen.memory_traffic import accessed_bytes
from tilewright.tests.codegen.cuda.launches import LAUNCHES
from tilewright.tests.codegen.kernels import KERNELS


def test_a_kernel_that_touches_everything_once_asks_for_just_that() -> None:
    for name in ("softmax_float16", "transpose_float16", "bulk_float32"):
        kernel = LAUNCHES[name]
        assert accessed_bytes(kernel) == sum(b.bytes for b in kernel.parameters), name


def test_repeats_count_every_time() -> None:
    a, b, c = KERNELS["matmul"].parameters  # 5 x 17 by 17 x 48, 16 columns at a time: A three times, B five times
    assert accessed_bytes(KERNELS["matmul"]) == 3 * a.bytes + 5 * b.bytes + c.bytes


def test_what_one_thread_of_many_does_counts_once() -> None:
    source, result = LAUNCHES["cluster_sum_2"].parameters
    assert accessed_bytes(LAUNCHES["cluster_sum_2"]) == source.bytes + result.bytes
