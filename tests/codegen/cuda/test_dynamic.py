"""Kernels with a dynamic extent as CUDA C++: what a call of one extent launches."""

import json

import pytest

from tilewright.codegen.backend import CompiledKernel, Source
from tilewright.codegen.backends import backend_for
from tilewright.codegen.export import DESCRIPTION_FILE, exported
from tilewright.codegen.lowering import finish, lower
from tilewright.core.errors import InvalidParameter
from tilewright.core.schedule import Schedule
from tilewright.core.target import Target
from tilewright.schedule.defaults import default_schedule
from tilewright.schedule.sketches import SKETCHES
from tilewright.te.dynamic import at_extent, with_dynamic
from tilewright.te.json import workload_to_json
from tilewright.te.operators import OPERATORS
from tilewright.te.operators.attention import attention_of_lengths
from tilewright.te.workload import Workload
from tilewright.workers.builder_child import BuilderRole
from tilewright.workers.frames import Frame
from tilewright.workers.wire import binary_from_frame

H200 = Target("cuda", "sm_90a", threads=132, vector_bytes=16)
MOST = 4096
SOFTMAX = with_dynamic(OPERATORS["softmax"].workload({"rows": MOST, "columns": 1024}), representative=1000)
TWO_ROWS = Schedule.of(
    "cuda_rowwise", SKETCHES["cuda_rowwise"].version, {"vector_width": 4, "threads_per_row": 64, "rows_per_cta": 2}
)
LINEAR = with_dynamic(
    OPERATORS["linear"].workload({"rows": MOST, "inputs": 512, "outputs": 512, "bias": True, "dtype": "float16"}),
    representative=1000,
)


def emitted(workload: Workload) -> Source:
    schedule = TWO_ROWS if workload == SOFTMAX else default_schedule(workload, H200)
    return backend_for(H200).emit(finish(lower(workload, H200, schedule), H200), H200)


def test_rows_of_a_call_are_an_argument_of_the_function() -> None:
    source = emitted(SOFTMAX)
    (launch,) = source.launches
    assert f"const int {source.dynamic[0].var}" in source.text
    assert launch.takes_extents and launch.blocks == (MOST // 2, 1, 1)
    binary = backend_for(H200).compile(source, H200)
    called = binary.at_extent(1000)
    assert not called.dynamic and called.code == binary.code
    assert {p.shape for p in called.parameters} == {(1000, 1024)}
    assert called.launches[0].blocks == (500, 1, 1)
    assert called.launches[0].numbers == ((len(launch.arguments), 1000),)
    assert called.at_extent(7) is called


def test_a_product_has_the_tensor_maps_and_the_grid_of_its_rows() -> None:
    source = emitted(LINEAR)
    (launch,) = source.launches
    binary = backend_for(H200).compile(source, H200)
    assert 0 < launch.blocks[0] <= H200.threads
    schedule = default_schedule(LINEAR, H200)
    for extent in (1, 1000, 3000, MOST):
        called = binary.at_extent(extent)
        if extent > 1:
            static = lower(at_extent(LINEAR, extent), H200, schedule)
            assert called.launches[0].blocks == static.launches[0].blocks  # as few as need no more iterations
        shapes = {p.name: p.shape for p in called.parameters}
        assert shapes == {"X": (extent, 512), "W": (512, 512), "B": (512,), "Y": (extent, 512)}
        assert all(m.shape is None for m in called.launches[0].tensor_maps)  # they have those of the parameters
    assert binary.at_extent(1).launches[0].blocks[0] < launch.blocks[0]


def test_lengths_are_arguments_and_have_tensor_maps_of_their_own() -> None:
    """The launch that combines writes rows whose distance depends on the number of queries of a call."""
    workload = attention_of_lengths(
        {"heads": 4, "queries": 16, "keys": 4096, "depth": 64, "causal": True, "dtype": "float16"}, 1, 2048
    )
    knobs = {"consumer_warpgroups": 1, "split_kv": 8}
    schedule = Schedule.of("cuda_attention", SKETCHES["cuda_attention"].version, knobs)
    source = backend_for(H200).emit(finish(lower(workload, H200, schedule), H200), H200)
    assert "queries_extent * 64 + " in source.text.split("tw_combine")[-1]
    binary = backend_for(H200).compile(source, H200)
    for queries, keys, sharers in ((1, 100, 1), (16, 4096, 8), (3, 300, 3)):
        called = binary.at_extent(queries, keys)
        assert {p.name: p.shape[-2] for p in called.parameters[:4]} == {
            "Q": queries,
            "K": keys,
            "V": keys,
            "Y": queries,
        }
        assert called.launches[0].blocks == (4 * sharers, 1, 1)
        assert [n for _, n in called.launches[0].numbers] == [queries, keys]
        assert all(m.shape is None for m in called.launches[0].tensor_maps)  # they have those of the parameters
    with pytest.raises(InvalidParameter, match="allowed: 1 to 4096"):
        binary.at_extent(1, 4097)


def test_an_exported_kernel_says_how_it_is_called() -> None:
    files = exported(SOFTMAX, H200, TWO_ROWS)
    said = json.loads(files[DESCRIPTION_FILE])
    assert said["dynamic"] == [{"name": "dynamic_extent", "most": MOST, "places": [["X", 0], ["Y", 0]]}]
    assert "dynamic_extent" in said["launches"][0]["block_counts"][0] and said["launches"][0]["takes_extents"]
    assert said["workload"]["dynamic"]["representative"] == 1000
    assert f", {MOST});" in files["kernel.cu"].decode()


def test_a_worker_is_given_the_launches_of_the_representative_extent() -> None:
    setup = {"target": H200.to_json(), "builder": "tilewright.codegen.lowering:build", "accept_code": False}
    frame = Frame({"workload": workload_to_json(SOFTMAX), "schedule": TWO_ROWS.to_json()})
    found: CompiledKernel = binary_from_frame(BuilderRole(setup).answer(frame, lambda *_: None))
    assert {p.shape for p in found.parameters} == {(1000, 1024)}
    assert found.launches[0].numbers and found.launches[0].block_counts is None


def test_static_kernels_take_no_extent() -> None:
    static = OPERATORS["linear"].workload({"rows": 256, "inputs": 512, "outputs": 512, "dtype": "float16"})
    source = emitted(static)
    assert not source.dynamic and not any(c.takes_extents or c.block_counts for c in source.launches)
