"""Whole models by ``torch.compile(model, backend="tilewright")`` on the CPU, against eager in float64."""

import math
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from tests.torch_backend.models import check, check_model, compiled, latest, newest_shape  # noqa: E402
from tilewright.torch_backend.tensors import strided_copy  # noqa: E402


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


class Residual(nn.Module):  # type: ignore[misc]
    """Two convolutions with batch norm, and what they are given."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels), nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels),
        )  # fmt: skip

    def forward(self, x: Any) -> Any:
        return torch.relu(self.body(x) + x)


def cnn() -> nn.Module:
    net = nn.Sequential(
        nn.Conv2d(3, 32, 7, 2, 3, bias=False), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(3, 2, 1), Residual(32),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10),
    )  # fmt: skip
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.uniform_(-0.5, 0.5)
            module.running_var.uniform_(0.5, 2.0)
    return net.eval()


def mlp(width: int = 64) -> nn.Module:
    return nn.Sequential(nn.Linear(width, 128), nn.GELU(), nn.Linear(128, 128), nn.SiLU(), nn.Linear(128, 10)).eval()


def block() -> nn.Module:
    return nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, norm_first=True).eval()


def test_a_convolutional_network_is_all_kernels() -> None:
    status = check_model(cnn(), torch.randn(2, 3, 48, 48))
    assert status.state == "ready" and not status.foreign and status.class_kernels >= 2


def test_a_multilayer_perceptron_is_one_kernel_a_layer() -> None:
    status = check_model(mlp(), torch.randn(32, 64))
    assert (status.state, status.kernels, status.foreign) == ("ready", 3, ())


def test_a_transformer_block_is_all_kernels() -> None:
    status = check_model(block(), torch.randn(2, 16, 64))
    assert status.state == "ready" and not status.foreign


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype: Any) -> None:
    assert check_model(mlp().to(dtype), torch.randn(16, 64, dtype=dtype)).state == "ready"


def test_first_and_later_calls_are_right_while_kernels_are_built() -> None:
    model, x = mlp(), torch.randn(8, 64)
    run = torch.compile(model, backend="tilewright") if _registered() else compiled(model, wait=False)
    check(model, run, x)
    check(model, run, x)


def _registered() -> bool:
    return "tilewright" in torch._dynamo.list_backends(exclude_tags=())


@pytest.mark.parametrize(
    ("name", "inputs"),
    [
        ("transposed", lambda x: x.t().contiguous().t()),
        ("strided", lambda x: x.repeat(1, 2)[:, ::2]),
        ("offset", lambda x: torch.cat([x.reshape(-1)[:1], x.reshape(-1)])[1:].view(x.shape)),
        ("expanded", lambda x: x[:1].expand(x.shape)),
        ("empty", lambda x: x[:0]),
    ],
)
def test_inputs_of_any_layout(name: str, inputs: Any) -> None:
    check_model(mlp(), inputs(torch.randn(32, 64)))


def test_channels_last_comes_back_as_channels_last() -> None:
    x = torch.randn(2, 8, 12, 12).to(memory_format=torch.channels_last)
    assert check_model(nn.Sequential(nn.Conv2d(8, 16, 3), nn.ReLU()).eval(), x).state == "ready"


def test_one_tensor_given_twice_and_given_back() -> None:
    def f(x: Any, y: Any) -> Any:
        return x + y, x, y.view(-1), (x * 2).t()

    x = torch.randn(4, 5)
    check_model(f, x, x)


def test_weights_that_change() -> None:
    model, x = mlp(), torch.randn(8, 64)
    run = compiled(model)
    check(model, run, x)
    with torch.no_grad():
        model[0].weight.mul_(2.0)
        check(model, run, x)
        model[2].weight = nn.Parameter(torch.randn(128, 128))
        check(model, run, x)
        model.load_state_dict({k: v + 0.5 for k, v in model.state_dict().items()})
        check(model, run, x)


def test_weights_that_move() -> None:
    """To memory of other processes, to where another one was, to another dtype, and away before others come."""
    model, x = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64)).eval(), torch.randn(8, 64)
    run, first, last = compiled(model), model[0], model[2]
    check(model, run, x)
    model.share_memory()
    check(model, run, x)
    first.weight, last.weight = last.weight, first.weight
    check(model, run, x)
    first.weight.data, last.weight.data = last.weight.data, first.weight.data
    check(model, run, x)
    for _ in range(3):  # an allocator likes to give the same address again
        first.weight = None
        first.weight = nn.Parameter(torch.randn(64, 64))
        check(model, run, x)
    first.weight = nn.Parameter(torch.randn(64, 128)[:, ::2])
    check(model, run, x)
    check(model.double(), run, x.double())
    assert latest().state == "ready"


def test_folded_weights_follow_each_change() -> None:
    """Their dimensions have another order in the program."""
    model = nn.Sequential(nn.Conv2d(4, 8, 3), nn.BatchNorm2d(8), nn.ReLU()).eval().to(memory_format=torch.channels_last)
    x, run = torch.randn(2, 4, 8, 8).to(memory_format=torch.channels_last), compiled(model)
    check(model, run, x)
    model(x).square().sum().backward()
    torch.optim.Adam(model.parameters(), 0.1, fused=True).step()  # torch does not count this as a change
    check(model, run, x)
    for _ in range(2):
        model[0].weight.data = 2 * model[0].weight.data
        model[0].weight.data = 0.7 * model[0].weight.data  # it may lie where it lay in the last call
        check(model, run, x)
    model[1].running_mean.add_(1)
    check(model, run, x)
    assert latest().state == "ready" and not latest().swaps


def test_weights_that_layers_share() -> None:
    class Tied(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.words, self.out = nn.Embedding(40, 16), nn.Linear(16, 40)
            self.out.weight = self.words.weight

        def forward(self, tokens: Any) -> Any:
            return self.out(torch.tanh(self.words(tokens)))

    model, tokens = Tied().eval(), torch.randint(0, 40, (3, 7))
    run = compiled(model)
    check(model, run, tokens)
    with torch.no_grad():
        model.words.weight.mul_(3.0)
    check(model, run, tokens)
    model.out.weight = nn.Parameter(torch.randn(40, 16))  # now each has its own
    check(model, run, tokens)
    assert latest().state == "ready"


@pytest.mark.parametrize(
    "aliases",
    [
        lambda x: (x, x[:, 1:]),
        lambda x: (x[:, :-1], x[:, 1:]),
        lambda x: (x, x.t()),
        lambda x: (x.view(-1), x),
    ],
)
def test_inputs_that_share_memory_and_are_overwritten(aliases: Any) -> None:
    def f(x: Any, y: Any) -> Any:
        z = torch.softmax(y, -1)
        x.mul_(2)
        return z + y.sum(), x.exp()

    run = compiled(f)
    for _ in range(2):
        ours = torch.randn(9, 9)
        eager = ours.clone()
        with torch.no_grad():
            found, expected = run(*aliases(ours)), f(*aliases(eager))
        for one, other in zip((*found, ours), (*expected, eager), strict=True):
            torch.testing.assert_close(one, other)


def test_results_that_are_parts_of_another_lie_in_its_memory() -> None:
    """Callers may overwrite either, as with eager; windows and expanded results lie there too."""

    def f(x: Any) -> Any:
        y = torch.tanh(x)
        return y[1:], y, y.t()[:, ::2], y.view(-1), y.expand(2, 3, 4), y.unfold(1, 2, 1)

    run, x = compiled(f), torch.randn(3, 4)
    for n in range(6):
        ours, eager = check(f, run, x), f(x)
        ours[n].select(0, 0).fill_(7.0)
        eager[n].select(0, 0).fill_(7.0)
        for one, other in zip(ours, eager, strict=True):
            torch.testing.assert_close(one, other)


def test_results_that_show_elements_more_than_once() -> None:
    def f(x: Any) -> Any:
        y, z = torch.tanh(x), torch.exp(x)
        return y.expand(2, 3, 4), z.unfold(1, 2, 1)

    run, x = compiled(f), torch.randn(3, 4)
    check(f, run, x)
    check(f, run, x)
    assert latest().state == "ready"


@pytest.mark.parametrize(
    ("shape", "strides"),
    [((3, 4), (1, 3)), ((2, 3, 4), (0, 4, 1)), ((3, 3, 2), (4, 1, 1)), ((3, 4), (8, 2)), ((4, 2, 3), (0, 0, 1)),
     ((5, 3), (1, 1)), ((1, 4), (99, 1)), ((3, 2, 4), (1, 12, 3))],
)  # fmt: skip
def test_copies_have_any_strides(shape: tuple[int, ...], strides: tuple[int, ...]) -> None:
    given = torch.randn(200).as_strided(shape, strides)
    found = strided_copy(given.contiguous(), strides)
    assert torch.equal(found, given) and found.stride() == strides


def test_two_instances_and_equal_blocks_share_a_program() -> None:
    x = torch.randn(8, 64)
    one, two = nn.Linear(64, 64).eval(), nn.Linear(64, 64).eval()
    first = compiled(one)
    second = torch.compile(two, backend=_backend(), options={"wait": True, "verify": "never"})
    for _ in range(2):
        check(nn.Sequential(one, two), lambda a: second(first(a)), x)


def _backend() -> Any:
    from tilewright.torch_backend.backend import tilewright

    return tilewright


def test_a_graph_break_sees_the_strides_of_eager() -> None:
    class Broken(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(16, 16)

        def forward(self, x: Any) -> Any:
            y = self.linear(x).t() * 2
            torch._dynamo.graph_break()
            return y.t().view(-1) + 1 if y.stride() == (1, 16) else y.reshape(-1)

    check_model(Broken().eval(), torch.randn(4, 16))


def test_several_batch_sizes() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10)
    ).eval()
    run = compiled(model)
    for batch in (2, 3, 5, 2, 3, 1):
        check(model, run, torch.randn(batch, 3, 16, 16))
    assert latest().state == "ready"


class NormsAndScans(nn.Module):  # type: ignore[misc]
    """Norms by the data at hand, as in training, and scans of their results."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.Sequential(nn.InstanceNorm2d(4, affine=True), nn.GroupNorm(2, 4), nn.BatchNorm2d(4))

    def forward(self, x: Any) -> Any:
        return self.norms(x.roll(1, 3)).cumprod(2) + x.cumsum(1)


