"""FX graphs of ATen operators as graphs, and back by the reference."""

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402

import tilewright.torch_backend.attention  # noqa: E402  these register operators
import tilewright.torch_backend.recurrent  # noqa: E402, F401
from tilewright.core.target import Target  # noqa: E402
from tilewright.graph.passes.cleanup import drop_unused  # noqa: E402
from tilewright.graph.program import compile_program  # noqa: E402
from tilewright.graph.reference import graph_reference  # noqa: E402
from tilewright.importers.aten import RULES  # noqa: E402
from tilewright.importers.fx import (  # noqa: E402
    TorchPrecisions,
    UnsupportedGraph,
    dense_order,
    import_fx,
    inverse,
    torch_precisions,
)
from tilewright.schedule.defaults import has_class  # noqa: E402
from tilewright.schedule.sketches import sketches_for  # noqa: E402
from tilewright.te.cost import flops  # noqa: E402
from tilewright.torch_backend.tensors import operator_named  # noqa: E402


def trace(function: Any, *inputs: Any) -> Any:
    module = make_fx(function, tracing_mode="fake")(*inputs)
    output = next(n for n in module.graph.nodes if n.op == "output")
    if not isinstance(output.args[0], tuple | list):
        output.args = ((output.args[0],),)
    return module


def ops(model: Any) -> list[str]:
    return [n.op for n in model.graph.nodes]


def test_inputs_and_outputs_keep_their_strides() -> None:
    x = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    model = import_fx(trace(lambda x: torch.relu(x), x))
    (given,), (result,) = model.inputs, model.outputs
    assert model.graph.inputs[0].shape == (2, 4, 5, 3) and given.order == (0, 2, 3, 1)
    assert ops(model) == ["permute", "relu", "permute"] and result.order == (0, 3, 1, 2)
    assert given.value is not None and result.value is not None and given.order is not None
    found = graph_reference(model.graph, {given.value: x.permute(given.order).numpy()})
    array = torch.from_numpy(found[result.value]).permute(result.order)
    torch.testing.assert_close(array, torch.relu(x).double())


def test_other_strides_of_all_of_a_tensor_move_its_dimensions() -> None:
    x = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)

    def of_mean(x: Any) -> Any:  # ATen does so in ``adaptive_avg_pool2d``
        return x.mean((2, 3), keepdim=True).as_strided((2, 3, 1, 1), (3, 1, 3, 3)).relu()

    for f in (of_mean, lambda x: x.as_strided((6, 20), (1, 6)).relu()):
        model = import_fx(trace(f, x))
        (given,), (result,) = model.inputs, model.outputs
        assert not model.foreign and given.value is not None and given.order is not None and result.value is not None
        found = graph_reference(model.graph, {given.value: x.permute(given.order).numpy()})[result.value]
        shown = torch.from_numpy(found) if result.order is None else torch.from_numpy(found).permute(result.order)
        torch.testing.assert_close(shown, f(x).double())


def test_parts_without_elements_change_nothing() -> None:
    """A cache that is empty yet, and the shifted part of windows that are as long as their image."""

    def filled(x: Any) -> Any:
        return torch.slice_scatter(x * 2, x[3:], 0, 3)

    x = torch.randn(3, 4)
    functions: tuple[Any, ...] = (lambda x: torch.cat((x[:0], x, x[1:1]), 0) + 1, filled)
    for f in functions:
        model = import_fx(trace(f, x))
        kept = drop_unused(model.graph)
        assert not any(n.is_foreign for n in kept.nodes)
        (given,), (name,) = kept.inputs, kept.outputs
        torch.testing.assert_close(
            torch.from_numpy(graph_reference(kept, {given.name: x.numpy()})[name]), f(x).double()
        )


def test_the_flags_of_torch_for_tf32_say_what_may_round() -> None:
    """Convolutions and products have flags of their own, and only those of CUDA do."""
    cuda, flags = torch.device("cuda"), (torch.backends.cuda.matmul, torch.backends.cudnn)
    before = [f.allow_tf32 for f in flags]
    try:
        for products, convolutions in ((False, True), (True, False)):
            flags[0].allow_tf32, flags[1].allow_tf32 = products, convolutions
            found = torch_precisions(cuda)
            assert (found.products == "tf32", found.convolutions == "tf32") == (products, convolutions)
            assert torch_precisions(torch.device("cpu")) == TorchPrecisions()
    finally:
        for f, value in zip(flags, before, strict=True):
            f.allow_tf32 = value


