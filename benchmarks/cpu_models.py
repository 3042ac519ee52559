"""Whole networks of ``networks`` at batch 1 in float32 on this machine's CPU, by ``torch.compile`` with our back end,
against eager, torch.compile with frozen weights, ONNX Runtime and OpenVINO.

All sides run interleaved in one process on the same inputs, in memory that is used again and again, and pack weights
before anything is timed. Ours is the program as ``tilewright model bench`` calls it, on arrays; beside it stands a
call through torch.compile, which looks at every module and at all weights (``guarded_ratio``).
Outputs of all are compared with eager in float64. Eager also runs with channels last, and counts by its faster form.
OpenVINO may not lower the precision, and stands apart. Bars: the geometric mean of (best peer / ours) at least 1.1,
that of (OpenVINO / ours) at least 1, and no ratio under 0.9. ``trials``: how many trials tune a model, by a service in
this process; 0, which is the default, measures default schedules.

Settings: ``threads=N`` (by default 2); ``rounds=N``; ``peers=eager,compile,autotune,onnx,openvino`` takes only those
that are named (by default all but ``autotune``, torch.compile by its max-autotune mode, which takes minutes a model);
``clock=processor`` counts the processor time of all threads, to see on a busy machine, with one thread, where things
stand. ``kernels=N`` lists the N kernels of each model that take longest.
"""

import copy
import tempfile
import time
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks import networks
from benchmarks.compiled_models import about, compile_model, program_call, slowest_kernels, tune
from benchmarks.cpu_peers import Call, interleaved, middle, recycle_memory
from benchmarks.gpu_table import geometric_mean
from benchmarks.suite import Options, Result, kept_result, printed
from tilewright.runtime.cpu import CpuDevice

Inputs = tuple[torch.Tensor, ...]

ROUNDS = 7
THREADS = 2
PEERS = ("eager", "compile", "onnx", "openvino")
LEAST_MEAN, LEAST_OPENVINO_MEAN, LEAST = 1.1, 1.0, 0.9
MOST_ERROR = 1e-4
"""How far outputs may be from float64, relative to the largest of them."""
OPENVINO, WITH_GUARDS = "OpenVINO", "ours, called through torch.compile"
_PACKAGES = {"onnx": ("onnxscript", "onnxruntime"), "openvino": ("onnxscript", "openvino")}


def _image() -> Inputs:
    return (torch.randn(1, 3, 224, 224),)


NETWORKS: Mapping[str, tuple[Callable[[], nn.Module], Callable[[], Inputs]]] = {
    "resnet50": (networks.resnet50, _image),
    "mobilenet_v2": (networks.mobilenet_v2, _image),
    "vit_b_16": (networks.VisionTransformer, _image),
    "bert-2x128": (lambda: networks.Bert(layers=2), lambda: (torch.randint(0, 30_000, (1, 128)),)),
    "dlrm": (networks.RecommendationModel, lambda: (torch.randn(1, 13), torch.randint(0, 10_000, (1, 26)))),
}
"""Row -> the network and its inputs."""


def run(options: Options) -> Result:
    """Compile, compare and time every network whose name matches."""
    recycle_memory()
    torch.set_num_threads(int(options.extra.get("threads", THREADS)))
    device = CpuDevice()
    versions = {n: import_module(n).__version__ for n in ("onnxruntime", "openvino") if find_spec(n)}
    settings = {"rounds": _rounds(options), "threads": torch.get_num_threads(), **options.extra}
    about_device = {"name": device.info.name, **device.info.hardware}

    def judged(table: list[dict[str, object]]) -> Result:
        summary = _summary(table)
        return Result(tuple(table), summary, not summary["below_bar"], settings, about_device, versions)

    with torch.inference_mode():
        measured = (_measured(name, options) for name in options.chosen(NETWORKS))
        return kept_result(printed(measured), judged, options)


def _rounds(options: Options) -> int:
    return int(options.extra.get("rounds", ROUNDS))


def _measured(name: str, options: Options) -> dict[str, object]:
    """Return one row of the table."""
    torch.manual_seed(options.seed)
    make, draw = NETWORKS[name]
    module, inputs = make().eval(), draw()
    torch._dynamo.reset()
    began = time.perf_counter()
    ours, shapes = compile_model(module, inputs)
    row: dict[str, object] = {"row": name, "compiled_s": time.perf_counter() - began}
    if options.trials:
        row |= tune(shapes, options, CpuDevice().info.target)
    row |= about(shapes)
    calls: dict[str, Call] = {WITH_GUARDS: lambda: ours(*inputs)}
    program = program_call(shapes[0], calls[WITH_GUARDS])
    calls |= {"ours": program or calls[WITH_GUARDS]}
    missing: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        for peer in options.extra.get("peers", ",".join(PEERS)).split(","):
            absent = [p for p in _PACKAGES.get(peer, ()) if find_spec(p) is None]
            if absent:
                missing[peer] = f"{', '.join(absent)}: not installed"
                continue
            try:
                calls |= _MAKERS[peer](module, inputs, Path(folder))
            except Exception as error:  # a peer may fail in any way; the row says so and goes on
                missing[peer] = f"{type(error).__name__}: {str(error)[:200]}"
        truth = _truth(module, inputs)
        clock = time.process_time if options.extra.get("clock") == "processor" else time.perf_counter
        taken = interleaved(calls, _rounds(options), clock)
        times = {peer: middle(t) for peer, t in taken.items()}
        errors = {peer: _error(calls[peer](), truth) for peer, t in times.items() if t is not None}
    if options.extra.get("kernels"):
        row["slowest"] = slowest_kernels(shapes[0], int(options.extra["kernels"]), clock)
    row |= {"us": {peer: taken[peer] if t is None else 1e6 * t for peer, t in times.items()}, "errors": errors}
    row |= {"missing": missing, "right": errors.get("ours", 1.0) <= MOST_ERROR}
    mine = times["ours"]
    others = {p: t for p, t in times.items() if p not in ("ours", WITH_GUARDS, OPENVINO) and t is not None}
    if mine is not None and others:
        row["best_peer"] = min(others, key=lambda peer: others[peer])
        row["ratio"] = min(others.values()) / mine
        row["guarded_ratio"] = min(others.values()) / (times[WITH_GUARDS] or mine)
    openvino = times.get(OPENVINO)
    if mine is not None and openvino is not None:
        row["openvino_ratio"] = openvino / mine
    return row


