"""How the kernels of a program come to be."""

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from tests.torch_backend.models import check_model  # noqa: E402
from tilewright.torch_backend import shared_kernels  # noqa: E402


def test_children_build_the_kernels_of_large_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_kernels, "program_children", lambda: 2)
    monkeypatch.setattr(shared_kernels, "CHILDREN_FROM", 2)
    net = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 14 * 14, 10), nn.LogSoftmax(1))
    assert check_model(net.eval(), torch.randn(2, 3, 16, 16)).state == "ready"
    assert not shared_kernels.builders(2).is_idle
