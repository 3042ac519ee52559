"""StableHLO modules as graphs: models that JAX lowers, compared with what XLA computes, and modules written by hand."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402

from tests.runtime.test_program import bound, run  # noqa: E402
from tilewright.cli.model_program import read_model, time_programs  # noqa: E402
from tilewright.core.errors import InvalidParameter  # noqa: E402
from tilewright.graph.graph import FOREIGN  # noqa: E402
from tilewright.graph.passes import simplify_graph  # noqa: E402
from tilewright.graph.reference import graph_reference  # noqa: E402
from tilewright.importers.stablehlo.foreign import xla_function  # noqa: E402
from tilewright.importers.stablehlo.model import import_stablehlo  # noqa: E402
from tilewright.importers.weighted_graph import UnsupportedModel, WeightedGraph  # noqa: E402
from tilewright.runtime.devices import device_info  # noqa: E402
from tilewright.runtime.numpy_tensors import NumpyTensors  # noqa: E402


def array(seed: int, *shape: int, dtype: Any = np.float32) -> Any:
    draw = np.random.default_rng(seed)
    if np.dtype(dtype).kind == "i":
        return draw.integers(0, 5, shape).astype(dtype)
    return draw.standard_normal(shape).astype(dtype)


def lowered(function: Callable[..., Any], arguments: list[Any]) -> str:
    return str(jax.jit(function).lower(*arguments).as_text())


def check(function: Callable[..., Any], *arguments: Any, kernels: bool = False) -> WeightedGraph:
    """The graph of ``function``, whose reference (or ``kernels``) must give what XLA gives."""
    found = import_stablehlo(lowered(function, list(arguments)))
    expected = jax.tree.leaves(jax.jit(function)(*arguments))
    data = dict(found.weights) | {v: arguments[int(n.removeprefix("arg"))] for n, v in found.inputs.items()}
    if kernels:
        results = run(bound(found.graph, NumpyTensors(xla_function)), found.graph, data)
        outputs = dict(zip(found.graph.outputs, results, strict=True))
    else:

        def foreign(node: Any, operands: Any) -> Any:
            kinds = [found.graph.values[name].dtype.numpy for name in node.operands]
            return xla_function(node)([np.asarray(o, k) for o, k in zip(operands, kinds, strict=True)])

        outputs = graph_reference(found.graph, data, foreign)
    for name, wanted in zip(found.outputs.values(), expected, strict=True):
        result = outputs[name]
        assert result.shape == wanted.shape
        unit = 2e-2 if wanted.dtype == jnp.bfloat16 else 2e-5
        size = max(1.0, float(jnp.abs(jnp.where(jnp.isfinite(wanted), wanted, 0)).max()))
        np.testing.assert_allclose(np.float64(result), np.float64(wanted), rtol=unit, atol=unit * size)
    return found


def operators(found: WeightedGraph) -> Counter[str]:
    return Counter(n.op for n in simplify_graph(found.graph).nodes)


def foreign(found: WeightedGraph) -> list[str]:
    return [str(n.attributes["target"]) for n in found.graph.nodes if n.is_foreign]


def normalised(x: Any, g: Any, b: Any) -> Any:
    mean = x.mean(-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5) * g + b


def transformer(x: Any, ids: Any) -> Any:
    """A block of a transformer behind an embedding, with its weights inside."""
    heads = [jnp.asarray(array(n, 32, 2, 16)) * 0.2 for n in range(3)]
    x = x + jnp.asarray(array(3, 20, 32))[ids]
    h = normalised(x, jnp.asarray(array(4, 32)), jnp.asarray(array(5, 32)))
    q, k, v = (jnp.einsum("bsd,dhe->bhse", h, w) for w in heads)
    scores = jnp.einsum("bhse,bhte->bhst", q, k) / 4.0
    scores = jnp.where(jnp.tril(jnp.ones((8, 8), bool)), scores, -jnp.inf)
    o = jnp.einsum("bhst,bhte->bshe", jax.nn.softmax(scores), v)
    x = x + jnp.einsum("bshe,hed->bsd", o, jnp.asarray(array(6, 2, 16, 32)))
    h = jax.nn.gelu(normalised(x, 1.0, 0.0) @ jnp.asarray(array(7, 32, 64)))
    return x + h @ jnp.asarray(array(8, 64, 32))


def test_a_transformer_block_runs_by_kernels_with_norms_and_softmax_found() -> None:
    found = check(transformer, array(9, 2, 8, 32), array(10, 2, 8, dtype=np.int32), kernels=True)
    counts = operators(found)
    assert (counts["layer_norm"], counts["softmax"], counts["matmul"]) == (2, 1, 8)
    assert not foreign(found) and not {"rsqrt", "exp", "max", "mean"} & set(counts)
    assert len(found.weights) >= 7


def network(x: Any) -> Any:
    layout = ("NHWC", "HWIO", "NHWC")
    y = jax.lax.conv_general_dilated(x, jnp.asarray(array(0, 3, 3, 3, 8)), (2, 2), "SAME", dimension_numbers=layout)
    y = jax.nn.relu(y)
    y = jax.lax.conv_general_dilated(y, jnp.asarray(array(1, 3, 3, 1, 8)), (1, 1), "SAME", dimension_numbers=layout,
                                     feature_group_count=8)  # fmt: skip
    y = jnp.clip(y, 0, 6)
    y = jax.lax.reduce_window(y, -jnp.inf, jax.lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")
    y = jax.lax.reduce_window(y, 0.0, jax.lax.add, (1, 2, 2, 1), (1, 2, 2, 1), "VALID") / 4
    return jax.nn.log_softmax(y.mean((1, 2)) @ jnp.asarray(array(2, 8, 10)))


def test_a_convolutional_network_runs_by_kernels() -> None:
    counts = operators(check(network, array(3, 2, 16, 16, 3), kernels=True))
    assert (counts["convolution"], counts["max_pool"], counts["average_pool"], counts["mean"]) == (2, 1, 1, 1)


def test_a_transposed_convolution_and_rows_of_a_vector() -> None:
    filters = jnp.asarray(array(0, 3, 3, 4, 6))
    check(lambda x: jax.lax.conv_transpose(x, filters, (2, 2), "SAME"), array(1, 1, 5, 5, 4))
    check(lambda x, y: (x @ y, y @ x, x @ x), array(0, 5, 5), array(1, 5))


def places(x: Any, i: Any, j: Any) -> Any:
    cache = jax.lax.dynamic_update_slice(x, x[:1, :2] * 2, (j, 3))
    part = jax.lax.dynamic_slice(x, (j, j), (2, 3))
    return (x[i], x[:, i], x[j], jnp.take_along_axis(x, jnp.broadcast_to(i[:, None], (3, 8)), 0), part, cache,
            jax.lax.dynamic_slice(x, (-7, 9), (2, 3)), jnp.concatenate([x, x], 1)[:, ::-2])  # fmt: skip


def test_places_that_are_known_when_the_model_runs_are_those_of_xla() -> None:
    for at in (-1, 99):
        j = np.int32(at)
        assert not foreign(check(places, array(0, 6, 8), np.array([1, 0, -1], np.int32), j))


def small(x: Any) -> Any:
    whole = jnp.arange(-4, 4)
    return (x.argmax(-1), x.argmin(0), jnp.cumsum(x, 1), jax.lax.cumsum(x, 0, reverse=True), jnp.pad(x, 1),
            x.astype(jnp.bfloat16) * 3, (x > 0).any(1),
            jax.scipy.special.erf(x), jax.nn.gelu(x, approximate=False), jnp.round(x), whole // 3, whole % 3,
            jnp.clip(x, -0.5, 0.5), jax.nn.silu(x), jnp.tanh(x) ** 2, jnp.isfinite(x / 0), x.T.reshape(-1), x.max(),
            jax.lax.pad(x, 0.0, ((-1, 2, 1), (0, 0, 0))), jnp.log1p(jnp.abs(x)), jnp.where(x > 0, x, 0.0))  # fmt: skip


def test_small_operations() -> None:
    assert not foreign(check(small, array(0, 4, 6)))


def test_what_has_no_rule_is_computed_by_xla_between_kernels() -> None:
    def model(x: Any) -> Any:
        ordered = jnp.sort(jnp.exp(x), 1)
        values, at = jax.lax.top_k(ordered * 2, 2)
        return values + 1, at, ordered.at[0].add(1.0)

    found = check(model, array(0, 4, 6), kernels=True)
    assert foreign(found) == ["stablehlo.sort", "chlo.top_k", "stablehlo.scatter"]


def test_loops_of_known_length_are_read_in_place_and_others_are_foreign() -> None:
    layers = jnp.asarray(array(0, 3, 8, 8)) * 0.3
    scanned = check(lambda x: jax.lax.scan(lambda h, w: (jnp.tanh(h @ w), h.sum()), x, layers), array(1, 4, 8))
    assert operators(scanned)["matmul"] == 3 and not foreign(scanned)

    def until(x: Any, most: Any) -> Any:
        return jax.lax.while_loop(lambda h: (h < most).all(), lambda h: jnp.where(h > 0, h * 2, h - 1), x)

    assert foreign(check(until, array(2, 3), np.float32(9.0))) == ["stablehlo.while"]
    branch = check(lambda x, i: jax.lax.cond(i > 1, jnp.sin, lambda v: jnp.sort(v), x), array(0, 3), np.int32(2))
    assert foreign(branch) == ["stablehlo.case"]


def test_a_portable_artifact_and_a_file_for_the_command_line(tmp_path: Path) -> None:
    x = array(0, 4, 16)
    weight = jnp.asarray(array(1, 16, 16))
    exported = jax.export.export(jax.jit(lambda x: jnp.sort(jax.nn.relu(x @ weight), 1)))(x)
    path = tmp_path / "layer.stablehlo"
    path.write_bytes(exported.mlir_module_serialized)
    found = read_model(path, [], device_info().target)
    assert list(found.labels().values()) == ["matmul maximum"]
    assert found.foreign_calls() == {"stablehlo.sort": 1}
    assert min(time_programs(found, {}, 1)[:2]) > 0


def test_arguments_may_be_weights_and_constants_of_sixteen_bits_are_read() -> None:
    text = """
    func.func @main(%x: tensor<2x3xbf16>, %w: tensor<2x3xbf16>) -> tensor<2x3xbf16> {
      %c = stablehlo.constant dense<[[1.5, -2.0, 0xFF80], [3.0, 4.0, 0x7F80]]> : tensor<2x3xbf16>
      %y = stablehlo.maximum %x, %c : tensor<2x3xbf16>
      %z = stablehlo.multiply %y, %w : tensor<2x3xbf16>
      return %z : tensor<2x3xbf16>
    }"""
    weight = np.full((2, 3), 2.0, np.float32)
    found = import_stablehlo(text, {1: weight})
    assert list(found.inputs) == ["arg0"] and set(found.weights) == {"arg1", "constant"}
    (y,) = graph_reference(found.graph, {"arg0": np.zeros((2, 3)), **found.weights}).values()
    np.testing.assert_array_equal(y, [[3.0, 0, 0], [6.0, 8.0, np.inf]])
    with pytest.raises(InvalidParameter, match="argument 1"):
        import_stablehlo(text, {1: weight[:1]})


def test_what_is_no_module_and_unknown_shapes_are_refused(tmp_path: Path) -> None:
    (tmp_path / "no.mlir").write_text("nothing")
    with pytest.raises(InvalidParameter, match=r"no\.mlir is no StableHLO module"):
        read_model(tmp_path / "no.mlir", [], device_info().target)
    with pytest.raises(InvalidParameter, match="shapes of its own"):
        read_model(tmp_path / "no.mlir", ["rows=3"], device_info().target)
    with pytest.raises(UnsupportedModel, match="not known"):
        import_stablehlo("func.func @main(%x: tensor<?xf32>) -> tensor<?xf32> { return %x : tensor<?xf32> }")


def test_a_call_of_another_library_is_foreign_and_named() -> None:
    text = """
    func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
      %y = stablehlo.custom_call @Sharding(%x) : (tensor<4xf32>) -> tensor<4xf32>
      %z = stablehlo.custom_call @of_mine(%y) : (tensor<4xf32>) -> tensor<4xf32>
      return %z : tensor<4xf32>
    }"""
    found = import_stablehlo(text)
    (node,) = found.graph.nodes
    assert (node.op, node.attributes["target"], node.operands) == (FOREIGN, "custom_call.of_mine", ("arg0",))
