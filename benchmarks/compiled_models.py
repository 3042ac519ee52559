"""Models by our back end for torch, for suites that compare them with peers."""

import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.suite import Options
from tilewright.core.budget import Budget
from tilewright.core.schedule import Schedule
from tilewright.core.target import Target
from tilewright.graph.program import Program
from tilewright.runtime.numpy_tensors import NumpyTensors
from tilewright.runtime.program import BoundProgram
from tilewright.runtime.tensor_library import Launch
from tilewright.schedule.defaults import has_class
from tilewright.service.service import Service
from tilewright.service.settings import Settings
from tilewright.service.views import JobSpec, TaskSpec
from tilewright.te.cost import flops
from tilewright.torch_backend import backend
from tilewright.torch_backend.compiled import CompiledShape
from tilewright.torch_backend.options import Options as BackendOptions

REPEATS, CALLS = 5, 3
"""How often so many calls of a kernel are timed; the best counts."""


def compile_model(
    module: nn.Module, inputs: tuple[torch.Tensor, ...]
) -> tuple[Callable[..., torch.Tensor], list[CompiledShape]]:
    """Return the module by our back end, compiled and compared with eager, and its programs."""
    before = set(backend._graphs)
    chosen = BackendOptions(wait=True)
    found = torch.compile(module, backend=lambda m, x: backend.compile_with(m, x, chosen), dynamic=False)
    with torch.no_grad():
        for _ in range(3):
            found(*inputs)
    return found, [shape for graph in set(backend._graphs) - before for shape in graph.shapes()]


def program_call(shape: CompiledShape, run: Callable[[], object]) -> Callable[[], object] | None:
    """Return what calls the program of ``shape`` on the arrays that ``run`` calls it with, without torch; None where
    torch computes some of it."""
    run()  # kernels that were exchanged are compared first, which asks more of the program than a call
    given: list[tuple[Any, Any]] = []
    ours = shape._bound
    if ours is None or ours._replaced or ours._foreign:
        return None

    def kept(inputs: Any, constants: Any, *others: Any, **options: Any) -> Any:
        given.append((inputs, ours._arrange([constants[n] for n in ours._positions])))
        return ours(inputs, constants, *others, **options)

    shape._bound = kept  # type: ignore[assignment]
    run()
    shape._bound = ours
    if not given:
        return None
    bound = BoundProgram(ours.program, shape._kernels, NumpyTensors())
    inputs, constants = ([tensor.detach().numpy() for tensor in tensors] for tensors in given[-1])
    return lambda: bound(inputs, constants)[0]


def programs(shapes: list[CompiledShape]) -> Iterator[Program]:
    """Return the programs that run kernels."""
    return (shape._bound.program for shape in shapes if shape._bound is not None)


def tune(shapes: list[CompiledShape], options: Options, target: Target) -> dict[str, object]:
    """Tune the workloads of a model by one job of a service in this process, and exchange the kernels. On a GPU those
    of class kernels alone: torch computes the others."""
    tasks = {key: task for program in programs(shapes) for key, task in program.tasks.items()}
    tasks = {key: task for key, task in tasks.items() if target.kind != "cuda" or has_class(task.workload, target)}
    weighted = tuple(TaskSpec(task.workload, weight=task.count) for task in tasks.values())
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        with Service.open(Settings(database_url=f"sqlite:///{Path(folder) / 'models.sqlite3'}")) as service:
            budget = Budget(max(1, (options.trials or 0) // max(len(tasks), 1)))
            job, _ = service.submit(JobSpec(weighted, budget, target=target.kind))
            after = 0
            while not (view := service.job(job.id)).state.is_final:
                for event in service.events(job.id, after=after, timeout_seconds=5.0):
                    after = event.id
    found: dict[str, Schedule] = {
        key: task.best.schedule for key, task in zip(tasks, view.tasks, strict=True) if task.best is not None
    }
    for shape in shapes:
        shape.swap(found)
    return {"tasks": len(tasks), "tuned": len(found), "tuning_s": time.perf_counter() - began}


def about(shapes: list[CompiledShape]) -> dict[str, Any]:
    """Return what became of a model: its kernels, what torch computes, and what was found wrong."""
    return {
        "states": [shape.status.state for shape in shapes],
        "reasons": [shape.status.reason for shape in shapes if shape.status.reason],
        "kernels": sum(shape.status.kernels for shape in shapes),
        "class_kernels": sum(shape.status.class_kernels for shape in shapes),
        "by_torch": sum(len(shape._bound._replaced) for shape in shapes if shape._bound is not None),
        "foreign": sorted({name for shape in shapes for name in shape.status.foreign}),
        "wrong": [(r.operators, r.error, r.allowed) for shape in shapes for r in shape.status.reports],
    }


def slowest_kernels(shape: CompiledShape, most: int, clock: Callable[[], float]) -> list[dict[str, object]]:
    """Return the kernels on the CPU that take longest when each runs alone on zeros, the slowest first: the operators
    and shapes of each, its schedule, and its rate."""
    bound, found = shape._bound, list[dict[str, object]]()
    if bound is None:
        return found
    program, stream = bound.program, next(iter(bound._streams.values()))
    for key, call in zip(program.kernel_keys, program.kernels, strict=True):
        kernel = stream.kernels.get(call.writes[0])
        if kernel is None:
            continue
        names = {name for name in kernel.names if name is not None and name not in stream.fixed}
        held = {name: bound._library.buffer(program.graph.values[name].bytes) for name in names}
        for tensor in held.values():
            tensor.zero_()
        launch = kernel.bind({**stream.fixed, **{n: bound._library.address(t) for n, t in held.items()}})
        seconds = min(_seconds(launch, clock) for _ in range(REPEATS))
        schedule = shape._chosen[key]
        about: dict[str, object] = {
            "us": 1e6 * seconds,
            "gflops": flops(call.workload) / seconds / 1e9,
            "operators": [program.graph.producers[n].op for n in call.nodes],
            "inputs": [list(b.shape) for b in call.workload.inputs],
            "outputs": [list(program.graph.values[n].shape) for n in call.writes],
            "schedule": schedule.to_json(),
        }
        found.append(about)
    return sorted(found, key=lambda k: -float(str(k["us"])))[:most]


def _seconds(launch: Launch, clock: Callable[[], float]) -> float:
    began = clock()
    for _ in range(CALLS):
        launch(0)
    return (clock() - began) / CALLS