def test_convolutions_have_their_precision_where_they_are_of_float32() -> None:
    def f(x: Any, w: Any) -> Any:
        return torch.ops.aten.convolution(x, w, None, [1], [0], [1], False, [0], 1) @ x.mT

    rounded = TorchPrecisions(convolutions="tf32")
    for dtype, wanted in ((torch.float32, "tf32"), (torch.float64, "ieee")):
        x, w = torch.randn(2, 3, 9, dtype=dtype), torch.randn(3, 3, 1, dtype=dtype)
        model = import_fx(trace(f, x, w), precisions=rounded)
        found = {n.op: n.attributes["precision"] for n in model.graph.nodes if "precision" in n.attributes}
        assert found == {"convolution": wanted, "matmul": "ieee"}


def test_static_arguments_are_constants_and_what_is_overwritten_is_not() -> None:
    def f(x: Any, w: Any, state: Any) -> Any:
        y = x @ w
        state.copy_(y)
        return y

    x, w, state = torch.randn(3, 4), torch.randn(4, 5), torch.zeros(3, 5)
    model = import_fx(trace(f, x, w, state), (1, 2))
    assert [v.shape for v in model.graph.constants] == [(4, 5)]
    assert [i.constant for i in model.inputs] == [False, True, False]
    ((target, _),) = model.graph.updates
    assert target == model.inputs[2].value


def test_an_operator_without_a_rule_is_a_foreign_node_with_plain_arguments() -> None:
    model = import_fx(trace(lambda x: torch.nansum(x, 1, dtype=torch.float64) + 1, torch.randn(3, 4)))
    node = next(n for n in model.graph.nodes if n.is_foreign)
    assert model.foreign == ("aten.nansum.default",)
    assert node.attributes["keywords"] == {"dtype": {"dtype": "float64"}}


def test_what_has_no_elements_or_another_dtype_stays_foreign() -> None:
    assert import_fx(trace(lambda x: x + 1, torch.randn(0, 4))).foreign == ("aten.add.Tensor",)
    model = import_fx(trace(lambda x: (x * 2).abs() + 1, torch.randn(3, dtype=torch.complex64)))
    assert model.foreign == ("aten.mul.Tensor", "aten.abs.default") and ops(model)[-1] == "add"


def test_a_trace_that_is_symbolic_is_refused() -> None:
    module = make_fx(lambda x: (x + 1,), tracing_mode="symbolic")(torch.randn(3, 4))
    with pytest.raises(UnsupportedGraph, match="symbolic"):
        import_fx(module)


def test_every_rule_is_of_an_operator_that_torch_has() -> None:
    pytest.importorskip("torch.ao.quantization.fx._decomposed")  # it registers operators
    missing = []
    for name in RULES:
        try:
            operator_named(name)
        except Exception:
            missing.append(name)
    assert not missing


