"""Triton kernels as workloads: JSON comes back equal, keys forget what does not matter, refusals are typed."""

from copy import deepcopy
from typing import Any

import numpy as np
import pytest

from tilewright.core.errors import InvalidWorkload
from tilewright.core.schedule import Schedule
from tilewright.te.check import check
from tilewright.te.cost import flops, minimum_bytes
from tilewright.te.data import random_inputs
from tilewright.te.grid import grid_value
from tilewright.te.json import workload_from_json, workload_to_json
from tilewright.te.key import workload_key
from tilewright.te.text import workload_text
from tilewright.te.triton import TritonWorkload
from tilewright.te.triton_access import written_parameters
from tilewright.tests.triton.kernels import ADD, HELPED, PRELUDE, add_workload

RANGES = {"BLOCK": [128, 256, 512], "num_warps": [2, 4]}
HELPED_WORKLOAD = add_workload(
    source=HELPED,
    name="double",
    arguments=[
        {"pointer": "x_ptr", "dtype": "int32", "elements": 64, "access": "read", "range": [-3, 5], "aligned": False},
        {"pointer": "out_ptr", "dtype": "float32", "elements": 64, "access": "write", "zero": True},
        {"scalar": "n", "type": "i64", "value": 64, "in_key": False},
    ],
    constants={"TYPE": "tl.float32"},
    configurations=RANGES,
)


def triton(data: object) -> TritonWorkload:
    found = workload_from_json(data)
    assert isinstance(found, TritonWorkload)
    return found


@pytest.mark.parametrize("data", [add_workload(), HELPED_WORKLOAD], ids=["list", "ranges"])
def test_json_comes_back_equal(data: dict[str, Any]) -> None:
    found = triton(data)
    assert workload_to_json(found) == data
    assert workload_from_json(workload_to_json(found)) == found == check(found)
    assert flops(found) == minimum_bytes(found) == 0
    assert data["name"] in workload_text(found)
    assert [b.name for b in found.inputs] + list(found.outputs) == [p.name for p in found.triton.pointers]


def test_a_key_forgets_sizes_of_memory_and_arguments_that_are_not_in_it() -> None:
    key = workload_key(triton(HELPED_WORKLOAD))
    other = deepcopy(HELPED_WORKLOAD)
    other["arguments"][0]["elements"] = 80
    other["arguments"][2]["value"] = 80
    assert workload_key(triton(other)) == key
    other["arguments"][2]["value"] = 81  # Triton compiles other code for a number that is no multiple of 16
    assert workload_key(triton(other)) != key