def test_norms_of_the_data_at_hand_and_scans_are_kernels() -> None:
    status = check_model(NormsAndScans(), torch.rand(2, 4, 5, 6))
    assert status.state == "ready" and not status.foreign


@pytest.mark.skipif(not hasattr(torch, "_grouped_mm"), reason="this torch has no grouped products")
def test_experts_are_one_kernel_a_product() -> None:
    """Ends of groups are data: the same kernels run for others, and for fewer rows than there is room for."""

    def experts(x: Any, up: Any, down: Any, ends: Any) -> Any:
        hidden = F.silu(torch._grouped_mm(x, up.transpose(1, 2), offs=ends))
        return torch._grouped_mm(hidden, down.transpose(1, 2), offs=ends)

    x = torch.randn(48, 32, dtype=torch.bfloat16)
    up, down = (torch.randn(*shape, dtype=torch.bfloat16) / 8 for shape in ((4, 64, 32), (4, 32, 64)))
    run = compiled(experts)
    for ends in ([10, 10, 30, 48], [1, 2, 3, 48], [0, 20, 21, 40]):
        given = torch.tensor(ends, dtype=torch.int32)
        with torch.no_grad():
            ours, eager = run(x, up, down, given), experts(x, up, down, given)
        torch.testing.assert_close(ours[: ends[-1]], eager[: ends[-1]], rtol=0.05, atol=0.02)
        assert not ours[ends[-1] :].any()
    assert (latest().kernels, latest().foreign) == (2, ())


