"""Models with symbolic shapes: one trace, a program for each shape, answers from the first call on."""

import threading
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from tests.torch_backend.models import check  # noqa: E402
from tilewright.api.app import create_app  # noqa: E402
from tilewright.api.client import Client  # noqa: E402
from tilewright.core.schedule import Schedule  # noqa: E402
from tilewright.core.target import Target  # noqa: E402
from tilewright.graph.program import Program, compile_program  # noqa: E402
from tilewright.importers.fx import import_fx  # noqa: E402
from tilewright.schedule.defaults import has_class  # noqa: E402
from tilewright.service.service import Service  # noqa: E402
from tilewright.service.settings import Settings  # noqa: E402
from tilewright.tests.api.serving import running  # noqa: E402
from tilewright.torch_backend import backend, compiled  # noqa: E402
from tilewright.torch_backend.backend import CompiledGraph, concrete_values  # noqa: E402
from tilewright.torch_backend.schedules import tuned_workloads  # noqa: E402
from tilewright.torch_backend.shared_kernels import (  # noqa: E402
    WantedKernel,
    known_schedule,
    row_ranges,
    symbolic_extents,
)

SM90A = Target("cuda", "sm_90a", (), threads=132, vector_bytes=16)


class CausalBlock(nn.Module):  # type: ignore[misc]
    """A norm, causal attention, and a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(32), nn.Linear(32, 96), nn.Linear(32, 32)

    def forward(self, x: Any) -> Any:
        b, t, d = x.shape
        heads = (y.reshape(b, t, 4, d // 4).transpose(1, 2) for y in self.qkv(self.norm(x)).chunk(3, -1))
        y = nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
        return x + self.out(y.transpose(1, 2).reshape(b, t, d))


class Tokens(nn.Module):  # type: ignore[misc]
    """Embeddings with positions, and numbers that depend on the shape."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places, self.out = nn.Embedding(50, 16), nn.Embedding(64, 16), nn.Linear(16, 50)

    def forward(self, tokens: Any) -> Any:
        t = tokens.shape[1]
        x = self.words(tokens) + self.places(torch.arange(t))
        return self.out(x).log_softmax(-1), x.mean(1), t * 2


def mlp() -> nn.Module:
    return nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8)).eval()


def symbolic(model: Any, **options: Any) -> tuple[Any, list[CompiledGraph]]:
    """The model with symbolic shapes, and the list that its graphs come into."""
    torch._dynamo.reset()
    graphs: list[CompiledGraph] = []

    def traced(module: Any, examples: Any) -> Any:
        before = set(backend._graphs)
        made = backend.tilewright(module, examples, options={"wait": True, "verify": "never", **options})
        graphs.extend(set(backend._graphs) - before)
        return made

    return torch.compile(model, backend=traced, dynamic=True), graphs


@pytest.mark.parametrize(
    ("model", "inputs", "shapes"),
    [
        (mlp, torch.randn, [(3, 16), (9, 16), (4, 16), (3, 16)]),
        (CausalBlock, torch.randn, [(2, 5, 32), (3, 7, 32)]),
        (Tokens, lambda *s: torch.randint(0, 50, s), [(2, 5), (3, 60), (3, 1)]),
    ],
)
def test_one_trace_serves_all_shapes_of_more_than_one(model: Any, inputs: Any, shapes: Any) -> None:
    made = model()
    run, graphs = symbolic(made, programs=2)
    for shape in shapes:
        check(made, run, inputs(*shape))
        assert all(len(graph.shapes()) <= 2 for graph in graphs)
    ones = {tuple(d for d, n in enumerate(shape) if n == 1) for shape in shapes}  # dynamo is exact about 0 and 1
    assert len(graphs) == len(ones)
    assert {s.status.state for graph in graphs for s in graph.shapes()} == {"ready"}


def test_unseen_shapes_are_answered_while_programs_wait_to_be_built() -> None:
    model = mlp()
    run, graphs = symbolic(model, wait=False, programs=3)
    with compiled._building:  # nothing is built meanwhile
        for rows in range(2, 42):
            x = torch.randn(rows, 16)
            with torch.no_grad():
                torch.testing.assert_close(run(x), model(x))
        builders = [t for t in threading.enumerate() if t.name == "tilewright-build"]
        assert len(builders) == 1 and len(graphs) == 1 and len(graphs[0].shapes()) == 3
    builders[0].join()
    assert [s.status.state for s in graphs[0].shapes()] == ["ready"] * 3
    check(model, run, torch.randn(41, 16))


