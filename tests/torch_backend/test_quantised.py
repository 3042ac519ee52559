"""Products of quantised models of torch: of integers, and of integers that operators of exported models dequantise."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

pytest.importorskip("torch.ao.quantization.fx._decomposed")  # it registers operators

from tests.torch_backend.models import check_model, compiled, newest_shape  # noqa: E402

ops = torch.ops.quantized_decomposed
BYTES = (-128, 127, torch.int8)


class QuantisedLayers(torch.nn.Module):  # type: ignore[misc, name-defined]
    """A convolution with filters that are quantised as a whole, and a linear layer with weights quantised by rows."""

    def __init__(self, symmetric: bool) -> None:
        super().__init__()
        self.zeros = None if symmetric else torch.randint(-3, 4, (12,))
        self.filters = torch.nn.Parameter(torch.randint(-128, 128, (8, 4, 3, 3), dtype=torch.int8), False)
        self.weight = torch.nn.Parameter(torch.randint(-128, 128, (12, 8), dtype=torch.int8), False)
        self.scales = torch.nn.Parameter(torch.rand(12) * 0.01 + 0.001, False)

    def forward(self, x: Any) -> Any:
        x = ops.quantize_per_tensor(x, 0.03, 5, 0, 255, torch.uint8)
        x = ops.dequantize_per_tensor(x, 0.03, 5, 0, 255, torch.uint8)
        filters = ops.dequantize_per_tensor(self.filters, 0.01, 0, *BYTES)
        y = torch.relu(torch.nn.functional.conv2d(x, filters, padding=1))
        y = ops.quantize_per_tensor(y.mean((2, 3)), 0.05, -7, *BYTES)
        y = ops.dequantize_per_tensor(y, 0.05, -7, *BYTES)
        weight = ops.dequantize_per_channel(self.weight, self.scales, self.zeros, 0, *BYTES)
        return torch.nn.functional.linear(y, weight)


def test_products_of_bytes_are_exact() -> None:
    x, w = (torch.randint(-128, 128, shape, dtype=torch.int8) for shape in ((64, 200), (200, 80)))
    status = check_model(lambda x, w: torch._int_mm(x, w), x, w)
    assert status.state == "ready" and not status.foreign


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("verify", ["first", "never"])
def test_dequantised_factors_are_products_of_bytes(symmetric: bool, verify: str) -> None:
    torch.manual_seed(0)
    model, x = QuantisedLayers(symmetric), torch.randn(2, 4, 9, 9)
    run = compiled(model, verify=verify)
    with torch.no_grad():
        run(x)
        torch.testing.assert_close(run(x), model(x))
    shape = newest_shape()
    assert shape.status.state == "ready" and not shape.status.foreign
    products = [n for n in shape._bound.program.graph.nodes if n.op in ("matmul", "convolution")]
    assert {n.attributes["accumulate"] for n in products} == {"int32"}