def test_an_operator_without_a_rule_stays_foreign() -> None:
    def f(x: Any) -> Any:
        values, places = torch.topk(torch.exp(x) * 2, 12)
        return torch.logcumsumexp(values, 1) + 1, places

    status = check_model(f, torch.randn(4, 19))
    assert status.state == "ready" and set(status.foreign) == {"aten.topk.default", "aten.logcumsumexp.default"}


def test_a_cache_is_overwritten_in_place() -> None:
    class Cache(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(4, 6))

        def forward(self, x: Any) -> Any:
            self.seen[1:3] = x * 2
            return self.seen.sum() + self.seen[2]

    model, eager = Cache(), Cache()
    run = compiled(model)
    with torch.no_grad():
        for _ in range(3):
            x = torch.randn(2, 6)
            torch.testing.assert_close(run(x), eager(x))
            torch.testing.assert_close(model.seen, eager.seen)
    assert latest().state == "ready"


def test_batch_norm_in_training_mode_moves_its_statistics() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU()).train()
    eager = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU()).train()
    eager.load_state_dict(model.state_dict())
    run = compiled(model)
    with torch.no_grad():
        for _ in range(3):
            x = torch.randn(4, 3, 9, 9)
            torch.testing.assert_close(run(x), eager(x), rtol=1e-5, atol=1e-5)
    for a, b in zip(model.buffers(), eager.buffers(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_autocast() -> None:
    model, x = mlp(), torch.randn(8, 64)
    run = compiled(model)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        for _ in range(2):
            torch.testing.assert_close(run(x), model(x), rtol=0.05, atol=0.05)


def test_dropout_in_training_draws_what_eager_draws() -> None:
    model, x = nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.5)).train(), torch.randn(8, 16)
    run = compiled(model)
    with torch.no_grad():
        for _ in range(2):
            torch.manual_seed(3)
            ours = run(x)
            torch.manual_seed(3)
            torch.testing.assert_close(ours, model(x))


