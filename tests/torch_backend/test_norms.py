"""Norms by ``torch.compile(model, backend="tilewright")``, against eager in float64."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from tests.torch_backend.models import check_model  # noqa: E402


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_an_rms_norm_without_an_epsilon_has_that_of_torch(dtype: Any) -> None:
    """Where elements are small, it is most of what is divided by."""
    status = check_model(nn.RMSNorm(64).to(dtype), torch.full((4, 64), 3e-4, dtype=dtype))
    assert status.state == "ready" and not status.foreign


def test_means_and_variances_in_their_older_forms_are_ours() -> None:
    def spreads(x: Any) -> Any:
        biased = torch.var_mean(x, 1, unbiased=False, keepdim=True)
        return (*torch.var_mean(x, 1), *biased, *torch.var_mean(x), *torch.std_mean(x, 0))

    status = check_model(spreads, torch.randn(12, 40))
    assert status.state == "ready" and not status.foreign
