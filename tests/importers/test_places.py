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
    assert {"aten.topk.default", "aten.scatter.src", "aten.sort.default"} <= set(model.foreign)


def test_which_place_of_equal_elements_a_median_has_torch_does_not_say() -> None:
    assert import_fx(trace(lambda x: x.median(1)[1], torch.rand(3, 4))).foreign == ("aten.median.dim",)


def _stable(dim: int, descending: bool, count: int) -> Any:
    """Return what sorting gives that keeps the order of equal elements."""
    return lambda x: [v.narrow(dim, 0, count) for v in torch.sort(x, dim=dim, descending=descending, stable=True)]


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda x: x.sort(1), _stable(1, False, 13)), (lambda x: x.sort(0, descending=True), _stable(0, True, 5)),
        (lambda x: x.sort(stable=True, dim=1, descending=True), _stable(1, True, 13)),
        (lambda x: x.topk(11, 1), _stable(1, True, 11)), (lambda x: x.topk(3, 1, largest=False), _stable(1, False, 3)),
        (lambda x: (x * 9).int().topk(4, 1), lambda x: _stable(1, True, 4)((x * 9).int())),
        (lambda x: (x > 0.5).sort(1), lambda x: _stable(1, False, 13)(x > 0.5)),
        *((f, f) for f in (
            lambda x: x.argsort(dim=1, stable=True), lambda x: x.kthvalue(3, 1)[0], lambda x: x.kthvalue(2, 0, True)[0],
            lambda x: x.median(1)[0], lambda x: x.nanmedian(1)[0], lambda x: x.median(0, True)[0],
            lambda x: x[:1].median(), lambda x: x[3].nanmedian(), lambda x: (x * 9).long().median(1)[0],
        )),
    ],
)  # fmt: skip
def test_orders_of_short_lines_with_equal_elements_and_nan(function: Any, expected: Any) -> None:
    x = (torch.rand(5, 13, generator=torch.Generator().manual_seed(1)) * 4).round() / 4
    if not {"int", "long"} & {*function.__code__.co_names}:
        x[1, 2], x[2], x[3, ::2], x[4, 5] = NAN, NAN, NAN, LOW
    model = import_fx(trace(function, x))
    assert not model.foreign
    found = graph_reference(model.graph, {v.name: x.numpy() for v in model.graph.inputs})
    for name, result, wanted in zip(model.graph.outputs, model.outputs, leaves(expected(x)), strict=True):
        np.testing.assert_array_equal(np.transpose(found[name], result.order), wanted.numpy())


@pytest.mark.parametrize(
    "function",
    [
        lambda x, b: torch.searchsorted(b, x), lambda x, b: torch.searchsorted(b, x, right=True),
        lambda x, b: torch.bucketize(x, b[0]), lambda x, b: torch.bucketize(x, b[0], right=True, out_int32=True),
        lambda x, b: torch.searchsorted(b[0], x[0, 0], side="right"), lambda x, b: torch.searchsorted(b[0], 0.5),
        lambda x, b: torch.bucketize(x, b[0].double()), lambda x, b: torch.bucketize((x > 0).int(), b[0]),
    ],
)  # fmt: skip
def test_places_among_boundaries(function: Any) -> None:
    x = torch.tensor([[0.0, 0.5, 0.7, NAN], [-LOW, LOW, 1.0, -1.0]])
    b = torch.tensor([[0.0, 0.5, 0.5, 1.0, 1.5], [-1.0, 0.0, 1.0, 1.0, -LOW]])
    model = import_fx(trace(function, x, b))
    assert not model.foreign
    arrays = dict(zip([v.name for v in model.graph.inputs], (x.numpy(), b.numpy()), strict=False))
    found = graph_reference(model.graph, arrays)[model.graph.outputs[0]]
    expected = function(x, b).numpy()
    np.testing.assert_array_equal(found, expected)
    assert found.dtype == expected.dtype


def test_nan_is_greater_than_all_and_the_first_of_equal_elements_comes_first() -> None:
    x = torch.tensor([[1, NAN, 3, 2, NAN, 0], [1, 2, 3, NAN, 5, 5], [-LOW, 1, LOW, 2, -LOW, 0.5], [LOW] * 6])
    model = import_fx(trace(lambda x: x.topk(3), x))
    found = graph_reference(model.graph, {v.name: x.numpy() for v in model.graph.inputs})
    values, places = (found[name] for name in model.graph.outputs)
    np.testing.assert_array_equal(values, x.topk(3)[0].numpy())
    np.testing.assert_array_equal(places, [[1, 4, 2], [3, 4, 5], [0, 4, 3], [0, 1, 2]])


class Selects(torch.nn.Module):  # type: ignore[misc,name-defined]
    """A mixture of experts that counts: the weights of the two best, greatest values so far, pools with places, orders
    of short lines, and places among boundaries."""

    def forward(self, x: Any) -> Any:
        weights, places = torch.softmax(x, -1).topk(2)
        gates = torch.zeros_like(x).scatter(1, places, weights)
        pooled, where = functional.max_pool1d(x[None], 3, 2, 1, return_indices=True)
        y = x.clone()
        y[:, 2:9] = 0
        y[::2] += 1
        y[y < 0] = 5
        ordered, edges = x[:, :12].sort(1), torch.cumsum(gates[0].abs(), 0)
        return gates @ x.T, torch.cummax(x, 1), pooled, where, y, ordered, torch.bucketize(x, edges), torch.pdist(x)


def test_a_model_that_selects_and_places_runs_on_kernels_alone() -> None:
    status = check_model(Selects(), torch.randn(9, 21))
    assert status.state == "ready" and not status.foreign