def attention(q: Any, k: Any, v: Any, causal: bool) -> Any:
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal)


@pytest.mark.parametrize("causal", [False, True])
def test_attention_is_products_and_a_softmax(causal: bool) -> None:
    q, k, v = (torch.randn(2, 4, 16, 32) for _ in range(3))
    status = check_model(lambda q, k, v: attention(q, k, v, causal), q, k, v)
    assert (status.state, status.kernels, status.foreign) == ("ready", 3, ())


MODULES: dict[str, tuple[Any, list[tuple[int, ...]]]] = {
    "group norm": (nn.Sequential(nn.Conv2d(8, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.SiLU()), [(2, 8, 12, 12)]),
    "instance norm": (nn.InstanceNorm2d(8, affine=True), [(2, 8, 12, 12)]),
    "rms norm": (nn.RMSNorm(32), [(4, 7, 32)]),
    "depthwise": (nn.Sequential(nn.Conv2d(16, 16, 3, groups=16), nn.ReLU6(), nn.Hardswish()), [(1, 16, 9, 9)]),
    "transposed convolution": (nn.ConvTranspose2d(4, 6, 3, 2, 1, output_padding=1, groups=2), [(1, 4, 7, 7)]),
    "convolution 1d": (nn.Conv1d(4, 8, 5, stride=2, padding=2), [(2, 4, 33)]),
    "convolution 3d": (nn.Conv3d(2, 4, 3, padding=1), [(1, 2, 6, 6, 6)]),
    "pools": (nn.Sequential(nn.MaxPool2d(3, 2, 1), nn.AvgPool2d(2, ceil_mode=True)), [(1, 4, 29, 29)]),
    "upsampling": (nn.Sequential(nn.Conv2d(4, 4, 1), nn.Upsample(scale_factor=2)), [(1, 4, 8, 8)]),
    "transformer layer": (nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True), [(2, 7, 16)]),
    "transformer layer, norms first": (
        nn.TransformerEncoderLayer(16, 2, 32, 0.0, "gelu", batch_first=True, norm_first=True),
        [(2, 7, 16)],
    ),
    "pools 1d": (nn.Sequential(nn.MaxPool1d(3, 2), nn.AvgPool1d(3, 2, 1)), [(2, 4, 31)]),
}


@pytest.mark.parametrize("name", MODULES)
def test_layers(name: str) -> None:
    model, shapes = MODULES[name]
    status = check_model(model.eval(), *(torch.randn(s) for s in shapes))
    assert status.state == "ready" and not status.foreign


@pytest.mark.parametrize("kind", ("keys", "queries and keys", "both"))
def test_masks_of_fused_transformer_layers(kind: str) -> None:
    """Padding of a batch, what may be seen, and both at once."""
    layer = nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True).eval()
    padding = torch.arange(7) >= torch.tensor([[5], [7]]) if kind != "queries and keys" else None
    later = torch.triu(torch.ones(7, 7, dtype=torch.bool), 1) if kind != "keys" else None
    status = check_model(layer, torch.randn(2, 7, 16), later, padding)
    assert status.state == "ready" and not status.foreign