def on_a_gpu(graph: CompiledGraph, b: int, t: int) -> tuple[Program, dict[str, WantedKernel]]:
    """The program of a trace with these extents for a GPU, and the ranges of its workloads."""
    placeholders = [n for n in graph._module.graph.nodes if n.op == "placeholder"]
    values = concrete_values(graph._module, [_concrete(n.meta["val"], b, t) for n in placeholders])
    extents = symbolic_extents(values)
    assert {b, b * t} <= extents
    model = import_fx(graph._module, graph._static, values)
    program = compile_program(model.graph, lambda w: has_class(w, SM90A), gpu=True)
    return program, row_ranges({key: task.workload for key, task in program.tasks.items()}, extents, SM90A)


def test_one_kernel_a_piece_serves_twenty_shapes_on_a_gpu() -> None:
    run, graphs = symbolic(CausalBlock().half())
    with torch.no_grad():
        run(torch.randn(4, 20, 32).half())
    (graph,) = graphs
    wanted: dict[str, set[str]] = {}
    for b, t in [(b, t) for b in (11, 12, 13, 14) for t in (24, 37, 48, 63, 73)]:
        program, ranges = on_a_gpu(graph, b, t)
        for key, call in zip(program.kernel_keys, program.kernels, strict=True):
            ops = " ".join(program.graph.producers[n].op for n in call.nodes)
            wanted.setdefault(ops, set()).add(ranges[key].key if key in ranges else key)
    counts = {ops: len(keys) for ops, keys in wanted.items()}
    attention = [ops for ops in counts if "softmax" in ops]  # its lengths are no rows
    assert [counts[ops] for ops in counts if ops not in attention] == [1, 1, 1]


def layers() -> nn.Module:
    return nn.Sequential(*(m for _ in range(3) for m in (nn.LayerNorm(32), nn.Linear(32, 32)))).eval().half()


def test_shapes_of_one_range_are_one_model_of_a_service(tmp_path: Path) -> None:
    """A job then tunes the range once, whatever shapes come."""
    run, graphs = symbolic(layers())
    with torch.no_grad():
        run(torch.randn(4, 20, 32).half())
    (graph,) = graphs
    settings = Settings(database_url=f"sqlite:///{tmp_path}/t.sqlite3")
    with (
        Service.open(settings) as service,
        running(create_app(service, settings)) as address,
        Client(address) as client,
    ):
        for b, t in [(11, 24), (13, 63), (5, 13)]:
            program, ranges = on_a_gpu(graph, b, t)
            assert set(ranges) == set(program.tasks)
            tuned = tuned_workloads(program, {key: wide.workload for key, wide in ranges.items()})
            client.add_model("layers", [(one.workload, one.count, one.label) for one in tuned.values()])
        (few, many) = client.models()
    assert {k.workload_key for k in few.kernels + many.kernels} >= {wide.key for wide in ranges.values()}
    assert [sorted(k.count for k in model.kernels) for model in (few, many)] == [[3, 3]] * 2
    of_shape, of_range = (Schedule.of("cuda_rowwise", 1, {"threads": n}) for n in (64, 128))
    key, wide = next(iter(ranges.items()))
    assert known_schedule(key, ranges, {wide.key: of_range}) == of_range
    assert known_schedule(key, ranges, {wide.key: of_range, key: of_shape}) == of_shape  # the very shape goes first
    assert known_schedule(key, ranges, {}) is None


def _concrete(value: Any, b: int, t: int) -> Any:
    """What tracing needs of an argument whose symbolic extents are ``b`` and ``t``, which were traced as 4 and 20."""

    def of(n: Any) -> int:
        return {4: b, 20: t}[n.node.hint] if isinstance(n, torch.SymInt) else n

    if isinstance(value, torch.SymInt):
        return of(value)
    shape = tuple(of(n) for n in value.shape)
    return shape, torch.empty(shape).stride(), value.dtype, value.device