@pytest.mark.parametrize(
    "change",
    [
        {"version": "3.5.0"},
        {"source": ADD.replace("+ tl.load(y_ptr", "- tl.load(y_ptr")},
        {"configurations": [{"BLOCK": 128, "num_warps": 4}]},
        {"grid": ["cdiv(n, BLOCK) + 1"]},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_key_knows_what_is_run(change: dict[str, Any]) -> None:
    assert workload_key(triton(add_workload(**change))) != workload_key(triton(add_workload()))
    assert workload_key(triton(add_workload(n=8192))) != workload_key(triton(add_workload()))


def refused(field: str, **changes: Any) -> str:
    with pytest.raises(InvalidWorkload) as caught:
        workload_from_json(add_workload(**changes))
    assert caught.value.field == field, caught.value.message
    return caught.value.message


def test_refusals_say_what_is_allowed() -> None:
    arguments = add_workload()["arguments"]
    descriptor = {"scalar": "n", "type": "tensordesc<fp16>", "value": 1}
    assert "TMA" in refused("/arguments/3/type", arguments=[*arguments[:3], descriptor])
    assert "x_ptr, y_ptr" in refused("/arguments", arguments=arguments[2:])
    only_read = [{**a, "access": "read"} if "pointer" in a else a for a in arguments]
    assert "writes nothing" in refused("/arguments", arguments=only_read)
    eighth = [*arguments[:2], {**arguments[2], "dtype": "float8_e5m2"}, arguments[3]]
    assert "float8_e5m2" in refused("/arguments/2/dtype", arguments=eighth)
    assert "order" in refused("/arguments", arguments=[arguments[1], arguments[0], *arguments[2:]])
    assert "add" in refused("/name", name="other")
    assert "1 to 32" in refused("/configurations/num_warps", configurations=[{"BLOCK": 128, "num_warps": 3}])
    assert "earlier" in refused("/configurations/1", configurations=[{"BLOCK": 128}, {"BLOCK": 128}])
    assert "at least one" in refused("/configurations", configurations=[])
    assert "4096" in refused(
        "/configurations",
        configurations={"BLOCK": list(range(1, 65)), "num_stages": [*range(17)], "num_ctas": [1, 2, 4, 8]},
    )
    assert "65536" in refused("/source", source=ADD + "#" * 65536)
    assert "3.6.0" in refused("/version", version="newest")


@pytest.mark.parametrize(
    "line",
    [
        "import os",
        "from os import path",
        "X = print('run when the module is loaded')",
        "print(1)",
        "class A: pass",
        "@print\ndef f(): pass",
        "@triton.jit\ndef f(x=print()): pass",
        "@triton.jit\ndef f(x: print()): pass",
        "def f(): pass",
    ],
)
def test_a_source_runs_nothing_when_it_is_loaded(line: str) -> None:
    assert "allowed" in refused("/source", source=f"{ADD}\n{line}\n")


def test_a_grid_is_an_expression_of_whole_numbers() -> None:
    assert grid_value("cdiv(M, B) * max(n % 5, 2) - 1 // 1", {"M": 100, "B": 32, "n": 8}, "/grid/0") == 11
    for text in (
        "M.real",
        "M ** 9",
        "__import__('os')",
        "M if M else 1",
        "lambda: 1",
        "1.5",
        "abs(M)",
        "M +",
        "(" * 300,
    ):
        refused("/grid/0", grid=[text])
    assert "unknown" in refused("/grid/0", grid=["cdiv(n, OTHER)"])
    with pytest.raises(InvalidWorkload, match="divides by 0"):
        grid_value("n // (n - n)", {"n": 3}, "/grid/0")
    with pytest.raises(InvalidWorkload, match="allowed: 1 to"):
        triton(add_workload(grid=["n - n"])).triton.blocks(0)


def test_configurations_are_found_by_their_knobs() -> None:
    for data in (
        add_workload(),
        HELPED_WORKLOAD,
        add_workload(configurations=[{"BLOCK": 64, "maxnreg": None}, {"BLOCK": 64, "maxnreg": 64}]),
    ):
        found = triton(data).triton.configurations
        codes = found.codes()
        assert len(codes) == len(found)
        for number, code in enumerate(codes):
            knobs = {name: found.knob_values(n)[code[n]] for n, name in enumerate(found.names)}
            assert found.row_of(knobs) == number
            assert Schedule.from_json(Schedule.of("cuda_triton", 1, knobs).to_json())  # plain values
        assert found.row_of({"BLOCK": 7, "num_warps": 4}) is None


def test_data_are_drawn_as_pointers_say() -> None:
    found = random_inputs(triton(HELPED_WORKLOAD), 3)
    assert found["x_ptr"].min() >= -3 and found["x_ptr"].max() <= 5 and len(np.unique(found["x_ptr"])) > 4
    assert not found["out_ptr"].any()
    drawn = random_inputs(triton(add_workload()), 3)
    assert drawn["out_ptr"].any() and (drawn["x_ptr"] != drawn["y_ptr"]).any()


def test_what_a_kernel_writes_is_read_from_its_source() -> None:
    assert written_parameters(ADD, "add") & {"x_ptr", "y_ptr", "out_ptr"} == {"out_ptr"}
    text = (
        PRELUDE
        + """@triton.jit
def put(pointer, value):
    tl.store(pointer, value)


@triton.jit
def kernel(index_ptr, table_ptr, out_ptr, count_ptr, block_ptr, n, B: tl.constexpr):
    rows = tl.load(index_ptr + tl.arange(0, B))
    pointers, other = out_ptr + rows * n, table_ptr
    for k in range(n):
        put(value=tl.load(other + k), pointer=pointers)
        pointers += 1
    tl.atomic_add(count_ptr, 1)
    block = tl.make_block_ptr(block_ptr, (n,), (1,), (0,), (B,), (0,))
    tl.store(tl.advance(block, (B,)), rows)
"""
    )
    pointers = {"index_ptr", "table_ptr", "out_ptr", "count_ptr", "block_ptr"}
    assert written_parameters(text, "kernel") & pointers == {"out_ptr", "count_ptr", "block_ptr"}
