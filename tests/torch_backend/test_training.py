"""Training by ``torch.compile(model, backend="tilewright")``: gradients, optimizers, and what stays with eager."""

import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from tests.torch_backend.models import check, compiled, double, latest, wide  # noqa: E402
from tilewright.core.errors import InvalidParameter  # noqa: E402
from tilewright.torch_backend import backend, training  # noqa: E402
from tilewright.torch_backend.options import Options  # noqa: E402
from tilewright.torch_backend.verification import compare  # noqa: E402


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def perceptron(width: int = 48) -> nn.Module:
    return nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 10))


def gradients(model: Any, run: Any, *inputs: Any) -> list[Any]:
    """The output, and the gradients of the inputs and of the weights for a fixed weighting of the output."""
    given = [x.detach().clone().requires_grad_(x.is_floating_point()) for x in inputs]
    model.zero_grad()
    y = run(*given)
    (y * torch.linspace(0.5, 1.5, y.numel(), dtype=y.dtype).view(y.shape)).sum().backward()
    return [y.detach(), *(x.grad for x in given if x.requires_grad), *(p.grad.clone() for p in model.parameters())]


def check_gradients(model: Any, run: Any, *inputs: Any) -> None:
    """Against float64, at most twice the error of eager, by the rule of verification."""
    ours = gradients(model, run, *inputs)
    eager = gradients(model, model, *inputs)
    truth_model = double(model)
    truth = gradients(truth_model, truth_model, *(wide(x) for x in inputs))
    found = compare(ours, eager, truth)
    assert found is None, found


def latest_number() -> int:
    """The number of the graph that was compiled last, -1 before the first that is alive."""
    return max((shape.number for graph in backend._graphs for shape in graph.shapes()), default=-1)


def test_gradients_of_large_products_come_from_kernels() -> None:
    model = nn.Sequential(nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 64))
    check_gradients(model, compiled(model), torch.randn(256, 512))
    status = latest()
    assert (status.state, status.foreign) == ("ready", ()) and status.kernels >= 4


def test_forward_and_backward_graphs_are_compared_with_eager() -> None:
    model, x = perceptron(), torch.randn(16, 48)
    run = compiled(model, verify="first", training="always")
    for _ in range(2):
        check_gradients(model, run, x)
    assert latest().state == "ready" and not latest().reports


def test_an_optimizer_changes_weights_that_training_and_inference_read() -> None:
    model = perceptron()
    other = copy.deepcopy(model)
    run = compiled(model, training="always")
    ours, eager = (torch.optim.SGD(m.parameters(), 0.05, momentum=0.9) for m in (model, other))
    for step in range(3):
        x = torch.randn(16, 48)
        for optimizer, forward in ((ours, run), (eager, other)):
            optimizer.zero_grad()
            forward(x).square().mean().backward()
            optimizer.step()
        if step != 1:
            check(model, run, x)  # without gradients: another program, with packed weights
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_other_batches_and_a_transformer_block() -> None:
    model = perceptron()
    run = compiled(model, training="always")
    for batch in (8, 6):
        check_gradients(model, run, torch.randn(batch, 48))
    block = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
    check_gradients(block, compiled(block, training="always"), torch.randn(2, 6, 32))


def test_a_model_with_dropout_draws_what_eager_draws_and_stays_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "LEAST_FLOPS", 0.0)
    model, x = nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.5), nn.Linear(16, 16)), torch.ones(8, 16)
    for choice in ("auto", "always"):
        before = latest_number()
        run = compiled(model, training=choice)
        torch.manual_seed(3)
        ours = gradients(model, run, x)
        torch.manual_seed(3)
        torch.testing.assert_close(ours, gradients(model, model, x))
        assert (latest_number() > before) is (choice == "always")


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1)), (8, 16)),
        (nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU()), (4, 3, 32, 32)),
    ],
)
def test_small_models_and_convolutions_train_as_eager_does(model: Any, shape: tuple[int, ...]) -> None:
    run, before = compiled(model), latest_number()
    x = torch.randn(shape)
    ours = gradients(model, run, x)
    torch.testing.assert_close(ours, gradients(model, model, x))
    assert latest_number() <= before


@pytest.mark.parametrize("choice", ["always", "never"])
def test_the_option_decides_for_any_model(choice: str) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.GELU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64, 7))
    run = compiled(model, training=choice)
    check_gradients(model, run, torch.randn(2, 3, 8, 8))
    assert choice == "never" or latest().state == "ready"


def test_a_wrong_option_is_refused() -> None:
    with pytest.raises(InvalidParameter, match="training is 'yes'; allowed: auto, always, never"):
        Options.of(None, {"training": "yes"})
