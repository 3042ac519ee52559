"""ONNX models as graphs: the node tests of ONNX, and small models."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402
from onnx.reference import ReferenceEvaluator  # noqa: E402

from tests.importers.onnx_nodes import kernels, node_tests, outcome  # noqa: E402
from tests.runtime.test_program import bound, run  # noqa: E402
from tilewright.core.errors import InvalidGraph, InvalidParameter  # noqa: E402
from tilewright.graph.json import graph_to_json  # noqa: E402
from tilewright.importers.onnx.model import import_onnx, load_onnx  # noqa: E402
from tilewright.importers.weighted_graph import UnsupportedModel  # noqa: E402

LEAST = 176
"""How many of every eighth node test pass; the number may only grow."""


def test_node_tests_by_the_reference() -> None:
    found = {t.name: outcome(t) for t in node_tests()[::8]}
    wrong = {name: text for name, text in found.items() if text.startswith("wrong")}
    assert not wrong
    assert sum(text == "passed" for text in found.values()) >= LEAST


def test_some_node_tests_by_kernels() -> None:
    found = {t.name: outcome(t, kernels) for t in node_tests()[::47]}
    assert not {name: text for name, text in found.items() if text.startswith("wrong")}
    assert sum(text == "passed" for text in found.values()) >= 15


@pytest.mark.parametrize("name", ["gathernd_example_int32_batch_dim1", "dft_irfft", "qlinearmatmul_2D_uint8_float32"])
def test_places_transforms_and_quantised_products_by_kernels(name: str) -> None:
    test = next(t for t in node_tests() if t.name == f"test_{name}")
    assert outcome(test, kernels) == "passed"


@pytest.mark.parametrize(
    ("op", "attributes"),
    [
        ("MaxPool", {"kernel_shape": [3, 3], "strides": [2, 2], "auto_pad": "SAME_UPPER", "ceil_mode": 0}),
        ("AveragePool", {"kernel_shape": [2, 2], "strides": [2, 2], "auto_pad": "SAME_LOWER", "ceil_mode": 0}),
        ("Resize", {"mode": "linear", "extrapolation_value": 0.0, "keep_aspect_ratio_policy": "stretch"}),
        ("ReduceMax", {"noop_with_empty_axes": 1, "keepdims": 0}),
    ],
)
def test_an_attribute_that_says_what_holds_without_it_changes_nothing(op: str, attributes: dict[str, Any]) -> None:
    x = np.random.default_rng(0).random((1, 2, 5, 5), np.float32)
    given = [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)]
    constants = [numpy_helper.from_array(np.array([1, 1, 2, 2], np.float32), "scales")] if op == "Resize" else []
    names = ["x", "", "scales"] if op == "Resize" else ["x"]
    node = helper.make_node(op, names, ["y"], **attributes)
    graph = helper.make_graph([node], "one", given, [onnx.ValueInfoProto(name="y")], constants)
    model = onnx.shape_inference.infer_shapes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)]))
    found = import_onnx(model)
    arrays = {v.name: found.weights[v.name] for v in found.graph.constants}
    (y,) = run(bound(found.graph), found.graph, {"x": x, **arrays})
    (expected,) = ReferenceEvaluator(model).run(None, {"x": x})
    np.testing.assert_allclose(y, expected, rtol=1e-5)


def perceptron(batch: Any = 4) -> Any:
    draw = np.random.default_rng(0)
    weights = {
        "w0": draw.standard_normal((16, 8)).astype(np.float32), "b0": draw.standard_normal(16).astype(np.float32),
        "w1": draw.standard_normal((16, 3)).astype(np.float32), "shape": np.array([-1, 3], np.int64),
    }  # fmt: skip
    nodes = [
        helper.make_node("Gemm", ["x", "w0", "b0"], ["h"], transB=1),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("MatMul", ["r", "w1"], ["m"]),
        helper.make_node("Reshape", ["m", "shape"], ["y"]),
    ]
    return helper.make_model(
        helper.make_graph(
            nodes,
            "perceptron",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, 8])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, [batch, 3])],
            [numpy_helper.from_array(a, n) for n, a in weights.items()],
        ),
        opset_imports=[helper.make_opsetid("", 20)],
    )


@pytest.mark.parametrize(("op", "places"), [("ScatterND", (30, 1)), ("ScatterND", (30, 2)), ("ScatterElements", (30,))])
def test_many_terms_are_added_up_at_their_places(op: str, places: tuple[int, ...]) -> None:
    draw = np.random.default_rng(0)
    shape = (8, 6)[: places[-1]] if op == "ScatterND" else (20,)
    x, at, terms = draw.random(shape, np.float32), draw.integers(-5, 5, places), draw.random(30, np.float32)
    node = helper.make_node(op, ["x", "i", "s"], ["y"], reduction="add")
    kinds = {"x": (TensorProto.FLOAT, shape), "i": (TensorProto.INT64, places), "s": (TensorProto.FLOAT, (30,))}
    given = [helper.make_tensor_value_info(name, *kind) for name, kind in kinds.items()]
    found = helper.make_graph([node], "scatter", given, [helper.make_tensor_value_info("y", *kinds["x"])])
    graph = import_onnx(helper.make_model(found, opset_imports=[helper.make_opsetid("", 18)])).graph
    (y,) = run(bound(graph), graph, {"x": x, "i": at, "s": terms})
    wanted = x.astype(np.float64)
    np.add.at(wanted, tuple(np.moveaxis(at, -1, 0)) if op == "ScatterND" else at, terms)
    assert "scatter" in [n.op for n in graph.nodes]
    np.testing.assert_allclose(y, wanted, rtol=1e-5)


def test_a_model_runs_by_kernels_and_its_weights_stay_outside() -> None:
    found = import_onnx(perceptron())
    assert set(found.weights) == {v.name for v in found.graph.constants} == {"w0", "b0", "w1"}
    assert "data" not in str(graph_to_json(found.graph))
    x = np.random.default_rng(1).standard_normal((4, 8)).astype(np.float32)
    (y,) = run(bound(found.graph), found.graph, {"x": x, **found.weights})
    w0, b0, w1 = (found.weights[n].astype(np.float64) for n in ("w0", "b0", "w1"))
    np.testing.assert_allclose(y, np.maximum(x @ w0.T + b0, 0) @ w1, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("equation", "shapes", "products"),
    [
        ("ij,jk,k->i", [(5, 6), (6, 7), (7,)], [7, 6]),
        ("bi,oij,bj->bo", [(4, 3), (5, 3, 6), (4, 6)], [3 * 6]),
        ("i,j,ij,k->k", [(40,), (30,), (40, 30), (2,)], [40, 30]),
        ("...ij,jk,...kl", [(2, 3, 4), (4, 5), (2, 5, 6)], [4, 5]),
        ("ij,jk->ki", [(3, 4), (4, 5)], [4]),
    ],
)
def test_an_einsum_is_products_of_two_in_the_cheapest_order(
    equation: str, shapes: list[tuple[int, ...]], products: list[int]
) -> None:
    """``products``: the lengths of the sums, in any order."""
    names = [f"x{n}" for n in range(len(shapes))]
    info = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in zip(names, shapes, strict=True)]
    node = helper.make_node("Einsum", names, ["y"], equation=equation)
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    model = helper.make_model(
        helper.make_graph([node], "einsum", info, [out]), opset_imports=[helper.make_opsetid("", 18)]
    )
    graph = import_onnx(model).graph
    draw = np.random.default_rng(0)
    inputs = {n: draw.standard_normal(s).astype(np.float32) for n, s in zip(names, shapes, strict=True)}
    (y,) = run(bound(graph), graph, inputs)
    np.testing.assert_allclose(y, np.einsum(equation, *inputs.values()), rtol=1e-4, atol=1e-5)
    found = [graph.values[node.operands[0]].shape[-1] for node in graph.nodes if node.op == "matmul"]
    assert sorted(found) == sorted(products)


def test_operators_that_onnx_defines_by_others_are_written_out() -> None:
    """With the attributes that they have by default."""
    info = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3, 4, 5])
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    node = helper.make_node("MeanVarianceNormalization", ["x"], ["y"])
    model = helper.make_model(
        helper.make_graph([node], "mvn", [info], [out]), opset_imports=[helper.make_opsetid("", 18)]
    )
    found = import_onnx(model)
    x = np.random.default_rng(0).standard_normal((2, 3, 4, 5)).astype(np.float32)
    (y,) = run(bound(found.graph), found.graph, {"x": x, **found.weights})
    over = (0, 2, 3)
    np.testing.assert_allclose(y, (x - x.mean(over, keepdims=True)) / x.std(over, keepdims=True), rtol=1e-4, atol=1e-5)


def test_dimensions_with_a_name_must_be_given() -> None:
    with pytest.raises(InvalidParameter, match="a dimension batch; dims must give it"):
        import_onnx(perceptron("batch"))
    assert import_onnx(perceptron("batch"), {"batch": 7}).graph.inputs[0].shape == (7, 8)


def test_operators_without_a_rule_are_listed() -> None:
    info = helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])
    nodes = [helper.make_node("NonZero", ["x"], ["n"]), helper.make_node("Det", ["x"], ["d"])]
    model = helper.make_model(helper.make_graph(nodes, "odd", [info], []), opset_imports=[helper.make_opsetid("", 20)])
    with pytest.raises(UnsupportedModel, match="NonZero, Det"):
        import_onnx(model)
    model.opset_import[0].version = 3
    with pytest.raises(UnsupportedModel, match="opset 3"):
        import_onnx(model)


def of_nodes(*nodes: Any, weights: Any = ()) -> Any:
    """Return a model with an input ``x`` and an output ``y`` of 2 x 3."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 3]) for name in "xy")
    return helper.make_model(
        helper.make_graph(nodes, "given", [x], [y], weights), opset_imports=[helper.make_opsetid("", 18)]
    )


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ([helper.make_node("Relu", ["z"], ["y"], name="r")], "Relu r reads 'z', which no node before it computes"),
        ([helper.make_node("Relu", ["x"], ["z"])], "no node of the model computes 'y'"),
        (
            [helper.make_node("Add", ["x", "b"], ["a"]), helper.make_node("Relu", ["a"], ["b"])],
            "Add reads 'b', which no node before it computes",
        ),
    ],
)
def test_a_model_that_reads_what_nothing_computes_is_not_well_formed(nodes: list[Any], message: str) -> None:
    with pytest.raises(InvalidGraph, match=message):
        import_onnx(of_nodes(*nodes))


