"""Logs of other tuners: their rows become schedules of ours, or are refused with a reason."""

import json
from collections.abc import Mapping, Sequence

import pytest

from tilewright.core.errors import InvalidParameter
from tilewright.core.target import DeviceInfo, Target
from tilewright.core.trial import Failed, Timed
from tilewright.schedule.sketches import SKETCHES
from tilewright.search.imported import Imported, imported
from tilewright.search.tuning_logs import LOG_FORMS, read_log
from tilewright.te.json import workload_from_json
from tilewright.te.operators import OPERATORS
from tilewright.te.workload import Workload

AMPERE = DeviceInfo("A100", Target("cuda", "sm_80", (), 108, 16))
HOPPER = DeviceInfo("H200", Target("cuda", "sm_90a", (), 132, 16))
CPU = DeviceInfo("CPU", Target("llvm", "x86-64", ("avx2", "fma"), 2, 32))
PRODUCT = OPERATORS["matmul"].workload({"m": 512, "n": 256, "k": 1024, "dtype": "float16"})
AUTOTUNE = """\
AUTOTUNE mm(512x1024, 1024x256)
strides: [1024, 1], [256, 1]
dtypes: torch.float16, torch.float16
  triton_mm_9 0.0102 ms 100.0% EVEN_K=True, BLOCK_K=64, BLOCK_M=64, BLOCK_N=64, GROUP_M=8, num_stages=4, num_warps=4
  triton_mm_3 0.0110 ms 92.7% BLOCK_K=64, BLOCK_M=64, BLOCK_N=64, GROUP_M=8, num_stages=3, num_warps=4
  triton_mm_5 0.0121 ms 84.2% BLOCK_K=32, BLOCK_M=128, BLOCK_N=64, GROUP_M=8, num_stages=3, num_warps=8
  triton_mm_7 0.0151 ms 67.5% BLOCK_K=24, BLOCK_M=128, BLOCK_N=64, GROUP_M=8, num_stages=3, num_warps=8
  mm 0.0132 ms 77.3%
SingleProcess AUTOTUNE benchmarking takes 2.1 seconds and 0.3 seconds precompiling
AUTOTUNE mm(8x1024, 1024x256)
  triton_mm_1 0.0055 ms 100.0% BLOCK_K=64, BLOCK_M=64, BLOCK_N=64, num_stages=4, num_warps=4
"""
KERNEL = """\
import triton
import triton.language as tl


@triton.jit
def add(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + at, tl.load(x_ptr + at, mask=at < n) + 1, mask=at < n)
"""


def added() -> Workload:
    x = {"pointer": "x_ptr", "dtype": "float32", "elements": 4096, "access": "read"}
    out = {"pointer": "out_ptr", "dtype": "float32", "elements": 4096, "access": "write"}
    return workload_from_json(
        {
            "kind": "triton",
            "version": "3.6.0",
            "source": KERNEL,
            "name": "add",
            "arguments": [x, out, {"scalar": "n", "type": "i32", "value": 4096}],
            "constants": {},
            "grid": ["cdiv(n, BLOCK)"],
            "configurations": {"BLOCK": [128, 256, 512], "num_warps": [4, 8]},
        }
    )


def read(text: str, form: str, workload: Workload, device: DeviceInfo) -> Imported:
    return imported(read_log(text, form), workload, device)


@pytest.mark.parametrize(("device", "sketch"), [(AMPERE, "cuda_gemm_mma"), (HOPPER, "cuda_gemm")])
def test_tables_of_inductor_are_tiles_of_products(device: DeviceInfo, sketch: str) -> None:
    found = read(AUTOTUNE, "inductor-log", PRODUCT, device)
    tiles: dict[tuple[int, int, int], float] = {}
    for schedule, outcome in found.results:
        assert schedule.sketch == sketch and isinstance(outcome, Timed)
        SKETCHES[sketch].derive(PRODUCT, device.target, [schedule])  # it is legal
        k = {name: int(value) for name, value in schedule.knobs}
        if device is AMPERE:
            tile = 16 * k["atoms_m"] * k["warps_m"], 16 * k["atoms_n"] * k["warps_n"], k["block_k"]
        else:
            warpgroups = 1 if k["ping_pong"] else k["consumer_warpgroups"]
            tile = 64 * k["atoms_m"] * warpgroups, k["mma_n"], 64 * k["k_atoms"]
        assert k["split_k"] == 1
        tiles[tile] = min(tiles.get(tile, 1.0), outcome.seconds)
    missing = {"no legal setting has this tile": 1 if device is AMPERE else 2}
    assert tiles[64, 64, 64] == pytest.approx(10.2e-6)
    assert ((128, 64, 32) in tiles) == (device is AMPERE)
    assert {reason: n for reason, n in found.refused.items() if reason in missing} == missing
    assert found.refused["the row is of other shapes"] == 1
    assert found.refused["a choice without settings is a library's kernel"] == 1
    assert sum(found.refused.values()) + len(found.results) == 6


def test_the_cache_of_triton_has_configurations_of_a_kernel() -> None:
    def entry(block: int, warps: int, times: object) -> list[object]:
        options = {"num_warps": warps, "num_ctas": 1, "num_stages": 3, "maxnreg": None, "pre_hook": None}
        return [{"kwargs": {"BLOCK": block}, **options}, times]

    inf = float("inf")
    timings = [entry(128, 4, [0.5, 0.4, 0.6]), entry(512, 8, [inf, inf, inf]), entry(1024, 4, [0.25, 0.2, 0.3])]
    found = read(json.dumps({"key": ["4096"], "configs_timings": timings}), "triton", added(), HOPPER)
    (first, timed), (second, failed) = found.results
    assert dict(first.knobs) == {"BLOCK": 128, "num_warps": 4} and timed == Timed((0.5e-3,))
    assert dict(second.knobs) == {"BLOCK": 512, "num_warps": 8} and isinstance(failed, Failed)
    assert found.refused == {"the kernel has no such configuration": 1}


