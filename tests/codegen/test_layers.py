"""The lines of every form of a kernel are linked to the form above: six kernels, and what the links say."""

import re
from collections.abc import Iterator
from functools import cache

import pytest

from tilewright.codegen.backend import CodeLayer
from tilewright.codegen.cuda.inspect import disassemble
from tilewright.codegen.layers import code_layers, linked_share
from tilewright.codegen.lowering import lowering_stages
from tilewright.core.target import Target
from tilewright.schedule.sketches import sketches_for
from tilewright.te.operators import OPERATORS

CPU = Target("llvm", "x86-64", ("avx2", "fma"), 2, 32)
H200 = Target("cuda", "sm_90a", (), 132, 16)
KERNELS: dict[str, tuple[str, dict[str, object], Target]] = {
    "CPU gemm": ("matmul", {"m": 64, "n": 64, "k": 64}, CPU),
    "softmax": ("softmax", {"rows": 16, "columns": 100}, CPU),
    "GPU gemm": ("matmul", {"m": 512, "n": 512, "k": 512, "dtype": "float16"}, H200),
    "reduction": ("reduce", {"shape": [512, 4096], "axes": [1], "dtype": "float16"}, H200),
    "transpose": ("transpose", {"shape": [1024, 512], "axes": [1, 0], "dtype": "float16"}, H200),
    "map": ("elementwise", {"shape": [1000, 1000], "functions": ["gelu_erf"]}, H200),
}
needs_disassembler = pytest.mark.skipif(disassemble.disassembler() is None, reason="no nvdisasm here")


@cache
def layers(name: str) -> dict[str, CodeLayer]:
    operator, parameters, target = KERNELS[name]
    workload = OPERATORS[operator].workload(parameters)
    schedule = sketches_for(workload, target)[0].space(workload, target, limit=64).schedule(0)
    return {layer.title: layer for layer in code_layers(workload, lowering_stages(workload, target, schedule))}


def ancestors(name: str, title: str, pattern: str, of: str) -> Iterator[str]:
    """Yield the lines of the layer ``of`` that every line of a layer which matches ``pattern`` comes from, joined."""
    found = layers(name)
    titles = list(found)
    for number, line in enumerate(found[title].text.splitlines(), start=1):
        if re.search(pattern, line):
            numbers = {number}
            for here in reversed(titles[titles.index(of) + 1 : titles.index(title) + 1]):
                numbers = {o for n in numbers for o in found[here].origins[n - 1]}
            above = found[of].text.splitlines()
            yield "\n".join(above[n - 1] for n in sorted(numbers))


@pytest.mark.parametrize("name", KERNELS)
def test_nine_lines_of_ten_are_linked(name: str) -> None:
    above = 0
    for title, layer in layers(name).items():
        lines = layer.text.splitlines()
        assert len(layer.origins) == len(lines) or title == "expression"
        assert all(1 <= n <= above for origins in layer.origins for n in origins), title
        above = len(lines)
        if layer.language == "ir" and title != "kernel":
            assert linked_share(layer) == 1.0, title
    source = next(layer for title, layer in layers(name).items() if title == "source")
    assert linked_share(source) >= 0.9


@needs_disassembler
@pytest.mark.parametrize("name", ["GPU gemm", "reduction", "transpose", "map"])
def test_machine_instructions_of_gpus_are_linked(name: str) -> None:
    assert linked_share(layers(name)["SASS"]) >= 0.9


@pytest.mark.parametrize("name", ["CPU gemm", "softmax"])
def test_machine_instructions_of_processors_are_linked(name: str) -> None:
    assert linked_share(layers(name)["assembly"]) >= 0.75  # LLVM drops locations of what it moves or makes


@needs_disassembler
def test_matrix_instructions_come_from_the_product() -> None:
    found = list(ancestors("GPU gemm", "SASS", "HGMMA", "kernel"))
    assert found and all("warpgroup_mma(accumulators" in origin for origin in found)
    assert all("total[i, j] = sum over k" in o for o in ancestors("GPU gemm", "SASS", "HGMMA", "expression"))


def test_fused_multiplications_come_from_the_update() -> None:
    found = list(ancestors("CPU gemm", "assembly", r"\bvfmadd", "kernel"))
    assert found and all("accumulators[i_2" in origin and "A[" in origin for origin in found)


def test_stages_of_a_softmax_are_told_apart() -> None:
    for buffer, stage in (("top_part", "top[i]"), ("power", "power["), ("total_part", "total["), ("Y", "Y[")):
        found = list(ancestors("softmax", "after vectorise", rf"^ *{buffer}\[.* = ", "expression"))
        assert found and all(stage in origin for origin in found), buffer


def test_functions_of_the_prelude_belong_to_their_callers() -> None:
    found = list(ancestors("GPU gemm", "source", r"void tma_load_2d\(", "kernel"))
    assert found and all("tma_load(" in origin and "warpgroup_mma(" not in origin for origin in found)


def test_a_prologue_is_linked_too() -> None:
    workload = OPERATORS["linear"].workload({"rows": 64, "inputs": 64, "outputs": 64, "constant_weights": True})
    schedule = sketches_for(workload, CPU)[0].space(workload, CPU, limit=64).schedule(0)
    stages = lowering_stages(workload, CPU, schedule)
    assert stages.source.prologue
    source = next(layer for layer in code_layers(workload, stages) if layer.title == "source")
    assert linked_share(source) >= 0.9
