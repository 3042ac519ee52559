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
from tilewright.importers.fx import import_fx  # noqa: E402
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
    "vit": (language.ViTBlock, [(2, 128, 256)]),
    "bert": (language.BertAttention, [(2, 128, 256), (2, 1, 1, 128)]),
    "llama": (language.LlamaBlock, [(1, 128, 256), (128, 64), (128, 64)]),
}


def imported(model: Any, *shapes: tuple[int, ...]) -> Graph:
    """The graph of ``model`` in float16, whose weights are constants."""
    inputs = tuple(torch.empty(shape, dtype=torch.float16) for shape in shapes)
    exported = torch.export.export(model.eval().half(), inputs).run_decompositions(decompositions())
    signature = exported.graph_signature
    weights = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    placeholders = [n.name for n in exported.graph.nodes if n.op == "placeholder"]
    return import_fx(exported.graph_module, [n for n, name in enumerate(placeholders) if name in weights]).graph


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
