"""In which memory results of ``torch.compile(model, backend="tilewright")`` lie: callers may overwrite each of them."""

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from tests.torch_backend.models import compiled, latest  # noqa: E402
from tilewright.torch_backend.backend import tilewright  # noqa: E402


def test_a_clone_of_an_input_has_memory_of_its_own() -> None:
    ours = compiled(lambda x, w: (x.clone(), torch.softmax(x @ w, -1)))
    for _ in range(2):
        x, w = torch.randn(8, 8), torch.randn(8, 8)
        with torch.no_grad():
            found, _ = ours(x, w)
        assert found.data_ptr() != x.data_ptr() and torch.equal(found, x)


def test_an_input_that_is_no_array_in_order_is_overwritten_and_returned() -> None:
    """Its memory is dense in another order of dimensions, one of which has one element."""

    def run(x: Any) -> Any:
        return x.add_(1), torch.tanh(x)

    ours = compiled(run)
    for _ in range(2):
        x = torch.empty_strided((3, 3, 4, 1), (1, 12, 3, 36)).normal_()
        same = x.clone()
        with torch.no_grad():
            found, expected = ours(x), run(same)
        assert found[0] is x and latest().state == "ready"
        for one, other in zip((*found, x), (*expected, same), strict=True):
            torch.testing.assert_close(one, other)


@pytest.mark.parametrize("dynamic", [False, True])
def test_parts_of_an_argument_begin_where_they_do(dynamic: bool) -> None:
    """Where a trace is symbolic, AOTAutograd makes the part anew, from where the result of the graph begins."""

    def run(x: Any) -> Any:
        return x.flatten()[4:], x[1:, ::2], x.t()[1:], x[1].expand(3, -1), torch.tanh(x)

    torch._dynamo.reset()
    ours = torch.compile(run, backend=tilewright, dynamic=dynamic, options={"wait": True, "verify": "never"})
    for rows in (3, 5):
        x = torch.randn(rows + 1, 6)[1:]
        with torch.no_grad():
            found, expected = ours(x), run(x)
        assert latest().state == "ready"
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other)
            assert one.stride() == other.stride()
        assert [t.data_ptr() for t in found[:4]] == [t.data_ptr() for t in expected[:4]]


OF_ITS_OWN: dict[str, Callable[[Any], Any]] = {
    "concatenation": lambda x: torch.cat([x]),
    "power": lambda x: x**1,
    "border": lambda x: F.pad(x, (0, 0)),
    "repetition": lambda x: x.repeat(1, 1),
    "rows in order": lambda x: x[torch.arange(4)],
    "pool": lambda x: F.max_pool1d(x, 1),
    "resize": lambda x: F.interpolate(x[None], scale_factor=1.0)[0],
}


@pytest.mark.parametrize("name", OF_ITS_OWN)
def test_what_leaves_its_operand_as_it_is_still_gives_memory_of_its_own(name: str) -> None:
    function, x = OF_ITS_OWN[name], torch.randn(4, 6)
    ours = compiled(lambda x: (function(x), torch.tanh(x), function(torch.tanh(x))))
    for _ in range(2):
        with torch.no_grad():
            same, computed, again = ours(x)
        assert latest().state == "ready"
        assert len({t.untyped_storage().data_ptr() for t in (x, same, computed, again)}) == 4
        assert torch.equal(same, x) and torch.equal(again, computed)


def test_results_that_are_computed_alike_have_memory_of_their_own() -> None:
    """Those of which one is a view of another share it."""

    def run(x: Any) -> Any:
        y, z = x * 2, torch.tanh(x)
        return y, y.clone(), y.view(-1), y[1], z, x.tanh(), x.clone().t(), y.clone().view(-1), x.view(-1)

    ours, x = compiled(run), torch.randn(4, 6)
    for _ in range(2):
        with torch.no_grad():
            found, expected = ours(x), run(x)
        places = [[t.untyped_storage().data_ptr() for t in (x, *results)] for results in (found, expected)]
        assert [p.index(a) for p in places[:1] for a in p] == [p.index(a) for p in places[1:] for a in p]
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other)
            assert one.stride() == other.stride()
        found[1].zero_()
        torch.testing.assert_close(found[0], expected[0])


def test_a_foreign_result_of_another_dtype_than_was_traced_is_read_as_what_it_is() -> None:
    """Traces give running statistics of a batch norm of bfloat16 as float32."""
    model = nn.BatchNorm1d(24).to(torch.bfloat16)
    x = torch.randn(16, 24).to(torch.bfloat16)
    run = compiled(model)
    expected = nn.BatchNorm1d(24).to(torch.bfloat16)
    for _ in range(3):
        with torch.no_grad():
            torch.testing.assert_close(run(x), expected(x), rtol=1e-2, atol=1e-2)
        for one, other in zip(model.buffers(), expected.buffers(), strict=True):
            torch.testing.assert_close(one, other, rtol=2e-2, atol=2e-2)
    assert latest().foreign