FUNCTIONS: dict[str, Any] = {
    "softmax": lambda x: F.softmax(x, -1) + F.log_softmax(x, 1),
    "logsumexp": lambda x: torch.logsumexp(x, (1, 2)),
    "activations": lambda x: F.elu(x) + F.selu(x) + F.mish(x) + F.softplus(x) + F.hardsigmoid(x) + F.leaky_relu(x),
    "functions": lambda x: torch.sin(x) + x.exp() * torch.erf(x) + torch.log1p(x.abs()) + torch.expm1(x) + x.round(),
    "reductions": lambda x: (x.sum(1), x.mean((0, 2)), x.amin(1), x.var(1), x.argmax(1), x.norm(dim=1), x.max(dim=1)),
    "truth": lambda x: ((x > 0).any(1), (x > -5).all(), torch.where(x.isnan(), 0.0, x), x.masked_fill(x < 0, -2.0)),
    "joins": lambda x: (torch.cat([x[:, ::2], x.flip(1)], 1), torch.stack([x, x], 1), x.repeat(2, 1, 1)),
    "cuts": lambda x: (x.permute(2, 0, 1).reshape(7, -1)[1:], F.pad(x, (1, 2)), x.chunk(3, 2)[1] * 2, x.tril()),
    "products": lambda x: (x @ x.transpose(1, 2), torch.einsum("bij,bkj->ik", x, x)),
    "types": lambda x: (x.half().float() * 2, x.to(torch.int32) + 1, (x > 0).float()),
}


RESAMPLING: dict[str, Any] = {
    "bilinear": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
    "bilinear-corners": lambda x: F.interpolate(x, (11, 23), mode="bilinear", align_corners=True),
    "bicubic": lambda x: F.interpolate(x, scale_factor=1.5, mode="bicubic"),
    "linear": lambda x: F.interpolate(x[0], 20, mode="linear"),
    "trilinear": lambda x: F.interpolate(x[None], scale_factor=2, mode="trilinear"),
    "grid": lambda x: F.grid_sample(x, torch.tanh(x[:, :2].permute(0, 2, 3, 1)), align_corners=False),
}


@pytest.mark.parametrize("name", RESAMPLING)
def test_resampling_is_written_out(name: str) -> None:
    status = check_model(RESAMPLING[name], torch.randn(2, 3, 8, 12))
    assert status.state == "ready" and not status.foreign


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name: str) -> None:
    assert check_model(FUNCTIONS[name], torch.randn(3, 5, 7)).state == "ready"


class RelativeBias(nn.Module):  # type: ignore[misc]
    """The buckets of T5's relative positions: logarithms whose quotients are whole numbers but for their rounding."""

    def __init__(self) -> None:
        super().__init__()
        self.biases = nn.Embedding(16, 1)

    def forward(self, x: Any) -> Any:
        far = torch.arange(1, x.shape[1] + 1).float()
        places = 8 + (torch.log(far / 8).clamp(min=0) / math.log(16) * 8).long().clamp(max=7)
        return torch.softmax(x + self.biases(places)[:, 0], -1)


def test_steps_of_constants_lie_where_torch_has_them() -> None:
    assert check_model(RelativeBias(), torch.randn(4, 129)).state == "ready"


def test_checks_that_torch_makes_of_results_are_calls_between_kernels() -> None:
    def whitened(x: Any) -> Any:
        factor = torch.linalg.cholesky(x + x.t() + 20 * torch.eye(6, dtype=x.dtype))
        return torch.exp(-torch.linalg.solve(factor, x).abs()), factor.sum()

    status = check_model(whitened, torch.randn(6, 6))
    assert status.state == "ready" and status.kernels >= 2
    assert "aten._linalg_check_errors.default" in status.foreign
    with torch.no_grad(), pytest.raises(RuntimeError, match="positive-definite"):
        compiled(whitened)(torch.full((6, 6), -100.0))


def test_a_check_of_the_model_raises_its_error_and_the_program_stays() -> None:
    def checked(x: Any) -> Any:
        torch._assert_async((x > -9).all(), "too small")
        return torch.tanh(x) * 2

    run, x = compiled(checked, verify="first"), torch.randn(4, 5)
    for _ in range(2):
        with torch.no_grad(), pytest.raises(RuntimeError, match="too small"):
            run(x - 100)
        check(checked, run, x)
    assert latest().state == "ready"


