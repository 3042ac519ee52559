"""What the tests of the back end share: compile, run twice, compare with float64 eager."""

import copy
from typing import Any

import torch

from tilewright.torch_backend import backend
from tilewright.torch_backend.compiled import Status
from tilewright.torch_backend.verification import compare

torch.backends.mha.set_fastpath_enabled(False)  # it is no graph of ATen operators


def leaves(value: Any) -> list[Any]:
    return list(torch.utils._pytree.tree_leaves(value))


def compiled(model: Any, **options: Any) -> Any:
    """``model`` by the back end, compiled in its first call, unchecked unless ``options`` say so."""
    torch._dynamo.reset()
    return torch.compile(model, backend=backend.tilewright, options={"wait": True, "verify": "never", **options})


def double(model: Any) -> Any:
    wide = copy.deepcopy(model)
    return wide.double() if isinstance(wide, torch.nn.Module) else wide


def wide(value: Any) -> Any:
    return value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value


def check(
    model: Any, run: Any, *inputs: Any, factor_error: float = 0.0, strides: Any = torch.Tensor.stride
) -> list[Any]:
    """Run ``run`` and compare it with eager, both against float64: at most twice eager's error plus a floor, which
    allows for the ``factor_error`` of a precision. ``strides`` of results, by default all, are those of eager."""
    with torch.no_grad():
        truth = leaves(double(model)(*(wide(x) for x in inputs)))
        eager = leaves(copy.deepcopy(model)(*copy.deepcopy(inputs)))
        ours = leaves(run(*inputs))
    found = compare(ours, eager, truth, factor_error)
    assert found is None, found
    for a, b in zip(ours, eager, strict=True):
        assert not isinstance(a, torch.Tensor) or strides(a) == strides(b)
    return ours


def check_model(model: Any, *inputs: Any) -> Status:
    """Compile ``model`` and check it. Return what became of its last graph."""
    run = compiled(model)
    check(model, run, *inputs)
    check(model, run, *inputs)
    return latest()


def latest() -> Status:
    """The state of the one graph that was compiled last."""
    status: Status = newest_shape().status
    return status


def newest_shape() -> Any:
    found = [shape for graph in backend._graphs for shape in graph.shapes()]
    return max(found, key=lambda shape: shape.number)
