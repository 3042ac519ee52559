"""The least time that measured peaks allow."""

import pytest

from tilewright.core.target import DeviceInfo, Target
from tilewright.service.roofline import peak_rates, roofline
from tilewright.te.operators import OPERATORS

DEVICE = DeviceInfo("a CPU", Target("llvm", "x86-64"), {"l3_bytes": 1e6})
PEAKS = {"peak_float32_flops_per_second": 1e11, "copy_bytes_per_second": 1e10}


def test_arithmetic_limits_a_product_and_traffic_a_map() -> None:
    product = roofline(OPERATORS["matmul"].workload({"m": 512, "n": 512, "k": 512}), DEVICE, PEAKS, "cold")
    assert product is not None
    assert product.by == "flops"
    assert product.seconds == pytest.approx(2 * 512**3 / 1e11)
    chain = OPERATORS["elementwise"].workload({"shape": [1024, 1024], "functions": ["relu"]})
    moved = roofline(chain, DEVICE, PEAKS, "cold")
    assert moved is not None
    assert moved.by == "bytes"
    assert moved.seconds == pytest.approx(2 * 4 * 1024**2 / 1e10)


def test_what_fits_a_warm_cache_need_not_cross_the_bus() -> None:
    small = OPERATORS["elementwise"].workload({"shape": [128, 128], "functions": ["relu"]})
    warm = roofline(small, DEVICE, PEAKS, "warm")
    assert warm is not None and warm.by == "flops"


def test_nothing_measured_limits_nothing() -> None:
    assert roofline(OPERATORS["matmul"].workload({"m": 8, "n": 8, "k": 8}), DEVICE, {}, "warm") is None


GPU = DeviceInfo("a GPU", Target("cuda", "sm_90a"), {"l2_bytes": 5e7})
GPU_PEAKS = {
    "peak_float32_flops_per_second": 5e13,
    "peak_tensor_float16_flops_per_second": 5e14,
    "copy_bytes_per_second": 4e12,
    "read_bytes_per_second": 4.4e12,
}


def test_traffic_is_held_to_copying_as_far_as_it_is_written() -> None:
    chain = OPERATORS["elementwise"].workload({"shape": [8192, 8192], "functions": ["relu"]})
    total = OPERATORS["reduce"].workload({"shape": [8192, 8192], "axes": [1], "kind": "sum"})
    copied, read = roofline(chain, GPU, GPU_PEAKS, "cold"), roofline(total, GPU, GPU_PEAKS, "cold")
    assert copied is not None and copied.seconds == pytest.approx(2 * 4 * 8192**2 / 4e12)
    assert read is not None and read.seconds == pytest.approx(4 * 8192**2 / 4.4e12, rel=1e-3)


def test_products_are_held_to_the_best_matrix_instructions() -> None:
    sizes = {"m": 8192, "n": 8192, "k": 8192}

    def seconds(device: DeviceInfo, peaks: dict[str, float], **parameters: object) -> float:
        found = roofline(OPERATORS["matmul"].workload({**sizes, **parameters}), device, peaks, "cold")
        assert found is not None and found.by == "flops"
        return found.seconds

    operations = 2 * 8192**3
    warpgroups = 16 * GPU_PEAKS["peak_float32_flops_per_second"]  # 4096 operations of a cycle, against 256 of float32
    assert seconds(GPU, GPU_PEAKS, dtype="float16") == pytest.approx(operations / warpgroups, rel=0.01)
    assert seconds(GPU, GPU_PEAKS) == pytest.approx(operations / 5e13)
    assert seconds(GPU, GPU_PEAKS, precision="tf32") == pytest.approx(operations / warpgroups * 2)
    assert seconds(GPU, GPU_PEAKS, precision="bf16x6") == pytest.approx(operations / warpgroups * 6)
    tiles = {**PEAKS, "peak_tensor_bfloat16_flops_per_second": 1e12}
    assert seconds(DEVICE, tiles, dtype="bfloat16") == pytest.approx(operations / 1e12, rel=0.01)
    assert seconds(DEVICE, tiles, dtype="float16") == pytest.approx(operations / 1e11, rel=0.01)


def test_scales_beside_8_bit_floats_do_not_hide_the_matrix_units() -> None:
    case = next(c for c in OPERATORS["scaled_matmul"].cases())
    workload = OPERATORS["scaled_matmul"].workload(case)
    rates = peak_rates(workload, GPU.target, GPU_PEAKS)
    assert rates.flops_per_second is not None
    assert rates.flops_per_second > GPU_PEAKS["peak_float32_flops_per_second"]
