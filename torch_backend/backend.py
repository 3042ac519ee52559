"""What torch calls for ``torch.compile(model, backend="tilewright")``.

The traced graph comes from AOTAutograd in ATen operators. Inference graphs run on our kernels as soon as these are
there, and so do training graphs that gain by it (``training``); those on several GPUs and on devices of other kinds run
as ATen.
"""

import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any

import torch
from torch._decomp import _core_aten_decompositions_post_autograd, core_aten_decompositions, get_decompositions
from torch._functorch.aot_autograd import aot_module_simplified
from torch._guards import TracingContext
from torch._subclasses.fake_tensor import FakeTensorMode

from ..importers.fx import TorchPrecisions, torch_precisions
from .attention import keep_attention
from .build_queue import first_call
from .compiled import CompiledShape, Status
from .devices import device_of
from .effects import without_tokens
from .options import Options
from .recurrent import keep_recurrent
from .schedules import NoSchedules, Schedules
from .service_schedules import ServiceSchedules
from .shared_kernels import SharedKernels
from .training import BetterAsAten, check_forward, check_module, is_written_out

KEPT_WHOLE = (
    "_fused_rms_norm", "_log_softmax", "_native_batch_norm_legit_no_training", "_scaled_dot_product", "_softmax",
    "addmm", "avg_pool", "col2im", "constant_pad_nd", "elu", "gelu", "hardsigmoid", "hardswish", "leaky_relu",
    "logsumexp", "mish", "native_group_norm", "native_layer_norm", "roll", "scaled_dot_product_attention", "silu",
    "softplus", "stack", "t", "unbind", "upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "var_mean",
    "xlogy",
)  # fmt: skip
"""Operators of core ATen's table of decompositions for which there is a rule."""
_RESAMPLING = (
    "upsample_linear1d.vec", "upsample_bilinear2d.vec", "upsample_trilinear3d.vec", "upsample_bicubic2d.vec",
    "grid_sampler_2d.default",
)  # fmt: skip
"""Operators of core ATen that torch can write out. Gathers with indices that are computed once become one kernel."""

_graphs: "weakref.WeakSet[CompiledGraph]" = weakref.WeakSet()


def tilewright(module: Any, examples: Sequence[Any], *, mode: str | None = None, options: Any = None) -> Any:
    """Compile a graph that dynamo has captured. Raises InvalidParameter for a mode or an option that is not known."""
    return compile_with(module, examples, Options.of(mode, options))


def compile_with(module: Any, examples: Sequence[Any], options: Options, schedules: Schedules | None = None) -> Any:
    """As ``tilewright``, with schedules from elsewhere than the service that ``options`` name."""
    tensors = [a for a in (*examples, *module.parameters(), *module.buffers()) if isinstance(a, torch.Tensor)]
    trains = torch.is_grad_enabled() and any(t.requires_grad for t in tensors)
    device = device_of(tensors)
    if device is None or (trains and options.training == "never"):
        return module.forward
    try:
        return _compiled(module, examples, options, schedules or _schedules(options, device), device, trains)
    except BetterAsAten:
        return module.forward


def _compiled(
    module: Any, examples: Sequence[Any], options: Options, found: Schedules, device: torch.device, trains: bool
) -> Any:
    """Return the compiled module. Raises BetterAsAten for one that trains and gains nothing."""
    chosen = trains and options.training == "auto"
    if chosen:
        check_module(module, device)
    if not trains:
        keep_attention(module)  # these have no gradients
        keep_recurrent(module, device)

    def inference(traced: Any, _examples: Sequence[Any]) -> Any:
        context = TracingContext.try_get()
        metadata = None if context is None else context.fw_metadata
        static = list(metadata.static_input_indices or ()) if metadata is not None else []
        return CompiledGraph(traced, static, options, found, device)

    def forward(traced: Any, _examples: Sequence[Any]) -> Any:
        if chosen:
            check_forward(traced)
        return backward(traced, _examples)

    def backward(traced: Any, _examples: Sequence[Any]) -> Any:
        """Weights are inputs like any other: they change in every step, so that nothing is packed."""
        return CompiledGraph(traced, [], options, found, device)

    return aot_module_simplified(
        module,
        examples,
        fw_compiler=forward,
        bw_compiler=backward,
        inference_compiler=inference,
        decompositions=decompositions(trains),
        keep_inference_input_mutations=True,
    )


def status() -> list[Status]:
    """Return what has become of every graph that is alive: one entry for each program or attempt at one."""
    return [shape.status for graph in list(_graphs) for shape in graph.shapes()]


