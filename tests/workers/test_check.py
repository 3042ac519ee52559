"""Every way of being wrong is told from every other, for every element type."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import ml_dtypes  # noqa: F401  (teaches NumPy bfloat16)
import numpy as np
import pytest
from numpy.typing import NDArray

from tilewright.codegen.backend import KernelParameter
from tilewright.core.dtypes import DTYPES, KERNEL_DTYPES, DType
from tilewright.core.trial import Reason
from tilewright.runtime.cpu import CpuDevice, CpuMemory
from tilewright.runtime.device import Memory
from tilewright.workers.buffers import GUARD_BYTES, GuardedBuffer, filling
from tilewright.workers.check import Expected, Truth, Verdict, check, check_again, compare

SIZE = 300
Arrays = Sequence[NDArray[np.generic]]


@dataclass
class HostKernel:
    """A kernel written in Python. It sees each buffer with ``reach`` elements of the guard bands on both sides."""

    dtype: DType
    body: Callable[[Arrays], None]
    reach: int = 4

    def prepare(self, arguments: Sequence[Memory]) -> None: ...

    def launch(self, arguments: Sequence[Memory]) -> None:
        self.body([self._array(a) for a in arguments])

    def time(self, argument_sets: Sequence[Sequence[Memory]], launches: int) -> float:
        for n in range(launches):
            self.launch(argument_sets[n % len(argument_sets)])
        return 1e-6 * launches

    def _array(self, memory: Memory) -> NDArray[np.generic]:
        assert isinstance(memory, CpuMemory)
        whole = memory.array.base
        assert isinstance(whole, np.ndarray)
        margin = self.reach * self.dtype.bytes
        start = memory.address - int(whole.ctypes.data) - margin
        return whole.reshape(-1).view(np.uint8)[start : start + memory.nbytes + 2 * margin].view(self.dtype.numpy)


class Setting:
    """``c[i] = a[i]`` with a workspace ``w`` between, on guarded buffers of a real device."""

    def __init__(self, dtype: DType) -> None:
        device = CpuDevice()
        self.dtype = dtype
        values = np.arange(SIZE) % 2 if dtype.is_bool else np.arange(SIZE) % 100
        self.a = values.astype(dtype.numpy)
        roles = {"a": "input", "c": "output", "w": "workspace"}
        parameters = [KernelParameter(name, role, (SIZE,), dtype) for name, role in roles.items()]
        self.buffers = [GuardedBuffer(device, p, n) for n, p in enumerate(parameters)]
        self.device = device
        self.set(*((1e-6, 1e-3) if dtype.is_float else (0.0, 0.0)))

    def set(self, absolute: float, relative: float) -> None:
        """``a`` goes into its buffer and is the expected output."""
        want = self.a.astype(np.float64) if self.dtype.is_float else self.a
        expected = {"c": Expected(self.device.hold(want), absolute, relative)}
        self.truth = Truth(self.device, {"a": self.device.hold(self.a.copy())}, expected)
        self.device.copy(self.buffers[0].payload, self.truth.inputs["a"])

    def check(self, body: Callable[[Arrays], None]) -> Verdict:
        return check(HostKernel(self.dtype, body), self.buffers, self.truth)


INNER = slice(4, 4 + SIZE)
each_dtype = pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)


def copy(arrays: Arrays) -> None:
    a, c, w = arrays
    w[INNER] = a[INNER]
    c[INNER] = w[INNER]


@each_dtype
def test_a_right_kernel_passes(dtype: DType) -> None:
    verdict = Setting(dtype).check(copy)
    assert verdict.failed is None and verdict.max_error == 0.0
    assert verdict.guard_bands_intact and verdict.outputs_written and verdict.launch_seconds > 0.0


@each_dtype
@pytest.mark.parametrize("index", [0, 17, SIZE - 1])
def test_one_element_left_out_is_unwritten(dtype: DType, index: int) -> None:
    def body(arrays: Arrays) -> None:
        a, c, _ = arrays
        c[4 : 4 + index] = a[4 : 4 + index]
        c[5 + index : 4 + SIZE] = a[5 + index : 4 + SIZE]

    verdict = Setting(dtype).check(body)
    assert verdict.failed is not None and verdict.failed.reason is Reason.UNWRITTEN
    assert f"1 of {SIZE} elements" in verdict.failed.detail and f"[{index}]" in verdict.failed.detail
    assert verdict.outputs_written is False and verdict.guard_bands_intact is True


@each_dtype
@pytest.mark.parametrize("buffer", [0, 1, 2])
@pytest.mark.parametrize("index", [3, 4 + SIZE])
def test_one_element_beside_a_buffer_is_out_of_bounds(dtype: DType, buffer: int, index: int) -> None:
    def body(arrays: Arrays) -> None:
        copy(arrays)
        arrays[buffer][index] = arrays[0][5]

    verdict = Setting(dtype).check(body)
    assert verdict.failed is not None and verdict.failed.reason is Reason.OUT_OF_BOUNDS
    assert ("past its end" if index > 4 else "before its start") in verdict.failed.detail
    assert verdict.guard_bands_intact is False


@each_dtype
def test_copying_one_guard_band_over_another_is_out_of_bounds(dtype: DType) -> None:
    def body(arrays: Arrays) -> None:
        a, c, _ = arrays
        c[4 : 5 + SIZE] = a[4 : 5 + SIZE]

    verdict = Setting(dtype).check(body)
    assert verdict.failed is not None and verdict.failed.reason is Reason.OUT_OF_BOUNDS


@pytest.mark.parametrize("dtype", [d for d in DTYPES.values() if not d.is_bool], ids=str)
def test_adding_to_a_guard_band_is_out_of_bounds_although_a_nan_would_stay_what_it_is(dtype: DType) -> None:
    def body(arrays: Arrays) -> None:
        copy(arrays)
        arrays[1][4 + SIZE] = arrays[1][4 + SIZE] + arrays[0][5]

    verdict = Setting(dtype).check(body)
    assert verdict.failed is not None and verdict.failed.reason is Reason.OUT_OF_BOUNDS


@each_dtype
def test_a_written_input_is_out_of_bounds(dtype: DType) -> None:
    def body(arrays: Arrays) -> None:
        copy(arrays)
        arrays[0][9] = arrays[0][8]

    verdict = Setting(dtype).check(body)
    assert verdict.failed is not None and verdict.failed.reason is Reason.OUT_OF_BOUNDS
    assert "input a was written" in verdict.failed.detail


@each_dtype
def test_a_wrong_element_is_named(dtype: DType) -> None:
    def body(arrays: Arrays) -> None:
        copy(arrays)
        arrays[1][4 + 7] = arrays[0][4 + 6]

    verdict = Setting(dtype).check(body)
    assert verdict.failed is not None and verdict.failed.reason is Reason.WRONG_RESULT
    assert "c[7] is" in verdict.failed.detail
    assert verdict.outputs_written is True


@each_dtype
def test_using_workspace_that_was_never_written_is_wrong(dtype: DType) -> None:
    def body(arrays: Arrays) -> None:
        copy(arrays)
        arrays[1][4 + 8] = arrays[2][3]

    verdict = Setting(dtype).check(body)
    assert verdict.failed is not None and verdict.failed.reason is Reason.WRONG_RESULT


def test_a_truth_value_of_two_is_wrong() -> None:
    def body(arrays: Arrays) -> None:
        copy(arrays)
        arrays[1].view(np.uint8)[4 + 7] = 2

    verdict = Setting(DTYPES["bool"]).check(body)
    assert verdict.failed is not None and verdict.failed.reason is Reason.WRONG_RESULT


@pytest.mark.parametrize(
    ("dtype", "which"),
    [(d, w) for d in DTYPES.values() for w in (0, 1) if not d.is_bool and not (d.is_float and w)],  # NaNs: no results
    ids=str,
)
def test_results_that_equal_a_filling_are_results(dtype: DType, which: int) -> None:
    """An output may hold by right what an unwritten or a guarding element holds."""
    setting = Setting(dtype)
    guard, poison = (np.frombuffer(filling(dtype, n, which), dtype.numpy)[0] for n in (2, 3))
    setting.a[:2] = guard, poison
    setting.set(0.0, 0.0)
    assert setting.check(copy).failed is None


def test_a_race_shows_after_repeated_launches() -> None:
    setting = Setting(DTYPES["float32"])
    assert setting.check(copy).failed is None
    right = HostKernel(setting.dtype, copy)
    assert check_again(right, setting.buffers, setting.truth) is None
    kernel = HostKernel(setting.dtype, lambda arrays: arrays[1].__setitem__(8, arrays[0][4 + 90]))
    kernel.launch([b.payload for b in setting.buffers])
    failed = check_again(kernel, setting.buffers, setting.truth)
    assert failed is not None and failed.reason is Reason.WRONG_RESULT


@pytest.mark.parametrize(
    ("dtype", "got", "want", "passes"),
    [
        ("float32", [np.nan, np.inf, -np.inf, 0.0], [np.nan, np.inf, -np.inf, -0.0], True),
        ("float32", [np.nan], [1.0], False),
        ("float32", [1.0], [np.nan], False),
        ("float32", [np.inf], [1.0], False),
        ("float32", [1.0], [np.inf], False),
        ("float32", [-np.inf], [np.inf], False),
        ("float32", [100.05], [100.0], True),
        ("float32", [100.2], [100.0], False),
        ("int64", [2**60 + 1], [2**60 + 1], True),
        ("int64", [2**60 + 1], [2**60], False),
        ("int8", [-128, 127], [-128, 127], True),
        ("uint8", [255], [0], False),
    ],
)
def test_values_are_compared_as_numbers(dtype: str, got: list[float], want: list[float], passes: bool) -> None:
    kind = DTYPES[dtype]
    array = np.array(got, kind.numpy)
    device = CpuDevice()
    buffer = GuardedBuffer(device, KernelParameter("c", "output", array.shape, kind), 0)
    buffer.payload.write(array.view(np.uint8))
    values = np.array(want, np.float64 if kind.is_float else kind.numpy)
    expected = Expected(device.hold(values), 0.0, 1e-3 if kind.is_float else 0.0)
    error, wrong = compare(buffer, Truth(device, {}, {"c": expected}))
    assert (wrong is None) == passes == (error <= 1.0)


@pytest.mark.parametrize("size", [1, 131_072, 131_073, 400_001])
def test_large_buffers_are_judged_to_the_last_element(size: int) -> None:
    device = CpuDevice()
    buffer = GuardedBuffer(device, KernelParameter("c", "output", (size,), DTYPES["float32"]), 0)
    want = device.hold(np.ones(size))
    buffer.poison(0)
    assert buffer.poisoned(0).count == size and buffer.poisoned(1).count == 0
    got = np.ones(size, np.float32)
    got[-1] = 2.0
    buffer.payload.write(got.view(np.uint8))
    error, wrong = compare(buffer, Truth(device, {}, {"c": Expected(want, 1.0, 0.0)}))
    assert error == 1.0 and wrong is None
    _, wrong = compare(buffer, Truth(device, {}, {"c": Expected(want, 0.5, 0.0)}))
    assert wrong is not None and f"c[{size - 1}] is 2.0" in wrong


def test_fillings_of_neighbours_differ_and_have_the_size_of_an_element() -> None:
    for dtype in KERNEL_DTYPES.values():
        for which in (0, 1):
            seen = [filling(dtype, number, which) for number in range(31)]
            assert len(set(seen)) == 31 and {len(f) for f in seen} == {dtype.bytes}
        assert all(filling(dtype, n, 0) != filling(dtype, n, 1) for n in range(31))
    assert GUARD_BYTES >= 4096


def test_outputs_with_initial_contents_may_be_read_and_left_in_part() -> None:
    """A kernel that adds to what it finds is right after one launch, however often it was launched before."""
    setting = Setting(DTYPES["float32"])
    first = np.arange(SIZE, dtype=np.float32)
    want = first.astype(np.float64)
    want[:100] += setting.a[:100]
    expected = {"c": Expected(setting.device.hold(want), 1e-6, 0.0)}
    setting.truth = Truth(setting.device, setting.truth.inputs, expected, {"c": setting.device.hold(first)})

    def add(arrays: Arrays) -> None:
        arrays[1][4:104] += arrays[0][4:104]  # type: ignore[misc]

    assert setting.check(add).failed is None
    kernel = HostKernel(setting.dtype, add)
    kernel.time([[b.payload for b in setting.buffers]], 3)
    assert check_again(kernel, setting.buffers, setting.truth) is None
    failed = setting.check(lambda arrays: None).failed
    assert failed is not None and failed.reason is Reason.WRONG_RESULT
