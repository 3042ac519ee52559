"""Which sketch takes each kernel of a model on a Hopper GPU."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.golden import check_golden  # noqa: E402
from tests.importers import language_blocks as language  # noqa: E402
from tests.importers import vision_blocks as vision  # noqa: E402
from tilewright.core.target import Target  # noqa: E402
from tilewright.graph.graph import Graph  # noqa: E402
from tilewright.graph.program import Program, compile_program  # noqa: E402
from tilewright.importers.fx import TorchPrecisions, import_fx  # noqa: E402
from tilewright.schedule.defaults import has_class  # noqa: E402
from tilewright.schedule.sketches import sketches_for  # noqa: E402
from tilewright.torch_backend.backend import decompositions  # noqa: E402

SM90A = Target("cuda", "sm_90a", (), 132, 16)

BLOCKS: dict[str, tuple[Any, list[tuple[int, ...]]]] = {
    "resnet": (vision.ResNet, [(2, 3, 64, 64)]),
    "mobilenet": (lambda: vision.InvertedResidual(32), [(2, 32, 28, 28)]),
    "unet": (lambda: vision.ResidualBlock(64, 128), [(2, 64, 32, 32), (2, 128)]),
    "convnext": (lambda: torch.nn.Sequential(vision.ConvNeXtBlock(96), vision.ConvNeXtBlock(96)), [(2, 96, 28, 28)]),
    "decoder": (vision.Decoder, [(2, 64, 16, 16), (2, 32, 32, 32)]),
    "heads": (vision.Heads, [(2, 64, 32, 32)]),
    "vit": (language.ViTBlock, [(2, 128, 256)]),
    "bert": (language.BertAttention, [(2, 128, 256), (2, 1, 1, 128)]),
    "llama": (language.LlamaBlock, [(1, 128, 256), (128, 64), (128, 64)]),
}


CONVOLUTIONS: dict[str, tuple[Any, list[tuple[int, ...]]]] = {
    "resnet_float32": (vision.ResNet, [(2, 3, 64, 64)]),
    "mobilenet_float32": BLOCKS["mobilenet"],
    "convolutions_float32": (vision.Convolutions, [(2, 32, 16, 16), (2, 64, 16, 16)]),
    "line_float32": (lambda: torch.nn.Conv1d(64, 96, 5, padding=2), [(4, 64, 100)]),
    "volume_float32": (lambda: torch.nn.Conv3d(16, 32, 3, padding=1), [(2, 16, 8, 16, 16)]),
}


def imported(
    model: Any, *shapes: tuple[int, ...], dtype: Any = torch.float16, precisions: TorchPrecisions | None = None
) -> Graph:
    """The graph of ``model``, whose weights are constants."""
    inputs = tuple(torch.empty(shape, dtype=dtype) for shape in shapes)
    exported = torch.export.export(model.eval().to(dtype), inputs).run_decompositions(decompositions(composite=True))
    signature = exported.graph_signature
    weights = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    placeholders = [n.name for n in exported.graph.nodes if n.op == "placeholder"]
    static = [n for n, name in enumerate(placeholders) if name in weights]
    return import_fx(exported.graph_module, static, precisions=precisions).graph


def kernels(program: Program) -> str:
    """The kernels of a program: sketch, result, operators."""
    lines = []
    for call in program.kernels:
        names = ", ".join(s.name for s in sketches_for(call.workload, SM90A))
        operators = " ".join(program.graph.producers[n].op for n in call.nodes)
        lines.append(f"{names:<26} {program.graph.values[call.writes[0]].type!s:<28} {operators}\n")
    return "".join(lines)


@pytest.mark.parametrize("name", BLOCKS)
def test_the_passes_for_gpus_give_kernels_a_class(name: str) -> None:
    make, shapes = BLOCKS[name]
    graph = imported(make(), *shapes)
    plain, ours = (compile_program(graph, lambda w: has_class(w, SM90A), gpu=gpu) for gpu in (False, True))
    check_golden(f"importers/golden/{name}.txt", f"{kernels(plain)}\nwith the passes for GPUs\n{kernels(ours)}")


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_float32_convolutions_have_a_class_where_torch_lets_them_round(name: str) -> None:
    """torch's defaults: convolutions may round to TF32, products may not."""
    make, shapes = CONVOLUTIONS[name]
    graph = imported(make(), *shapes, dtype=torch.float32, precisions=TorchPrecisions(convolutions="tf32"))
    program = compile_program(graph, lambda w: has_class(w, SM90A), gpu=True)
    convolutions = [c for c in program.kernels if any(program.graph.producers[n].op == "convolution" for n in c.nodes)]
    assert all(c.workload.precision == "tf32" and has_class(c.workload, SM90A) for c in convolutions)
    check_golden(f"importers/golden/{name}.txt", kernels(program))