def test_orders() -> None:
    x = torch.empty(2, 3, 4)
    assert dense_order(x) == (0, 1, 2) and dense_order(x.permute(2, 0, 1)) == (1, 2, 0)
    assert dense_order(x[:, :, ::2]) is None and dense_order(x[:1].expand(5, 3, 4)) is None
    assert inverse((2, 0, 1)) == (1, 2, 0)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.sum(), lambda x: x.mean((0, -1)), lambda x: (x > 0) & (x < 1), lambda x: 2 - x, lambda x: x**3,
        lambda x: x**-0.5, lambda x: x.clamp(max=0.2), lambda x: torch.addmm(x, x @ x.t(), x, beta=2, alpha=3),
        lambda x: x[..., -1] * 1, lambda x: x.double() + x, lambda x: torch.full_like(x, 2),
        lambda x: x.select(1, -2) * 1,
        lambda x: torch.where(x > 0, x, 1.0), lambda x: x.var(0), lambda x: torch.arange(2, 9, 3),
        lambda x: x.split(2, 1)[1] * 1, lambda x: x.cumsum(0), lambda x: x.atan() + x.tan(),
        lambda x: x.gather(1, (x * 2).long()), lambda x: torch.nn.functional.embedding((x * 2).long(), x),
        lambda x: x[(x[:, 0] * 2).long(), (x[:, 1] * 3).long() - 4], lambda x: x.index_select(1, (x[0] * 3).long()),
        lambda x: x[:, (x * 3).long()], lambda x: x.cumprod(1), lambda x: x.roll((1, -2), (0, 1)) + x.roll(5),
        lambda x: x.unfold(1, 2, 2) * 1, lambda x: x.unfold(0, 2, 1) * 1,
        lambda x: x.diagonal(1) * x.t().diagonal(-1),
        lambda x: x.slice_scatter(x[:, :2] * 2, 1, 1, 3), lambda x: x.select_scatter(x[:, 0] * 2, 1, -1),
        lambda x: torch.linalg.vector_norm(x, float("inf"), 1), lambda x: torch.linalg.vector_norm(x, 3, (0, 1)),
        lambda x: torch.addmv(x[:, 1], x, x[0], beta=2, alpha=3), lambda x: 2**x,
        lambda x: torch.arange(3.0) + x[:, 0],
        lambda x: torch.nn.functional.avg_pool2d(x[None, None], 2, 2, 1, True),
        lambda x: torch.nn.functional.avg_pool2d(x[None, None], 2, 2, divisor_override=3),
        lambda x: torch.nn.functional.adaptive_max_pool2d(x[None], (3, 2)),
        lambda x: torch.nn.functional.adaptive_max_pool2d(x[None], (2, 3)),
        lambda x: torch.nn.functional.adaptive_avg_pool2d(x[None], (2, 3)),
        lambda x: torch.nn.functional.interpolate(x[None, None], (2, 3), mode="area"),
        lambda x: torch.nn.functional.fold(x.reshape(1, 4, 3), (2, 4), 2, 1, 0) * 1,
        lambda x: torch.nn.functional.fold(x.reshape(1, 4, 3)[..., :2], (4, 2), 2, 2, 1, 2) * 1,
        lambda x: torch.nn.functional.bilinear(x, x + 1, x[:, :, None] * torch.ones(4)),
        lambda x: torch.addbmm(x[:, :3], x[:, None] * torch.ones(3, 1), x.T[None] + x[:, :1, None], beta=2, alpha=3),
        lambda x: torch.ops.aten._embedding_bag(x, torch.arange(4) // 2, torch.arange(0, 4, 2), False, 1)[0] * 1,
        lambda x: torch.where(x > 0.5, x, float("nan")), lambda x: torch.xlogy(x - x[0], x),
        lambda x: x.var(1, correction=3),
        lambda x: (x > 0.3) * (x < 0.8), lambda x: (x > 0.8) + (x < 0.3), lambda x: (x * 9).long() // 4,
        lambda x: (x * 9 - 5).long() % 4, lambda x: (x - 0.5) % 0.3, lambda x: torch.fmod(x - 0.5, 0.3),
        lambda x: (x - 0.5) // 0.3, lambda x: torch.div(x - 0.5, 0.3, rounding_mode="trunc"),
        lambda x: x.round(decimals=1), lambda x: torch.hypot(x, x + 1),
        lambda x: torch.copysign(x, x - 0.5), lambda x: torch.signbit(x - 0.5), lambda x: torch.exp2(9 * x - 5),
        lambda x: torch.sinh(20 * x - 9), lambda x: torch.cosh(3 * x), lambda x: torch.asinh(9 * x - 4),
        lambda x: torch.acosh(x + 1), lambda x: torch.atanh(x * 0.8),
        lambda x: torch.acos(x * 1.8 - 1), lambda x: torch.erfc(x), lambda x: torch.log10(x),
        lambda x: torch.erfinv(x * 0.8) + torch.special.erfcx(x), lambda x: torch.lgamma(x) + torch.polygamma(0, x),
        lambda x: torch.i0(9 * x) + torch.special.i1(x) * torch.special.i1e(x), lambda x: torch.special.i0e(x),
        lambda x: torch.ops.aten.rrelu_with_noise_functional(x - 0.5, x, 0.1, 0.3)[0] * 1,
        lambda x: torch.nn.functional.group_norm(x, 2, x[0]), lambda x: x[:, :1] @ x[:1],
        lambda x: x.round().norm(0, 1), lambda x: torch.sign(torch.where(x > 0.5, x - 0.8, float("nan"))),
        lambda x: torch.fmax(x, torch.where(x > 0.5, x + 1, float("nan"))),
        lambda x: torch.fmin(torch.where(x > 0.5, x + 1, float("nan")), x),
        lambda x: torch.cdist(x, x + 0.1, 1), lambda x: torch.cdist(x[None], x[None] * 2, 3),
        lambda x: torch.cdist(x, x + 0.1, float("inf")), lambda x: torch.cdist(x, x[:2]),
        lambda x: (x * 99).long() & 12 | (x * 50).long() ^ -5, lambda x: ~(x * 99).int() << 3,
        lambda x: (x * 99 - 50).long() >> (x * 90 - 9).long(), lambda x: ~(x * 99).to(torch.uint8) >> 1,
        lambda x: 1 << (x * 90 - 9).long(), lambda x: (x * 9).int() ** 5,
        lambda x: torch.pdist(x.T), lambda x: torch.pdist(x, 1), lambda x: torch.pdist(x.T, float("inf")),
        lambda x: torch.cdist(x, x[:2], 0), lambda x: torch.dist(x, x.flip(0), 3), lambda x: x.norm(-1, 1),
        lambda x: torch.linalg.vector_norm(x, 2, 1, dtype=torch.float64), lambda x: torch.angle(x - 0.5),
        lambda x: torch.ldexp(x, (x * 9).int()), lambda x: x + torch.arange(0.5, 1.5, 0.25),
        lambda x: torch.hypot(x.double(), (x * 9).int()), lambda x: (x > 0.5).amax(1), lambda x: (x > 0.5).min(),
        lambda x: (x > 0.5).max(0)[0] * 1, lambda x: (x > 0.5).min(1, keepdim=True)[1] * 1,
        lambda x: (x * 2).byte().any(1), lambda x: (x * 2).byte().all(), lambda x: (x * 2).byte()[0, 0].any(),
        lambda x: torch.diagonal_scatter(x, x[0, :3], 1), lambda x: torch.diagonal_scatter(x, x[0, :2], -1),
    ],
)  # fmt: skip
def test_single_operators_by_the_reference(function: Any) -> None:
    x = torch.rand(3, 4, generator=torch.Generator().manual_seed(1)) + 0.1
    model = import_fx(trace(function, x))
    assert not model.foreign
    given = {v.name: x.numpy() for v in model.graph.inputs}
    expected = function(x)
    name = model.graph.outputs[0]
    found = graph_reference(model.graph, given)[name]
    found = np.transpose(found, model.outputs[0].order)
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-5, atol=1e-6)
    assert model.graph.values[name].dtype.name == str(expected.dtype).removeprefix("torch.")


