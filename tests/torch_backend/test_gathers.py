"""Elements at places, by ``torch.compile(model, backend="tilewright")``, against eager in float64."""

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.torch_backend.models import check_model  # noqa: E402

PLACES = torch.tensor([3, 0, 2, 2, 1, 0, 3, 1])
MODELS: dict[str, Callable[..., Any]] = {
    "experts of tokens": lambda x, i: x.softmax(-1).view(8, 4).gather(0, i[:, None].expand(8, 4)),
    "one expert of each token": lambda x, i: x.softmax(-1).view(8, 4).gather(1, i[:, None]),
    "rows": lambda x, i: x.softmax(-1).view(8, 4)[i],
    "all elements of a sum": lambda x, i: x.sum(0).reshape(-1)[i],
    "columns of a sum": lambda x, i: x.sum(0).reshape(2, 4).index_select(1, i[:4]),
    "places that are known": lambda x, i: x.logsumexp(0).reshape(-1).gather(0, torch.zeros_like(i)),
    "heads": lambda x, i: x.tanh().transpose(0, 1)[i],
}


@pytest.mark.parametrize("name", MODELS)
def test_elements_are_taken_along_their_dimension(name: str) -> None:
    torch.manual_seed(0)
    shape = (4, 2, 4) if "sum" in name or "known" in name else (2, 4, 4)
    status = check_model(MODELS[name], torch.randn(shape), PLACES)
    assert status.state == "ready" and not status.foreign