def test_float32_convolutions_stay_exact_where_torch_does_not_let_them_round() -> None:
    graph = imported(torch.nn.Conv2d(64, 64, 3, padding=1), (2, 64, 16, 16), dtype=torch.float32)
    program = compile_program(graph, lambda w: has_class(w, SM90A), gpu=True)
    (call,) = (c for c in program.kernels if any(program.graph.producers[n].op == "convolution" for n in c.nodes))
    assert call.workload.precision == "ieee" and not has_class(call.workload, SM90A)


def _normalized(x: Any) -> Any:
    x = x.float()
    return (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)).half()


def _halves_turned(x: Any, c: Any, s: Any) -> Any:
    half = x.shape[-1] // 2
    return x * c + torch.cat((-x[..., half:], x[..., :half]), -1) * s


def _halves_joined(x: Any, c: Any, s: Any) -> Any:
    a, b = x.chunk(2, -1)
    return torch.cat((a * c - b * s, b * c + a * s), -1)


def _pairs_stacked(x: Any, c: Any, s: Any) -> Any:
    a, b = x[..., ::2], x[..., 1::2]
    return torch.stack((a * c - b * s, a * s + b * c), -1).flatten(-2)


ROTARY: dict[str, tuple[Any, int]] = {
    "halves": (lambda x, c, s: _halves_turned(_normalized(x), c, s), 128),
    "heads first": (lambda x, c, s: _halves_turned(_normalized(x).transpose(0, 1), c[:, 0], s[:, 0]), 128),
    "halves that are joined": (lambda x, c, s: _halves_joined(_normalized(x), c, s), 64),
    "half of the columns": (
        lambda x, c, s: torch.cat((_halves_turned((y := _normalized(x))[..., :64], c, s), y[..., 64:]), -1),
        64,
    ),
    "pairs": (lambda x, c, s: _pairs_stacked(_normalized(x), c, s), 64),
    "the heads of keys": (lambda x, c, s: _halves_turned(_normalized(x[:, 6:]), c, s), 128),
    "lengths": (lambda x, c, s: _halves_turned(torch.nn.functional.normalize(x, dim=-1), c, s), 128),
}


@pytest.mark.parametrize("name", ROTARY)
def test_a_norm_and_its_rotary_embedding_are_one_kernel_of_rows(name: str) -> None:
    function, columns = ROTARY[name]

    class Rotary(torch.nn.Module):  # type: ignore[misc,name-defined]
        def forward(self, *tensors: Any) -> Any:
            return function(*tensors)

    graph = imported(Rotary(), (256, 8, 128), (256, 1, columns), (256, 1, columns))
    (call,) = compile_program(graph, lambda w: has_class(w, SM90A), gpu=True).kernels
    assert sketches_for(call.workload, SM90A)[0].name == "cuda_rowwise"


def test_a_loss_over_classes_of_every_pixel_has_kernels() -> None:
    """Its weights are picked for each pixel, and its sums have fewer dimensions than what they are summed of."""

    class Loss(torch.nn.Module):  # type: ignore[misc,name-defined]
        def forward(self, logits: Any, classes: Any) -> Any:
            return torch.nn.functional.cross_entropy(logits, classes)

    given = (torch.empty(4, 10, 16, 16), torch.empty(4, 16, 16, dtype=torch.int64))
    exported = torch.export.export(Loss(), given).run_decompositions(decompositions(composite=True))
    model = import_fx(exported.graph_module)
    program = compile_program(model.graph, lambda w: has_class(w, SM90A), gpu=True)
    assert not model.foreign and all(has_class(c.workload, SM90A) for c in program.kernels)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: (x[:, None] - y[None]).abs().sum(-1),
        lambda x, y: ((x[:, None] - y[None]) ** 2).sum(-1).sqrt(),
        lambda x, y: (x[:, :, None] + y.T[None]).amin(1),
    ],
    ids=["p = 1", "p = 2", "min-plus"],
)
def test_distances_of_all_pairs_are_not_stored_for_each_coordinate(function: Any, dtype: str) -> None:
    given = tuple(torch.empty(rows, 64, dtype=getattr(torch, dtype)) for rows in (100, 50))
    program = _program_of(function, *given)
    (call,) = program.kernels
    wanted = {"float32": "cuda_gemm_simt", "float16": "cuda_pairwise"}[dtype]
    assert [s.name for s in sketches_for(call.workload, SM90A)] == [wanted]


@pytest.mark.parametrize("order", [1.0, 3.0, float("inf")])
def test_many_distances_are_a_kernel_of_a_class(order: float) -> None:
    program = _program_of(lambda x, y: torch.cdist(x, y, order), torch.empty(2048, 64), torch.empty(1024, 64))
    assert [s.name for c in program.kernels for s in sketches_for(c.workload, SM90A)] == ["cuda_gemm_simt"]


def _program_of(function: Any, *given: Any) -> Program:
    class Model(torch.nn.Module):  # type: ignore[misc,name-defined]
        def forward(self, *tensors: Any) -> Any:
            return function(*tensors)

    exported = torch.export.export(Model(), given).run_decompositions(decompositions(composite=True))
    model = import_fx(exported.graph_module)
    assert not model.foreign
    return compile_program(model.graph, lambda w: has_class(w, SM90A), gpu=True)
