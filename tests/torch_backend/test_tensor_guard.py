"""Guards of tensors notice whatever may give a model other weights."""

import weakref
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from tilewright.torch_backend.tensor_guard import Comparison, TensorGuard, compare_in_python, comparison  # noqa: E402

COMPARISONS: dict[str, Callable[[], Comparison]] = {"native": comparison, "python": lambda: compare_in_python}


@pytest.fixture(params=COMPARISONS)
def compare(request: Any) -> Comparison:
    return COMPARISONS[str(request.param)]()


class Weights(nn.Module):  # type: ignore[misc]
    """Three parameters, and a buffer that was made in inference mode. ``memory`` is what another one lies in."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = bytearray(16)
        self.linear, self.scale = nn.Linear(4, 4), nn.Parameter(torch.frombuffer(self.memory, dtype=torch.float32))
        with torch.inference_mode():
            self.register_buffer("mean", torch.zeros(4))

    def given(self) -> list[Any]:
        """All tensors, with something before and between them."""
        return [1, self.linear.weight, None, self.linear.bias, self.scale, self.mean]


POSITIONS = (1, 3, 4, 5)


def in_place(weights: Weights) -> None:
    with torch.no_grad():
        weights.linear.bias.mul_(2)


def through_a_view(weights: Weights) -> None:
    weights.linear.weight.detach()[1:].fill_(0)


def all_at_once(weights: Weights) -> None:
    torch._foreach_zero_([p.detach() for p in weights.parameters()])


def another_object(weights: Weights) -> None:
    weights.scale = nn.Parameter(weights.scale.detach())


def other_data(weights: Weights) -> None:
    weights.linear.weight.data = torch.ones(4, 4)


def other_data_at_the_same_address(weights: Weights) -> None:
    weights.scale.data = torch.ones(4)
    weights.memory[:] = bytes(range(16))
    weights.scale.data = torch.frombuffer(weights.memory, dtype=torch.float32)


def other_data_in_inference_mode(weights: Weights) -> None:
    with torch.inference_mode():
        weights.linear.weight.data = torch.ones(4, 4)


def other_data_of_inference_mode(weights: Weights) -> None:
    weights.mean.data = torch.ones(4)


def exchanged(weights: Weights) -> None:
    torch.utils.swap_tensors(weights.scale, nn.Parameter(torch.ones(4)))


def exchanged_with_each_other(weights: Weights) -> None:
    torch.utils.swap_tensors(weights.linear.bias, weights.scale)


def another_storage(weights: Weights) -> None:
    weights.linear.bias.detach().set_(torch.ones(4))
    weights.linear.bias.data.set_(torch.ones(4))


def shared_memory(weights: Weights) -> None:
    weights.share_memory()


def another_dtype(weights: Weights) -> None:
    weights.double()


def loaded(weights: Weights) -> None:
    weights.load_state_dict({name: torch.ones_like(t) for name, t in weights.named_parameters()}, strict=False)


def loaded_by_assignment(weights: Weights) -> None:
    weights.load_state_dict({name: torch.ones_like(t) for name, t in weights.state_dict().items()}, assign=True)


def loaded_by_exchange(weights: Weights) -> None:
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        loaded(weights)
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)


def initialised(weights: Weights) -> None:
    nn.init.ones_(weights.linear.weight)


def step_of(kind: Any, **settings: Any) -> Callable[[Weights], None]:
    def step(weights: Weights) -> None:
        for p in weights.parameters():
            p.grad = torch.ones_like(p)
        kind(weights.parameters(), lr=0.1, **settings).step()

    return step


CHANGES: dict[str, Callable[[Weights], None]] = {
    f.__name__: f
    for f in (
        in_place, through_a_view, all_at_once, another_object, other_data, other_data_at_the_same_address,
        other_data_in_inference_mode, other_data_of_inference_mode, exchanged, exchanged_with_each_other,
        another_storage, shared_memory, another_dtype, loaded, loaded_by_assignment, loaded_by_exchange, initialised,
    )
} | {
    "SGD": step_of(torch.optim.SGD),
    "Adam": step_of(torch.optim.Adam),
    "Adam, all at once": step_of(torch.optim.Adam, foreach=True),
    "fused SGD": step_of(torch.optim.SGD, fused=True),
    "fused Adam": step_of(torch.optim.Adam, fused=True),
    "fused AdamW": step_of(torch.optim.AdamW, fused=True),
    "fused Adagrad": step_of(torch.optim.Adagrad, fused=True),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_changes_are_noticed(change: str, compare: Comparison) -> None:
    torch.manual_seed(0)
    weights = Weights()
    guard = TensorGuard([weights.given()[n] for n in POSITIONS], POSITIONS, compare)
    assert guard(weights.given()) and guard(weights.given())
    CHANGES[change](weights)
    assert not guard(weights.given())
    again = TensorGuard([weights.given()[n] for n in POSITIONS], POSITIONS, compare)
    assert again(weights.given())


def test_what_changes_nothing_is_none(compare: Comparison) -> None:
    weights, other = Weights(), nn.Linear(4, 4)
    guard = TensorGuard([weights.given()[n] for n in POSITIONS], POSITIONS, compare)
    step_of(torch.optim.Adam, fused=True)(other)
    weights.requires_grad_(False).eval()
    weights.linear(torch.ones(2, 4)).sum()
    weights.to(torch.float32)
    assert guard(weights.given())
    given = weights.given()
    given[0], given[2] = None, torch.ones(3)
    assert guard(given)


def test_a_guard_holds_no_memory_that_its_tensors_have_left(compare: Comparison) -> None:
    weight = nn.Parameter(torch.ones(4))
    guard = TensorGuard([weight], (0,), compare)
    memory = weakref.ref(weight.untyped_storage())
    assert memory() is not None
    weight.data = torch.ones(4)
    assert memory() is None and not guard([weight])


def test_no_tensors_never_change_and_a_list_that_is_too_short_is_an_error(compare: Comparison) -> None:
    assert TensorGuard([], (), compare)([])
    guard = TensorGuard([torch.ones(2), torch.ones(2)], (0, 2), compare)
    with pytest.raises(IndexError):
        guard(list(guard._tensors))


def test_this_torch_has_what_the_native_comparison_needs() -> None:
    assert comparison() is not compare_in_python
