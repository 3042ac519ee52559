"""Inputs and references go through the shared file unchanged, and come out read-only."""

import os

import numpy as np
import pytest

from tilewright.te.build import cast, compute, placeholder, workload
from tilewright.workers.reference_data import anonymous_file, compute_reference, map_reference, store_reference


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16", "int8", "int32", "bool"])
def test_what_is_stored_is_what_is_mapped(dtype: str) -> None:
    a = placeholder((3, 5), dtype, name="a")
    work = workload([compute((5, 3), lambda i, j: a[j, i], name="b"), compute((), lambda: a[0, 0], name="c")])
    reference_data = compute_reference(work, seed=3)
    descriptor = anonymous_file()
    try:
        os.pwrite(descriptor, b"left from before" * 1000, 0)
        mapped = map_reference(store_reference(reference_data, descriptor))
    finally:
        os.close(descriptor)
    assert mapped.inputs.keys() == {"a"} and mapped.expected.keys() == {"b", "c"}
    assert mapped.inputs["a"].dtype == reference_data.inputs["a"].dtype
    np.testing.assert_array_equal(mapped.inputs["a"], reference_data.inputs["a"])
    for name, expected in reference_data.expected.items():
        np.testing.assert_array_equal(mapped.expected[name].values, expected.values)
        assert mapped.expected[name].values.shape == expected.values.shape
        assert mapped.expected[name].absolute == expected.absolute
        assert mapped.expected[name].relative == expected.relative


def test_what_is_mapped_cannot_be_written() -> None:
    a = placeholder((8,), name="a")
    work = workload(compute((8,), lambda i: cast(a[i], "float64"), name="b"))
    descriptor = anonymous_file()
    try:
        mapped = map_reference(store_reference(compute_reference(work, 0), descriptor))
    finally:
        os.close(descriptor)
    assert not mapped.inputs["a"].flags.writeable
    assert not mapped.expected["b"].values.flags.writeable


def test_data_that_do_not_fit_into_memory_are_not_begun_with() -> None:
    a = placeholder((1 << 20, 1 << 19), name="a")
    large = workload(compute((1 << 20, 1 << 19), lambda i, j: a[i, j] + 1, name="b"))
    with pytest.raises(MemoryError, match="bytes needed"):
        compute_reference(large, 0)
