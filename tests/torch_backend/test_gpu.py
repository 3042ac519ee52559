"""Whole models by ``torch.compile(model, backend="tilewright")`` on an NVIDIA GPU, against eager in float64."""

import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("there is no GPU", allow_module_level=True)

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from tests.torch_backend.models import check, check_model, compiled, latest, newest_shape  # noqa: E402
from tilewright.core.precision import PRECISIONS  # noqa: E402
from tilewright.torch_backend import backend  # noqa: E402


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def on_gpu(*shape: int, dtype: Any = torch.float16) -> Any:
    return torch.randn(shape, device="cuda", dtype=dtype)


def layers(dtype: Any = torch.float16) -> Any:
    made = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 256), nn.LayerNorm(256))
    return made.eval().cuda().to(dtype)


class Attention(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(256, 768), nn.Linear(256, 256)

    def forward(self, x: Any) -> Any:
        q, k, v = (t.view(*x.shape[:2], 4, 64).transpose(1, 2) for t in self.into(x).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(y.transpose(1, 2).reshape(x.shape))


def convolutions() -> Any:
    made = nn.Sequential(
        nn.Conv2d(64, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.Conv2d(64, 128, 3, stride=2, padding=1)
    )
    return made.eval().cuda().half().to(memory_format=torch.channels_last)


def test_float32_convolutions_follow_the_flag_of_cudnn() -> None:
    """The flag may change between calls: dynamo does not guard it."""
    model, x, flags = convolutions().float(), on_gpu(4, 64, 28, 28, dtype=torch.float32), torch.backends.cudnn
    before, run, shapes, error = flags.allow_tf32, compiled(model), [], PRECISIONS["tf32"].factor_error
    try:
        for flags.allow_tf32 in (True, False, True):
            check(model, run, x, factor_error=error)
            check(model, run, x, factor_error=error)
            shapes.append(newest_shape())
    finally:
        flags.allow_tf32 = before
    rounded, exact, again = shapes
    assert rounded.status.kernels > exact.status.kernels and again is exact is not rounded


CHANNELS_FIRST: dict[str, Any] = {
    "one": lambda: nn.Conv2d(64, 96, 3, padding=1),
    "transposed": lambda: nn.Sequential(nn.ConvTranspose2d(64, 32, 3, 2, 1, output_padding=1), nn.ReLU()),
    "transposed, odd": lambda: nn.Sequential(nn.ConvTranspose2d(64, 32, 3, 2, 1), nn.Tanh()),
    "two transposed": lambda: nn.Sequential(nn.ConvTranspose2d(64, 32, 4, 2, 1), nn.ConvTranspose2d(32, 16, 2, 2)),
    "statistics": lambda: nn.Sequential(nn.Conv2d(64, 32, 3), nn.BatchNorm2d(32), nn.ReLU()),
}


@pytest.mark.parametrize("case", CHANNELS_FIRST)
def test_float32_convolutions_give_channels_first(case: str) -> None:
    """The kernel of the convolution stores NCHW; its precision is TF32."""
    model, x = CHANNELS_FIRST[case]().cuda(), on_gpu(4, 64, 27, 27, dtype=torch.float32)
    check(model, compiled(model), x, factor_error=PRECISIONS["tf32"].factor_error)
    assert latest().state == "ready" and latest().class_kernels == latest().kernels


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_layers_run_in_kernels_of_ours(dtype: Any) -> None:
    status = check_model(layers(dtype), on_gpu(64, 256, dtype=dtype))
    assert status.state == "ready" and status.kernels > 0 and not status.reports


def test_float32_follows_the_flag_for_tf32() -> None:
    flags = torch.backends.cuda.matmul
    before, errors = flags.allow_tf32, []
    x, model = on_gpu(256, 256, dtype=torch.float32), layers(torch.float32)
    with torch.no_grad():
        exact = copy.deepcopy(model).double()(x.double())
    try:
        for flags.allow_tf32 in (False, True):
            run = compiled(model)
            check(model, run, x)
            (y,) = check(model, run, x)
            assert latest().state == "ready" and latest().class_kernels == latest().kernels > 1
            errors.append(float((y - exact).abs().max()))
    finally:
        flags.allow_tf32 = before
    assert errors[0] < errors[1] / 10  # products that may not round run in kernels of ours, too


@pytest.mark.parametrize("shape", [(2, 128, 256), (1, 77, 256)])
def test_attention_is_right(shape: Any) -> None:
    status = check_model(Attention().eval().cuda().half(), on_gpu(*shape))
    assert status.state == "ready" and not status.reports


@pytest.mark.parametrize("channels_last", [False, True])
def test_convolutions_are_right_in_both_layouts(channels_last: bool) -> None:
    x = on_gpu(4, 64, 28, 28)
    x = x.to(memory_format=torch.channels_last) if channels_last else x
    status = check_model(convolutions(), x)
    assert status.state == "ready" and status.kernels > 0 and not status.reports


def grouped() -> Any:
    """Two layers of groups with few channels, whose filters kernels write to the diagonal of a matrix first."""
    made = [nn.Conv2d(64, 64, 3, padding=1, groups=8) for _ in range(2)]
    return nn.Sequential(made[0], nn.ReLU(), made[1]).eval().cuda().half().to(memory_format=torch.channels_last)


def images() -> Any:
    return on_gpu(2, 64, 16, 16).to(memory_format=torch.channels_last)


MODELS: dict[str, Any] = {"layers": (layers, lambda: on_gpu(64, 256)), "packed filters": (grouped, images)}


def test_filters_are_packed_once_for_all_streams() -> None:
    model = grouped()
    run = compiled(model)
    check(model, run, images())
    check(model, run, images())
    program = newest_shape()._bound
    assert program._is_packed and all(program._packed.values()) and len(program._packed) == 2


@pytest.mark.parametrize("case", MODELS)
def test_two_streams_and_a_capture_of_the_caller_do_not_disturb_each_other(case: str) -> None:
    model, data = MODELS[case][0](), MODELS[case][1]
    run = compiled(model)
    inputs = [data() for _ in range(4)]
    with torch.no_grad():
        expected = [run(x).clone() for x in inputs]
        torch.cuda.synchronize()
        streams = [torch.cuda.Stream() for _ in range(2)]
        found: list[Any] = []
        for _ in range(20):
            for n, x in enumerate(inputs):
                with torch.cuda.stream(streams[n % 2]):
                    found.append((n, run(x)))
        torch.cuda.synchronize()
        for n, y in found:
            assert torch.equal(y, expected[n])
        graph = torch.cuda.CUDAGraph()
        static = inputs[0].clone()
        with torch.cuda.graph(graph):
            y = run(static)
        for x, wanted in zip(inputs, expected, strict=True):
            static.copy_(x)
            graph.replay()
            assert torch.equal(y, wanted)


@pytest.mark.parametrize("case", MODELS)
def test_weights_may_change_in_place_or_be_replaced(case: str) -> None:
    model, x = MODELS[case][0](), MODELS[case][1]()
    run = compiled(model)
    check(model, run, x)
    with torch.no_grad():
        model[0].weight.mul_(0.5)
    check(model, run, x)
    model[2].weight = nn.Parameter(torch.randn_like(model[2].weight))
    check(model, run, x)


def test_strided_offset_and_empty_inputs_are_right() -> None:
    def function(x: Any) -> Any:
        return F.softmax(x * 2, -1)

    for x in (on_gpu(64, 64).t(), on_gpu(65 * 64 + 3)[3:-64].view(64, 64), on_gpu(64, 128)[:, ::2], on_gpu(0, 64)):
        torch._dynamo.reset()
        check(function, compiled(function), x)


def test_tensors_of_the_processor_beside_a_gpu_stay_with_torch() -> None:
    def function(x: Any, scale: Any) -> Any:
        return torch.relu(x) * scale, scale + 1

    y = check(function, compiled(function), on_gpu(32, 64, dtype=torch.float32), torch.tensor(2.0))
    assert y[0].device.type == "cuda" and y[1].device.type == "cpu"


def test_kernels_are_exchanged_between_calls() -> None:
    from tilewright.schedule.sketches import sketches_for
    from tilewright.torch_backend.devices import opened

    model = layers()
    x = on_gpu(64, 256)
    run = compiled(model)
    check(model, run, x)
    shape = newest_shape()
    target = opened(x.device).target
    others = {}
    for key in shape._kernels:
        work = shape._bound.program.tasks[key].workload
        space = sketches_for(work, target)[0].space(work, target, limit=16)
        others[key] = space.schedule(len(space) - 1)
    assert shape.swap(others)
    check(model, run, x)
    assert latest().swaps == 1


def test_a_model_that_needs_gradients_runs_as_aten() -> None:
    model = copy.deepcopy(layers()).train()
    before = set(backend._graphs)
    run = compiled(model)
    run(on_gpu(8, 256)).sum().backward()
    assert model[0].weight.grad is not None and set(backend._graphs) <= before


def test_kernels_of_a_range_serve_every_shape_of_it() -> None:
    """Lengths beside those of tiles, below and above the borders of ranges."""
    torch._dynamo.reset()
    model = nn.Sequential(layers(), Attention(), layers()).eval().cuda().half()
    run = torch.compile(model, backend=backend.tilewright, dynamic=True, options={"wait": True})
    for batch, length in [(2, 16), (3, 37), (8, 77), (4, 512), (2, 7), (64, 33)]:
        check(model, run, on_gpu(batch, length, 256))
        assert newest_shape().status.state == "ready"


def test_kernels_of_a_range_are_exchanged_for_its_tuned_schedules() -> None:
    from tilewright.schedule.sketches import sketches_for
    from tilewright.torch_backend.devices import opened

    torch._dynamo.reset()
    model, x = layers(), on_gpu(8, 77, 256)
    run = torch.compile(model, backend=backend.tilewright, dynamic=True, options={"wait": True})
    check(model, run, x)
    shape, target = newest_shape(), opened(x.device).target
    others = {}
    for wide in shape._ranges.values():
        space = sketches_for(wide.workload, target)[0].space(wide.workload, target, limit=16)
        others[wide.key] = space.schedule(len(space) - 1)
    assert others and shape.swap(others)
    check(model, run, x)
    assert shape.status.swaps == 1 and 0 < shape.status.tuned <= shape.status.ranges


def test_a_model_moves_between_devices() -> None:
    """From the processor to a GPU, and on to a second one if there is one."""
    model = nn.Sequential(nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 64)).eval()
    run, x = compiled(model), torch.randn(64, 256)
    for device in ["cpu", *(f"cuda:{n}" for n in range(min(torch.cuda.device_count(), 2))), "cpu"]:
        model.to(device)
        (y,) = check(model, run, x.to(device))
        assert y.device == torch.device(device) and latest().state == "ready"


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there is one GPU")
def test_a_model_on_two_gpus_runs_as_aten() -> None:
    class Split(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(64, 64).to("cuda:0"), nn.Linear(64, 64).to("cuda:1")

        def forward(self, x: Any) -> Any:
            return self.two(torch.relu(self.one(x)).to("cuda:1"))

    before = set(backend._graphs)
    model = Split().eval()
    check(model, compiled(model), on_gpu(8, 64, dtype=torch.float32))
    assert set(backend._graphs) <= before


def test_results_that_share_places_are_right() -> None:
    def function(x: Any) -> Any:
        y, z = torch.tanh(x), torch.exp(x)
        return y, y[1:], y.expand(2, 64, 64), z.unfold(1, 4, 2), z.t().expand(2, 64, 64)

    check_model(function, on_gpu(64, 64))
