"""Rules for operators of ATen that find places or write to them, against eager in float64."""

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tests.importers.test_fx import trace  # noqa: E402
from tests.torch_backend.models import check_model, leaves  # noqa: E402
from tilewright.graph.reference import graph_reference  # noqa: E402
from tilewright.importers.fx import import_fx  # noqa: E402

aten, functional = torch.ops.aten, torch.nn.functional
LOW, NAN = -float("inf"), float("nan")


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.topk(3, 1), lambda x: x.topk(2, 0), lambda x: x.topk(1),
        lambda x: x.where(x > 0.6, NAN).topk(3, 1)[0],
        lambda x: (x * 3).round().topk(4)[0], lambda x: x.where(x > 0.6, LOW).topk(4, 1)[0],
        lambda x: (x * 4).round().cummax(1), lambda x: x.cummin(0), lambda x: (x * 9).long().cummax(1),
        lambda x: x.where(x > 0.3, NAN).cummax(1),
        lambda x: x.scatter(1, (x[:, :1] * 3).long(), x[:, 1:] + 5), lambda x: x.scatter(0, (x[:1] * 2).long(), 7.0),
        lambda x: x.scatter_add(1, (x[:, :3] * 3).long(), x),
        lambda x: x.scatter_reduce(1, (x[:, :3] * 3).long(), x * 2, "amax"),
        lambda x: x.index_add(0, (x[0] * 2.9).long(), x[0, 0].expand(4, 4)),
        lambda x: aten.index_put(x, ((x[:2, 0] * 0).long() - 1,), x[:1] * 2),
        lambda x: aten.index_put(x, (None, (x[0, :2] * 0).long() + 2), x[:, :2] * 2, True),
        lambda x: aten.index_put(x, ((x[0, 0] * 2.9).long(),), x[0] * 9),
        lambda x: aten.index_put(x, (None, (x[0, 0] * 2.9).long()), x[:, 0] * 9),
        lambda x: aten.index_put(x, (x > 0.5,), x[0, 0] * 3), lambda x: aten.index_put(x, (x[:, 0] > 0.5,), x[0, 0]),
        lambda x: aten.index_put(x, (torch.arange(3), (x[:, 0] * 3).long()), x[:, 1] * 9),
        lambda x: aten.index_put(x, (torch.arange(3)[:, None], (x[:, :1] * 3).long() - 4), x[:, 1:2] * 9, True),
        lambda x: x.reshape(3, 2, 2)[(x[:, 0] * 2.9).long(), :, (x[:, 1] * 1.9).long()],
        lambda x: aten.slice_scatter(x, x[:, :2] * 5, 1, 1, 4, 2), lambda x: aten.slice_scatter(x, x[:2], 0, 0, 9, 2),
        lambda x: functional.max_pool2d((x * 3).round()[None, None], 2, 1, 1, return_indices=True),
        lambda x: aten.max_pool2d_with_indices(x[None], [2, 2], [2, 2], [0, 0], [1, 1], True),
        lambda x: aten.max_pool2d_with_indices((x * 0 + LOW)[None], [3, 3], [1, 1], [1, 1]),
        lambda x: aten.max_pool3d_with_indices(x.reshape(1, 1, 3, 2, 2), [2, 2, 2], [1, 1, 1], [1, 1, 1]),
        lambda x: functional.adaptive_max_pool2d(x[None], (3, 2), return_indices=True),
        lambda x: functional.adaptive_max_pool2d(x[None], 1, return_indices=True),
    ],
)  # fmt: skip
def test_places_by_the_reference(function: Any) -> None:
    """float64 has the elements of ``x`` as they are, so that both find the same places."""
    x = torch.rand(3, 4, generator=torch.Generator().manual_seed(5)) * 0.9 + 0.05
    model = import_fx(trace(function, x))
    assert not model.foreign
    found = graph_reference(model.graph, {v.name: x.numpy() for v in model.graph.inputs})
    expected = leaves(function(x.double()))
    for name, result, wanted in zip(model.graph.outputs, model.outputs, expected, strict=True):
        np.testing.assert_allclose(np.transpose(found[name], result.order), wanted.numpy(), rtol=1e-6)


def test_more_places_than_a_kernel_selects_stay_foreign() -> None:
    x = torch.rand(3, 20)
    model = import_fx(trace(lambda x: (x.topk(17)[0], x.scatter(1, x.argsort(), x)), x))
    assert {"aten.topk.default", "aten.scatter.src"} <= set(model.foreign)


def test_the_least_elements_stay_foreign() -> None:
    """Among them NaN comes last, while the least element of a line with NaN is NaN."""
    model = import_fx(trace(lambda x: x.topk(2, largest=False)[0], torch.rand(3, 20)))
    assert model.foreign == ("aten.topk.default",)


def test_nan_is_greater_than_all_and_the_first_of_equal_elements_comes_first() -> None:
    x = torch.tensor([[1, NAN, 3, 2, NAN, 0], [1, 2, 3, NAN, 5, 5], [-LOW, 1, LOW, 2, -LOW, 0.5], [LOW] * 6])
    model = import_fx(trace(lambda x: x.topk(3), x))
    found = graph_reference(model.graph, {v.name: x.numpy() for v in model.graph.inputs})
    values, places = (found[name] for name in model.graph.outputs)
    np.testing.assert_array_equal(values, x.topk(3)[0].numpy())
    np.testing.assert_array_equal(places, [[1, 4, 2], [3, 4, 5], [0, 4, 3], [0, 1, 2]])


class Selects(torch.nn.Module):  # type: ignore[misc,name-defined]
    """A mixture of experts that counts: the weights of the two best, greatest values so far, pools with places."""

    def forward(self, x: Any) -> Any:
        weights, places = torch.softmax(x, -1).topk(2)
        gates = torch.zeros_like(x).scatter(1, places, weights)
        pooled, where = functional.max_pool1d(x[None], 3, 2, 1, return_indices=True)
        y = x.clone()
        y[:, 2:9] = 0
        y[::2] += 1
        y[y < 0] = 5
        return gates @ x.T, torch.cummax(x, 1), pooled, where, y


def test_a_model_that_selects_and_places_runs_on_kernels_alone() -> None:
    status = check_model(Selects(), torch.randn(9, 21))
    assert status.state == "ready" and not status.foreign
