"""Attention of ``torch.compile(model, backend="tilewright")`` with masks, against eager in float64."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional as F  # noqa: E402

from tests.torch_backend.models import check_model, compiled, latest  # noqa: E402

SEEN = torch.arange(5)[:, None] > torch.arange(7) - torch.tensor([9, 1, 0, -2, 9])[:, None]
"""Of some queries all keys are hidden."""
MASKS = {
    "truth values": SEEN,
    "a batch of them": torch.stack([SEEN, ~SEEN])[:, None],
    "minus infinities": torch.zeros(5, 7).masked_fill(~SEEN, -torch.inf),
    "keys of a padded batch": torch.tensor([[True] * 7, [False] * 7])[:, None, None],
    "no keys": torch.zeros(5, 7, dtype=torch.bool),
    "whole rows": torch.tensor([[True], [False], [True], [False], [True]]),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", MASKS)
def test_a_query_that_sees_no_key_gives_zeros(name: str, dtype: Any) -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(2, 4, 5, 16), torch.randn(2, 4, 7, 16), torch.randn(2, 4, 7, 16)
    mask = MASKS[name] if MASKS[name].dtype is torch.bool else MASKS[name].to(dtype)
    status = check_model(F.scaled_dot_product_attention, *(t.to(dtype) for t in (q, k, v)), mask)
    assert status.state == "ready" and not status.foreign


def test_padding_in_front_of_sequences_leaves_later_layers_as_they_are() -> None:
    """What a layer gives for padding is read by the next one, in which it is multiplied by 0."""
    torch.manual_seed(0)
    x, w = torch.randn(2, 6, 16), torch.randn(16, 48) / 4
    known = torch.tensor([[True] * 6, [False] * 2 + [True] * 4])

    def model(x: Any, w: Any, known: Any) -> Any:
        seen = torch.ones(6, 6, dtype=torch.bool).tril() & known[:, None, None, :]
        for _ in range(2):
            q, k, v = ((x @ w).view(2, 6, 3, 2, 8).permute(2, 0, 3, 1, 4)[n] for n in range(3))
            x = x + F.scaled_dot_product_attention(q, k, v, seen).transpose(1, 2).reshape(2, 6, 16)
        return x

    status = check_model(model, x, w, known)
    assert status.state == "ready" and not status.foreign
    assert torch.isfinite(model(x, w, known)).all()


def test_a_causal_mask_that_is_known_needs_no_look_for_queries_that_see_nothing() -> None:
    q = torch.randn(1, 2, 16, 16)
    known = check_model(lambda q: F.scaled_dot_product_attention(q, q, q, torch.ones(16, 16).bool().tril()), q)
    causal = check_model(lambda q: F.scaled_dot_product_attention(q, q, q, is_causal=True), q)
    assert known.kernels == causal.kernels


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_casts_what_attention_is_given(dtype: Any) -> None:
    """Queries and keys of float32, as norms give them under autocast, with values of a product."""
    q, v = torch.randn(1, 2, 5, 16), torch.randn(1, 2, 5, 16)

    def model(q: Any, v: Any) -> Any:
        with torch.autocast("cpu", dtype):
            return F.scaled_dot_product_attention(q, q * 2, v.to(dtype), torch.ones(5, 5).tril())

    run = compiled(model)
    for _ in range(2):
        with torch.no_grad():
            found, expected = run(q, v), model(q, v)
        assert found.dtype is expected.dtype is dtype
        torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2)
    assert latest().state == "ready" and not latest().foreign