def _truth(module: nn.Module, inputs: Inputs) -> torch.Tensor:
    """Eager's output in float64."""
    wide = copy.deepcopy(module).double()
    return wide(*(x.double() if x.is_floating_point() else x for x in inputs))


def _error(output: Any, truth: torch.Tensor) -> float:
    """Return the largest difference from ``truth``, relative to its largest element."""
    found = torch.as_tensor(output[0] if isinstance(output, list | tuple) else output).reshape(truth.shape)
    return float((found.double() - truth).abs().max() / truth.abs().max())


def _eager(module: nn.Module, inputs: Inputs, folder: Path) -> dict[str, Call]:
    calls: dict[str, Call] = {"torch eager": lambda: module(*inputs)}
    if inputs[0].dim() == 4:
        last = copy.deepcopy(module).to(memory_format=torch.channels_last)
        given = inputs[0].contiguous(memory_format=torch.channels_last)
        calls["torch eager, channels last"] = lambda: last(given)
    return calls


def _compile(mode: str | None, name: str) -> Callable[[nn.Module, Inputs, Path], dict[str, Call]]:
    def make(module: nn.Module, inputs: Inputs, folder: Path) -> dict[str, Call]:
        torch._dynamo.reset()
        with torch._inductor.config.patch(freezing=True):
            frozen = torch.compile(module, mode=mode, dynamic=False)
            frozen(*inputs)
        return {name: lambda: frozen(*inputs)}

    return make


def _exported(module: nn.Module, inputs: Inputs, folder: Path) -> Path:
    """Return the network as an ONNX file, which both runtimes read."""
    path = folder / "model.onnx"
    if not path.exists():
        torch.onnx.export(module, inputs, path, dynamo=True, external_data=True, verbose=False)
    return path


def _onnx(module: nn.Module, inputs: Inputs, folder: Path) -> dict[str, Call]:
    runtime = import_module("onnxruntime")
    settings = runtime.SessionOptions()
    settings.intra_op_num_threads, settings.inter_op_num_threads = torch.get_num_threads(), 1
    settings.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_ENABLE_ALL
    session = runtime.InferenceSession(_exported(module, inputs, folder), settings, ["CPUExecutionProvider"])
    bound = session.io_binding()
    for value, x in zip(session.get_inputs(), inputs, strict=True):
        bound.bind_ortvalue_input(value.name, runtime.OrtValue.ortvalue_from_numpy(x.numpy()))
    bound.bind_output(session.get_outputs()[0].name)

    def call() -> object:
        session.run_with_iobinding(bound)
        return bound.copy_outputs_to_cpu()

    return {"ONNX Runtime": call}


def _openvino(module: nn.Module, inputs: Inputs, folder: Path) -> dict[str, Call]:
    library = import_module("openvino")
    settings = {
        "INFERENCE_PRECISION_HINT": "f32",
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        "NUM_STREAMS": 1,
        "PERFORMANCE_HINT": "LATENCY",
    }
    core = library.Core()
    request = core.compile_model(core.read_model(_exported(module, inputs, folder)), "CPU", settings)
    request = request.create_infer_request()
    for n, x in enumerate(inputs):
        request.set_input_tensor(n, library.Tensor(x.numpy(), shared_memory=True))

    def call() -> object:
        request.infer()
        return request.get_output_tensor(0).data

    return {OPENVINO: call}


_MAKERS: Mapping[str, Callable[[nn.Module, Inputs, Path], dict[str, Call]]] = {
    "eager": _eager,
    "compile": _compile(None, "torch.compile, frozen"),
    "autotune": _compile("max-autotune-no-cudagraphs", "torch.compile max-autotune, frozen"),
    "onnx": _onnx,
    "openvino": _openvino,
}
"""Name in the setting ``peers`` -> what makes the peer's calls."""


def _summary(table: list[dict[str, Any]]) -> dict[str, object]:
    """Return the figures of the bars, and which bars were missed."""
    ratios = {r["row"]: float(r["ratio"]) for r in table if "ratio" in r}
    beside = {r["row"]: float(r["openvino_ratio"]) for r in table if "openvino_ratio" in r}
    below = [
        f"{name}: {kind}"
        for found, kind in ((ratios, "best peer"), (beside, OPENVINO))
        for name, ratio in found.items()
        if ratio < LEAST
    ]
    below += [f"{r['row']}: wrong" for r in table if not r["right"]]
    means = geometric_mean(list(ratios.values())), geometric_mean(list(beside.values()))
    below += [] if (means[0] or 0.0) >= LEAST_MEAN else ["geomean"]
    below += [] if means[1] is None or means[1] >= LEAST_OPENVINO_MEAN else ["geomean over OpenVINO"]
    everything = [*ratios.values(), *beside.values()]
    return {
        "geomean_ratio": means[0],
        "openvino_geomean_ratio": means[1],
        "min_ratio": min(everything, default=None),
        "below_bar": below,
    }