@pytest.mark.parametrize(
    ("node", "message"),
    [
        (helper.make_node("ArgMax", ["x"], ["y"], axis=7), r"ArgMax \(axis 7 of 2 dimensions\)"),
        (helper.make_node("Concat", ["x", "x"], ["y"]), r"Concat \(axis None of 2 dimensions\)"),
        (helper.make_node("Gather", ["x", "w"], ["y"], axis=0), r"Gather \(places beyond 2 elements\)"),
    ],
)
def test_axes_and_places_that_are_not_there_are_refused(node: Any, message: str) -> None:
    weights = [numpy_helper.from_array(np.array([0, 9]), "w")]
    with pytest.raises(UnsupportedModel, match=message):
        import_onnx(of_nodes(node, weights=weights))


@pytest.mark.parametrize("operator", ["Conv", "ConvTranspose"])
def test_filters_of_another_kernel_shape_are_refused(operator: str) -> None:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 3, 8, 8]) for name in "xy")
    weights = [numpy_helper.from_array(np.zeros((3, 3, 3, 3), np.float32), "w")]
    node = helper.make_node(operator, ["x", "w"], ["y"], kernel_shape=[3, 5])
    model = helper.make_model(
        helper.make_graph([node], "given", [x], [y], weights), opset_imports=[helper.make_opsetid("", 18)]
    )
    with pytest.raises(UnsupportedModel, match=r"kernel_shape \[3, 5\] of filters \[3, 3, 3, 3\]"):
        import_onnx(model)


def test_files_and_weights_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    short = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[2, 3], raw_data=b"123")
    with pytest.raises(InvalidGraph, match="the initializer w cannot be read: "):
        import_onnx(of_nodes(helper.make_node("Add", ["x", "w"], ["y"]), weights=[short]))
    with pytest.raises(InvalidParameter, match=r"cannot read .*none\.onnx: No such file"):
        load_onnx(tmp_path / "none.onnx")
    (tmp_path / "junk.onnx").write_bytes(b"\x8f\xff")
    with pytest.raises(InvalidParameter, match=r"junk\.onnx is no ONNX model"):
        load_onnx(tmp_path / "junk.onnx")