@pytest.mark.skipif(not hasattr(torch.ops.aten, "_grouped_mm"), reason="this torch has no grouped products")
@pytest.mark.parametrize("transposed", [False, True])
def test_grouped_products(transposed: bool) -> None:
    def f(x: Any, w: Any, ends: Any) -> Any:
        return torch.ops.aten._grouped_mm(x, w.transpose(1, 2) if transposed else w, ends)

    x, ends = torch.randn(40, 16, dtype=torch.bfloat16), torch.tensor([7, 7, 40], dtype=torch.int32)
    w = torch.randn(*((3, 24, 16) if transposed else (3, 16, 24)), dtype=torch.bfloat16)
    model = import_fx(trace(f, x, w, ends))
    assert ops(model) == [*(["permute"] if transposed else []), "grouped_matmul"]
    values = [given.value for given in model.inputs]
    arrays = dict(zip(values, (x.float().numpy(), w.float().numpy(), ends.numpy()), strict=True))
    found = graph_reference(model.graph, {str(name): array for name, array in arrays.items()})
    (result,) = model.outputs
    assert result.value is not None
    torch.testing.assert_close(torch.from_numpy(found[result.value]).bfloat16(), f(x, w, ends), rtol=0.02, atol=0.02)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("LSTM", {"num_layers": 2, "bidirectional": True}),
        ("LSTM", {"bias": False, "batch_first": True}),
        ("GRU", {"num_layers": 2, "batch_first": True}),
        ("GRU", {"bidirectional": True, "bias": False}),
        ("RNN", {"num_layers": 2}),
        ("RNN", {"nonlinearity": "relu", "bidirectional": True}),
    ],
)
def test_recurrent_layers_are_written_out(name: str, options: dict[str, Any]) -> None:
    """Each step has one product with the state, and there is one with all inputs for each layer and direction."""
    torch.manual_seed(0)
    layer = getattr(torch.nn, name)(5, 6, **options).double().requires_grad_(False)
    ways, steps = layer.num_layers * (2 if layer.bidirectional else 1), 4
    x = torch.randn((3, steps, 5) if layer.batch_first else (steps, 3, 5), dtype=torch.float64)
    states = [torch.randn(ways, 3, 6, dtype=torch.float64) for _ in range(2 if name == "LSTM" else 1)]
    kind = {"RNN_TANH": "rnn_tanh", "RNN_RELU": "rnn_relu"}.get(layer.mode, name.lower())
    given = (kind, layer.bias, layer.num_layers, layer.bidirectional, layer.batch_first, [0, 1, 2])

    def run(x: Any, states: Any, weights: Any) -> Any:
        return torch.ops.tilewright.recurrent(x, states, weights, *given)

    weights = list(layer._flat_weights)
    model = import_fx(trace(run, x, states, weights))
    assert model.foreign == () and ops(model).count("matmul") == ways * (steps + 1)
    names = [i.value for i in model.inputs if i.value is not None]
    arrays = {n: t.numpy() for n, t in zip(names, (x, *states, *weights), strict=True)}
    found = graph_reference(model.graph, arrays)
    y, last = layer(x, tuple(states) if name == "LSTM" else states[0])
    for output, expected in zip(model.outputs, (y, *(last if name == "LSTM" else (last,))), strict=True):
        assert output.value is not None
        torch.testing.assert_close(torch.from_numpy(found[output.value]), expected)


