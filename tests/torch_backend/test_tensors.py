"""Torch's tensors as those of a program."""

import pytest

torch = pytest.importorskip("torch")

from tilewright.torch_backend.tensors import TorchTensors  # noqa: E402


@pytest.mark.parametrize("inference", [False, True])
def test_stamps_differ_once_a_tensor_has_moved_or_was_changed(inference: bool) -> None:
    """Also where tensors of inference mode, which count no changes, are among them."""
    library = TorchTensors(torch.device("cpu"))
    with torch.inference_mode(inference):
        first = torch.ones(4)
    counting, other = torch.ones(4), torch.zeros(4)
    tensors = [first, counting]
    before = library.stamps(tensors)
    assert library.stamps(tensors) == before
    counting.add_(1)
    changed = library.stamps(tensors)
    assert changed != before and library.stamps(tensors) == changed
    counting.data = other
    moved = library.stamps(tensors)
    assert moved != changed
    tensors[0] = torch.ones(4)  # it counts its changes
    replaced = library.stamps(tensors)
    assert replaced != moved and library.stamps(tensors) == replaced
    tensors[0].add_(1)
    assert library.stamps(tensors) != replaced