def test_a_best_configuration_without_a_time_teaches_nothing() -> None:
    printed = (
        "Triton autotuning for function add,\nwith key as (4096, 'torch.float32'),\nfinished after 0.81s,\n"
        "best config selected: BLOCK: 256, num_warps: 4, num_ctas: 1, num_stages: 3, maxnreg: None;\n"
    )
    kept = json.dumps({"BLOCK": 256, "num_warps": 4, "num_stages": 1, "configs_hash": "ab", "time_taken_ms": 12})
    for text, form in ((printed, "triton-log"), (kept, "inductor")):
        (row,) = read_log(text, form)
        assert (row.settings["BLOCK"], row.settings["num_warps"]) == (256, 4)
        found = read(text, form, added(), HOPPER)
        assert not found.results
        assert found.refused == {"the log does not say how fast its configuration is": 1}


def record(
    tiles: Sequence[Sequence[int]], seconds: Sequence[float] | None, shapes: Sequence[Sequence[int]], extra: str = ""
) -> str:
    """A line of MetaSchedule's database: a trace that samples tiles of three loops."""
    loops = ["l1", "l2", "l3"]
    instructions: list[object] = [["GetBlock", [], ["C", "main"], ["b0"]], ["GetLoops", ["b0"], [], loops]]
    decisions = []
    for loop, factors in zip(loops, tiles, strict=True):
        decisions.append([len(instructions), list(factors)])
        instructions.append(["SamplePerfectTile", [loop], [len(factors), 64], [f"v{loop}{n}" for n in range(4)]])
    if extra:
        instructions.append([extra, ["l9"], ["intrinsic", True], []])
    arguments = [["TENSOR", "float32", list(shape)] for shape in shapes]
    target: Mapping[str, object] = {"kind": "llvm", "num-cores": 2}
    return json.dumps([0, [[instructions, decisions], seconds, target, arguments]])


def test_traces_of_metaschedule_are_register_tiles_where_they_tile_a_product() -> None:
    product = OPERATORS["matmul"].workload({"m": 192, "n": 256, "k": 256})
    shapes = ((192, 256), (256, 256), (192, 256))
    good = record(((4, 8, 1, 6), (2, 8, 1, 16), (1, 256)), [2e-3, 3e-3, 4e-3], shapes)
    lines = [
        good,
        record(((4, 8, 2, 3), (2, 4, 2, 16), (4, 64)), [1e10], shapes),
        record(((4, 8, 1, 6), (2, 8, 1, 16), (1, 256)), None, shapes),
        record(((4, 8, 1, 6), (1, 4, 8, 1), (1, 256)), [1.0], ((192, 256), (256, 32), (192, 32))),
        record(((4, 8, 1, 6), (2, 8, 1, 16), (1, 256)), [1.0], shapes, extra="Tensorize"),
        record(((4, 48), (4, 64), (4, 64)), [1.0], shapes),
        record(((1, 1, 1, 192), (1, 1, 1, 256), (1, 256)), [1.0], shapes),
    ]
    found = read("\n".join(lines), "metaschedule", product, CPU)
    knobs, outcome = dict(found.results[0][0].knobs), found.results[0][1]
    assert found.results[0][0].sketch == "cpu_gemm" and outcome == Timed((2e-3, 3e-3, 4e-3))
    assert (knobs["mr"], knobs["nr_vectors"], knobs["kc"]) == (6, 2, 256)
    assert (knobs["m_blocks"], knobs["n_blocks"]) == (4, 2)
    reasons = " / ".join(found.refused)
    for part in ("how fast", "other shapes", "intrinsic", "neither SSRSRS", "no legal setting"):
        assert part in reasons
    assert sum(found.refused.values()) + len(found.results) == len(lines)


def test_traces_for_gpus_are_tiles_of_blocks() -> None:
    product = OPERATORS["matmul"].workload({"m": 256, "n": 256, "k": 256})
    shapes = ((256, 256), (256, 256), (256, 256))
    line = record(((2, 1, 16, 4, 2), (4, 1, 8, 2, 4), (16, 8, 2)), [1e-4], shapes)
    (row,) = read_log(line, "metaschedule")
    assert row.settings == {"BLOCK_M": 128, "BLOCK_N": 64, "BLOCK_K": 16, "threads": 128}
    found = read(line, "metaschedule", product, AMPERE)
    assert [schedule.sketch for schedule, _ in found.results] == ["cuda_gemm_simt"] or found.refused


@pytest.mark.parametrize("form", LOG_FORMS)
def test_what_is_no_log_is_refused(form: str) -> None:
    with pytest.raises(InvalidParameter, match=form):
        read_log('{"some": ["thing else"]}\n' if form != "inductor" else "[1]", form)
    with pytest.raises(InvalidParameter, match="no form of a log"):
        read_log("", "csv")


def test_what_is_no_product_has_no_tiles() -> None:
    softmax = OPERATORS["softmax"].workload({"rows": 64, "columns": 64})
    found = read(AUTOTUNE.replace("512x1024, 1024x256", "64x64"), "inductor-log", softmax, HOPPER)
    assert not found.results and "the workload is no product, whose tiles could be told" in found.refused