def test_known_places_of_an_index_are_views() -> None:
    x = torch.rand(6, 8)

    def every_other(x: Any) -> Any:
        return x[torch.arange(0, 6, 2)] * 1

    def twice(x: Any) -> Any:
        return x[:, (torch.arange(16) * 0.5).to(torch.int64)] * 1

    def scattered(x: Any) -> Any:
        return x[torch.arange(6) * torch.arange(6) % 6] * 1

    for function, op in ((every_other, "slice"), (twice, "repeat")):
        model = import_fx(trace(function, x))
        assert not model.foreign and op in ops(model)
        found = graph_reference(model.graph, {model.graph.inputs[0].name: x.numpy()})[model.graph.outputs[0]]
        np.testing.assert_allclose(found, function(x).numpy())
    gathered = import_fx(trace(scattered, x))
    assert not gathered.foreign and "gather" in ops(gathered)


def test_a_broadcast_product_that_is_summed_over_two_dimensions_is_a_chain_of_contractions() -> None:
    target = Target("cuda", "sm_90a", threads=132, vector_bytes=16)
    a, b, c = torch.rand(16, 12), torch.rand(12, 20), torch.rand(20, 8)  # small: larger products are stored first
    model = import_fx(trace(lambda a, b, c: (a[:, :, None, None] * b[:, :, None] * c).sum((1, 2)), a, b, c))
    program = compile_program(model.graph, lambda workload: has_class(workload, target), gpu=True)
    (call,) = program.kernels
    assert [s.name for s in sketches_for(call.workload, target)] == ["cuda_chain"]
    assert flops(call.workload) == 2 * 20 * 8 * 12 + 2 * 16 * 8 * 12  # and not 3 * 16 * 12 * 20 * 8
