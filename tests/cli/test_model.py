"""``tilewright model``: an ONNX file becomes workloads of a service, which are tuned by one job, shown and timed."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from tilewright.tests.cli.commands import answer, tilewright


def test_models_that_are_not_there_are_not_found(tmp_path: Path) -> None:
    assert answer(tmp_path, "model", "list") == []
    missing = tilewright(tmp_path, "model", "show", "abc")
    assert missing.returncode == 3 and "0 models have a key that begins with 'abc'" in missing.stderr


@pytest.mark.skipif(find_spec("jax") is not None, reason="jax is installed")
def test_a_module_of_stablehlo_names_the_extra_that_it_needs(tmp_path: Path) -> None:
    (tmp_path / "model.mlir").write_text("module {}")
    refused = tilewright(tmp_path, "model", "add", "model.mlir")
    assert refused.returncode == 2 and "pip install 'tilewright[stablehlo]'" in " ".join(refused.stderr.split())


def test_a_file_is_added_tuned_shown_and_timed(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    helper, numbers = onnx.helper, onnx.TensorProto.FLOAT
    weights = [helper.make_tensor(f"w{n}", numbers, (16, 16), [0.01 * i for i in range(256)]) for n in range(2)]
    nodes = [
        helper.make_node("MatMul", ["x", "w0"], ["a"]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("MatMul", ["b", "w1"], ["c"]),
        helper.make_node("Relu", ["c"], ["y"]),
    ]
    x, y = (helper.make_tensor_value_info(n, numbers, ["rows", 16]) for n in "xy")
    graph = helper.make_graph(nodes, "layers", [x], [y], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)]), tmp_path / "layers.onnx")

    refused = tilewright(tmp_path, "model", "add", "layers.onnx")
    assert refused.returncode == 2 and "dimension rows" in refused.stderr
    added = answer(tmp_path, "model", "add", "layers.onnx", "--dim", "rows=32")
    assert (added["name"], [(k["label"], k["count"]) for k in added["kernels"]]) == ("layers", [("matmul relu", 2)])
    tuned = answer(tmp_path, "model", "tune", added["key"][:10], "--trials", "3", "--strategy", "random")
    assert tuned["tuned"] == 1 and tuned["kernels"][0]["share"] == 1.0
    timing = answer(tmp_path, "model", "bench", "layers.onnx", "--dim", "rows=32", "--runs", "3")
    assert timing["tuned_kernels"] == 2 and timing["seconds"] > 0
    shown = tilewright(tmp_path, "model", "show", added["key"][:10]).stdout
    assert "1 of 1 workloads tuned" in shown and "matmul relu" in shown
    (listed,) = answer(tmp_path, "model", "list")
    assert listed["timings"][0]["baseline"] == "default-schedules"
    (tmp_path / "no.onnx").write_text("nothing")
    assert "no ONNX model" in tilewright(tmp_path, "model", "add", "no.onnx").stderr