def decompositions(trains: bool = False, *, composite: bool = False) -> dict[Any, Any]:
    """Return core ATen's table without the operators that have a rule, and without gradients that ATen computes faster;
    resampling is written out where nothing trains. ``composite``: with the operators that a trace writes out by itself,
    which an exported program keeps. To list them takes a tenth of a second."""
    table = core_aten_decompositions() if composite else _core_aten_decompositions_post_autograd()
    named = ((op, str(op).split(".")[1], f) for op, f in table.items())
    found = {op: f for op, name, f in named if not _is_kept(name) and (not trains or is_written_out(name))}
    return found if trains else {**found, **get_decompositions([attrgetter(n)(torch.ops.aten) for n in _RESAMPLING])}


def _is_kept(name: str) -> bool:
    return name in KEPT_WHOLE or name.startswith("_scaled_dot_product") or name in ("avg_pool1d", "avg_pool2d")


def _schedules(options: Options, device: torch.device) -> Schedules:
    if not options.service:
        return NoSchedules()
    return ServiceSchedules(options.service, "cuda" if device.type == "cuda" else "llvm")


class CompiledGraph:
    """A traced graph with a ``CompiledShape`` for each set of shapes that it meets, and for each setting of torch's
    flags for TF32, which dynamo does not guard. The least recently used one is dropped. The trace may be symbolic.
    AOTAutograd calls it with a list of arguments, which it empties."""

    _boxed_call = True

    def __init__(
        self, module: Any, static: Sequence[int], options: Options, schedules: Schedules, device: torch.device
    ) -> None:
        without_tokens(module)
        self._module = module
        self._static = static
        self._device = device
        self._options = options
        self._schedules = schedules
        self._shared = SharedKernels(options.refused_sketches)
        self._inputs = [n for n in module.graph.nodes if n.op == "placeholder"]
        self._shapes: OrderedDict[Any, CompiledShape] = OrderedDict()
        self._symbolic = any(_is_symbolic(n.meta.get("val")) for n in self._inputs)
        if not self._symbolic:
            precisions = torch_precisions(device)
            self._shapes[precisions, ()] = self._new(None, precisions)
        self._answered = False
        self._latest: tuple[TorchPrecisions, CompiledShape] | None = None
        _graphs.add(self)

    def __call__(self, arguments: list[Any]) -> list[Any]:
        if self._answered:
            results = self._of(arguments)(arguments)
        else:
            with first_call():
                results = self._of(arguments)(arguments)
            self._answered = True
        arguments.clear()
        return results

    def shapes(self) -> list[CompiledShape]:
        """Return the programs, or attempts at one."""
        return list(self._shapes.values())

    def _of(self, arguments: Sequence[Any]) -> CompiledShape:
        precisions, shapes = torch_precisions(self._device), tuple[Any, ...]()
        if not self._symbolic and self._latest is not None and self._latest[0] is precisions:
            return self._latest[1]
        if self._symbolic:
            shapes = tuple((tuple(a.shape), a.stride()) if isinstance(a, torch.Tensor) else a for a in arguments)
        key = precisions, shapes
        found = self._shapes.get(key)
        if found is None:
            like = [_described(a) for a in arguments]
            values = (lambda: concrete_values(self._module, like)) if self._symbolic else None
            found = self._shapes[key] = self._new(values, precisions)
            while len(self._shapes) > self._options.programs:
                self._shapes.popitem(last=False)
        self._shapes.move_to_end(key)
        self._latest = precisions, found
        return found

    def _new(self, values: Callable[[], Mapping[Any, Any]] | None, precisions: TorchPrecisions) -> CompiledShape:
        given = (self._module, self._static, self._options, self._schedules, self._device)
        return CompiledShape(*given, values, precisions, self._shared)


def _is_symbolic(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return any(not isinstance(n, int) for n in (*value.shape, *value.stride()))
    return isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool)


def _described(a: Any) -> Any:
    """Return what tracing needs of an argument: no data."""
    return (tuple(a.shape), a.stride(), a.dtype, a.device) if isinstance(a, torch.Tensor) else a


def concrete_values(module: Any, like: Sequence[Any]) -> dict[Any, Any]:
    """Return the value of every node of a symbolic trace for arguments like these: a fake tensor of concrete shape, or
    a number."""
    found: dict[Any, Any] = {}

    class Recorder(torch.fx.Interpreter):  # type: ignore[misc]
        def run_node(self, n: Any) -> Any:
            found[n] = super().run_node(n)
            return found[n]

    with FakeTensorMode(allow_non_fake_inputs=True):
        arguments = [
            torch.empty_strided(a[0], a[1], dtype=a[2], device=a[3]) if isinstance(a, tuple) else a for a in like
        ]
        Recorder(module, garbage_collect_values=False).run(*arguments)
    return found