@pytest.mark.parametrize("steps", [32, 70])
def test_a_model_that_joins_many_steps_has_kernels(steps: int) -> None:
    status = check_model(lambda x: torch.stack([x[:, n] * n for n in range(steps)], 1), torch.randn(3, steps))
    assert (status.state, status.foreign) == ("ready", ())


class Cell(nn.Module):  # type: ignore[misc]
    """A recurrent cell, step by step: inputs [b, t, 12] or turned to [t, b, 12] give [b, t, 20] or [t, b, 20], and what
    the last step leaves."""

    def __init__(self, along: int, turned: bool = False) -> None:
        super().__init__()
        self.gates, self.given, self.out = nn.Linear(16, 48), nn.Linear(12, 48), nn.Linear(16, 20)
        self.along, self.turned = along, turned

    def forward(self, x: Any) -> Any:
        steps = (x.flip(self.along) if self.turned else x).unbind(self.along)
        h, found = x.new_zeros(steps[0].shape[0], 16), []
        for given in steps:
            z, r, n = (self.given(given) + self.gates(h)).chunk(3, -1)
            h = torch.tanh(n * r.sigmoid()) * z.sigmoid() + h * 0.5
            found.append(self.out(h))
        return torch.stack(found, self.along), h


@pytest.mark.parametrize(("along", "turned"), [(1, False), (0, True)])
def test_steps_of_a_loop_share_kernels_and_copy_nothing(along: int, turned: bool) -> None:
    """The products with all inputs, and with all states for the results, are one each."""
    steps = 10
    x = torch.randn(steps, 4, 12) if along == 0 else torch.randn(4, steps, 12)
    status = check_model(Cell(along, turned), x)
    program = newest_shape()._bound.program
    assert (status.state, status.foreign) == ("ready", ())
    assert len(program.kernels) <= 2 * steps + 6 and len(program.tasks) <= 10


def test_a_recurrent_layer_that_dynamo_lets_in_is_written_out() -> None:
    """The product with the inputs of all steps is one kernel; each step has two, of the hidden state."""
    steps = 10
    with torch._dynamo.config.patch(allow_rnn=True):
        status = check_model(nn.GRU(12, 16).eval(), torch.randn(steps, 4, 12))
    assert (status.state, status.foreign) == ("ready", ()) and status.kernels <= 2 * steps + 2


def test_what_is_returned_of_an_input_that_changes_is_what_it_was() -> None:
    def run(x: Any, w: Any) -> Any:
        before, turned = x.clone(), x.t().clone()
        x.mul_(2)
        return before, turned, torch.softmax(x @ w, -1)

    ours = compiled(run)
    for _ in range(2):
        x, w = torch.randn(8, 8), torch.randn(8, 8)
        same = x.clone()
        with torch.no_grad():
            found, expected = ours(x, w), run(same, w)
        for one, other in zip((*found, x), (*expected, same), strict=True):
            torch.testing.assert_close(one, other)


def test_what_is_near_0_of_an_elu_is_as_exact_as_torch_has_it() -> None:
    """At most twice the error that torch makes of each magnitude: it would not show in the largest value."""
    x = torch.logspace(-6, 1, 4096).neg()
    with torch.no_grad():
        ours, eager = compiled(F.elu)(x), F.elu(x)
    truth = F.elu(x.double())
    ours, eager = ((y.double() - truth).abs() / truth.abs() for y in (ours, eager))
    for a, b in zip(ours.split(256), eager.split(256), strict=True):
        assert a.max() <= 2 * b.max() + torch.finfo(torch.float32).eps / 4


def test_angles_are_those_of_torch_wherever_a_point_lies() -> None:
    """On axes, on their negative zeros, far away, and nowhere."""
    places = torch.tensor([0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan, 1e-30, -1e30, 3e-39])
    y, x = (t.contiguous() for t in torch.meshgrid(places, places, indexing="ij"))
    status = check_model(torch.atan2, y, x)
    assert not status.foreign
    with torch.no_grad():
        ours, eager = compiled(torch.atan2)(y, x), torch.atan2(y, x)
    torch.testing.assert_close(ours, eager, rtol=3e-7, atol=0.0, equal_nan=True)
    check_model(torch.atan2, torch.randn(50, 40), torch.randn(40))
    check_model(torch.atan2, torch.randint(-5, 5, (50,)), torch.randint(-5, 5, (50,)))
