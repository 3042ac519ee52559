"""Terms that are combined at places, by ``torch.compile(model, backend="tilewright")``, against eager in float64."""

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.torch_backend.models import check_model  # noqa: E402

PLACES, TERMS = torch.randint(0, 40, (300,)), torch.randn(300, 24)
OTHERS, NODES = torch.randint(0, 40, (300,)), torch.randn(40, 24)

MODELS: dict[str, Callable[..., Any]] = {
    "index_add": lambda x, i, s, j: x.index_add(0, i, s),
    "scatter_add of rows": lambda x, i, s, j: s.new_zeros(40, 24).scatter_add(0, i[:, None].expand(-1, 24), s),
    "the greatest": lambda x, i, s, j: x.scatter_reduce(0, i[:, None].expand(-1, 24), s, "amax"),
    "the least": lambda x, i, s, j: x.scatter_reduce(0, i[:, None].expand(-1, 24), s, "amin"),
    "places from the end": lambda x, i, s, j: x.index_put((i - 40,), s, accumulate=True),
    "messages of a graph": lambda x, i, s, j: s.new_zeros(40, 24).index_add(0, i, x[j] * s[:, :1]),
    "counts": lambda x, i, s, j: torch.zeros(40, dtype=torch.int64).index_add(0, i, torch.ones_like(i)),
    "means of segments": lambda x, i, s, j: (
        s.new_zeros(40, 24).index_add(0, i, s) / s.new_zeros(40).index_add(0, i, s.new_ones(300)).clamp(min=1)[:, None]
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_terms_are_combined_at_their_places(name: str) -> None:
    status = check_model(MODELS[name], NODES, PLACES, TERMS, OTHERS)
    assert status.state == "ready" and not status.foreign


@pytest.mark.parametrize(
    "function",
    [
        lambda s, i, t: s.scatter_add(1, (i[:, None] + i[None, :24]) % 24, s),
        lambda s, i, t: t.index_add(0, i[:16], s[:16]),
    ],
    ids=["places of each element of its own", "few terms for many places"],
)
def test_what_torch_combines_faster_stays_with_it(function: Any) -> None:
    assert check_model(function, TERMS, PLACES, torch.randn(4000, 24)).foreign
