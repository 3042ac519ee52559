"""One traced graph at one set of shapes: ATen at first, then a program of our kernels."""

import itertools
import logging
import threading
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from ..core.precision import PRECISIONS
from ..core.schedule import Schedule
from ..graph.partition import Call, KernelCall
from ..graph.program import Program, ValuePlace, compile_program
from ..importers.fx import ImportedModel, ImportedOutput, TorchPrecisions, import_fx, torch_precisions
from ..runtime.bound_kernel import RawKernel
from ..runtime.program import BoundProgram, Replacement
from ..schedule.defaults import has_class
from ..te.key import workload_key
from ..te.workload import Workload
from .aten import call_by_torch
from .build_queue import build_soon
from .devices import opened, tensors_of, toolchain_of
from .options import Options
from .schedule_cache import ScheduleCache
from .schedules import Schedules
from .shared_kernels import SharedKernels, WantedKernel, known_schedule, row_ranges, symbolic_extents
from .tensors import dense_strides, strided_copy
from .verification import Float64Interpreter, KernelReport, compare, compare_tensors, is_random

log = logging.getLogger("tilewright")

_Order = tuple[int, ...] | None
"""The order of dimensions in which a program wants a tensor, if it is another one."""

_numbers = itertools.count()
_building = threading.Semaphore(1)
"""One program is built at a time: more would only take the processor from the model that runs."""


@dataclass(slots=True)
class Status:
    """What a person may want to know about one compiled graph. ``state``: ``building``, ``unverified``, ``ready``, or
    ``aten`` with the ``reason``. ``class_kernels``: how many kernels a class sketch wrote; ``tuned``: how many have a
    schedule that somebody tuned; ``ranges``: how many serve a range of shapes; ``swaps``: how often kernels were
    exchanged since the first call."""

    state: str = "building"
    reason: str = ""
    kernels: int = 0
    class_kernels: int = 0
    tuned: int = 0
    ranges: int = 0
    swaps: int = 0
    foreign: tuple[str, ...] = ()
    reports: list[KernelReport] = field(default_factory=list)


class CompiledShape:
    """A callable on the arguments of the traced graph ``module``. It runs ATen until its program is there; programs are
    exchanged between calls."""

    def __init__(
        self,
        module: Any,
        static: Sequence[int],
        options: Options,
        schedules: Schedules,
        device: torch.device,
        values: Callable[[], Mapping[Any, Any]] | None = None,
        precisions: TorchPrecisions | None = None,
        shared: SharedKernels | None = None,
    ) -> None:
        """``static``: the positions of arguments that stay the same. ``device``: where kernels run. ``values``: what
        gives the concrete value of each node where the trace is symbolic. ``precisions``: those that torch allows
        itself, by default now. ``shared``: the kernels of other shapes of the graph."""
        self.status = Status()
        self.number = next(_numbers)
        self._module = module
        self._static = frozenset(static)
        self._options = options
        self._schedules = schedules
        self._device = device
        self._values = values
        self._precisions = precisions or torch_precisions(device)
        self._model: ImportedModel | None = None
        self._bound: BoundProgram | None = None
        self._inputs: list[tuple[int, _Order]] = []  # positions among the arguments
        self._attributes: list[Any] = []
        self._as_they_are = False  # every result of the program is one of the model, with the strides of the trace
        self._apart: tuple[int, ...] = ()
        self._shared = shared or SharedKernels(options.refused_sketches)
        self._ranges: dict[str, WantedKernel] = {}
        self._kernels: dict[str, RawKernel] = {}
        self._retired: dict[str, RawKernel] = {}
        self._chosen: dict[str, Schedule] = {}
        self._found: dict[str, Schedule] = {}
        self._unchecked: frozenset[str] = frozenset()  # workloads whose kernels came since the last comparison
        self._lock = threading.Lock()
        if not options.wait:
            build_soon(self._build_when_free)

    def __call__(self, arguments: list[Any]) -> list[Any]:
        if self._options.wait and self._bound is None and self.status.state == "building":
            self._build_when_free()
        if self._bound is None:
            return self._aten(arguments)
        if self.status.state == "unverified" or self._options.verify == "always" or self._unchecked:
            with self._lock:
                if self._bound is None:
                    return self._aten(arguments)
                if self.status.state == "unverified" or self._options.verify == "always":
                    return self._verified(arguments)
                return self._replace_failing(arguments, self._unchecked, overwrite=True)
        return self._results(arguments)

    def _aten(self, arguments: list[Any]) -> list[Any]:
        return list(self._module.forward(*arguments))

    # Building

    def _build_when_free(self) -> None:
        with self._lock, _building:
            if self.status.state != "building":
                return
            try:
                self._build()
            except Exception as error:  # a model is never refused: whatever goes wrong, ATen runs
                self._give_up(f"{type(error).__name__}: {error}")

    def _give_up(self, reason: str) -> None:
        self._bound = None
        self.status.state, self.status.reason = "aten", reason
        log.warning("a graph stays with ATen: %s", reason)

    def _build(self) -> None:
        device = opened(self._device)
        target = device.target
        values = None if self._values is None else self._values()
        model = import_fx(self._module, sorted(self._static), values, self._device, self._precisions)
        program = compile_program(model.graph, lambda w: has_class(w, target), gpu=target.kind == "cuda")
        if not program.kernels:
            return self._give_up("nothing in it is for kernels")
        classes = {key for key, task in program.tasks.items() if has_class(task.workload, target)}
        # On a GPU the generic sketch is far behind the libraries where there is data to be used again: these workloads
        # are left to torch.
        ours = [key for key in program.tasks if target.kind != "cuda" or key in classes]
        cache = ScheduleCache(program.key, device.info.key, toolchain_of(device).key)
        extents = symbolic_extents(values or {})
        self._ranges = row_ranges({key: program.tasks[key].workload for key in ours}, extents, target)
        wanted = [*ours, *(wide.key for wide in self._ranges.values())]
        self._found = {**cache.load(), **self._schedules.find(list(dict.fromkeys(wanted)))}
        if self._found:
            cache.store(self._found)
        self._load(program, ours)
        if not self._kernels:
            return self._give_up("there is no kernel for anything in it")
        replaced = {
            c.writes[0]: call_by_torch(program.graph, c, device=self._device)
            for key, c in zip(program.kernel_keys, program.kernels, strict=True)
            if key not in self._kernels
        }
        read = [(n, i) for n, i in enumerate(model.inputs) if i.value is not None]
        orders = {n: None if i.in_order else i.order for n, i in read}
        self._inputs = [(n, orders[n]) for n, i in read if not i.constant]
        self._attributes = [tensor for _, tensor in model.attributes]
        behind = range(len(model.inputs), len(model.inputs) + len(model.attributes))
        positions = [*(n for n, i in read if i.constant), *behind]
        arrange = partial(_arranged, [orders.get(n) for n in positions])
        bound = BoundProgram(program, self._kernels, tensors_of(self._device), replaced, positions, arrange)
        self._model = model
        self._apart = _joined_results(model, program)
        self._as_they_are = not self._apart and all(_is_as_traced(model, output) for output in model.outputs)
        self.status.foreign, self.status.kernels = model.foreign, len(program.kernels) - len(replaced)
        self.status.class_kernels = sum(key in classes for key in program.kernel_keys)
        unverified = self._options.verify != "never" and not is_random(self._module)
        self.status.state = "unverified" if unverified else "ready"
        self._bound = bound
        if self._options.tune and any(known_schedule(key, self._ranges, self._found) is None for key in ours):
            workloads = {key: self._ranges.get(key, program.tasks[key]).workload for key in ours}
            arguments = (weakref.ref(self), self._schedules, program, workloads, cache)
            threading.Thread(target=_follow_job, args=arguments, name="tilewright-tune", daemon=True).start()

    def _load(self, program: Program, keys: Sequence[str]) -> None:
        """Load the kernels of these workloads, with the schedules that are known."""
        workloads = {key: program.tasks[key].workload for key in keys}
        loaded = self._shared.load(workloads, self._ranges, self._found, opened(self._device))
        self._kernels = {**self._kernels, **{key: one.kernel for key, one in loaded.items()}}
        self._chosen = {**self._chosen, **{key: one.schedule for key, one in loaded.items()}}
        self._count_tuned()
        self.status.ranges = sum(key in self._ranges and key not in self._found for key in self._kernels)

    def _known(self) -> dict[str, Schedule | None]:
        """Return the schedule that somebody has tuned for each kernel, if anybody has and its sketch is not refused."""
        known = {key: known_schedule(key, self._ranges, self._found) for key in self._kernels}
        refused = self._options.refused_sketches
        return {key: None if s is not None and s.sketch in refused else s for key, s in known.items()}

    def _count_tuned(self) -> None:
        """A default schedule that turned out to be the best is tuned, too."""
        self.status.tuned = sum(schedule == self._chosen[key] for key, schedule in self._known().items())

    def swap(self, found: Mapping[str, Schedule]) -> bool:
        """Exchange the kernels for which ``found`` has other schedules, for their shape or for their range. Calls that
        run go on with the kernels that they began with. Return whether the program still runs kernels: otherwise there
        is nothing to exchange."""
        with self._lock:
            if self._bound is None:
                return False
            self._found = {**self._found, **found}
            changed = [key for key, schedule in self._known().items() if schedule not in (None, self._chosen[key])]
            self._count_tuned()
            if changed:
                before = self._retired = self._kernels  # what still runs must stay loaded
                self._load(self._bound.program, changed)
                self._bound = self._bound.with_kernels(
                    {key: self._kernels[key] for key in changed if self._kernels[key] is not before[key]}
                )
                self.status.swaps += 1
                if self._options.verify != "never" and not is_random(self._module):
                    self._unchecked |= frozenset(changed)
        return True

    # Running

    def _results(self, arguments: list[Any], watch: Any = None, *, overwrite: bool = True) -> list[Any]:
        """Return the results of the model. ``overwrite``: whether it changes its inputs as eager would."""
        model, bound = self._model, self._bound
        assert model is not None and bound is not None
        if torch.is_grad_enabled():  # torch has seen to it in nearly every call
            with torch.no_grad():
                return self._results(arguments, watch, overwrite=overwrite)
        given = [arguments[n] if order is None else arguments[n].permute(order) for n, order in self._inputs]
        every = [*arguments, *self._attributes] if self._attributes else arguments
        values = bound(given, every, watch, overwrite=overwrite)
        if self._as_they_are:
            return values
        following = iter(values)
        outputs = [o.constant if o.value is None else _as_traced(next(following), o) for o in model.outputs]
        if self._apart:
            self._keep_apart(model, outputs, every)
        for n, view in [(n, o.view) for n, o in enumerate(model.outputs) if o.view is not None]:
            base = arguments[view.base] if view.in_argument else outputs[view.base]
            outputs[n] = base.as_strided(view.shape, view.strides, base.storage_offset() + view.offset)
        return outputs

    def _keep_apart(self, model: ImportedModel, outputs: list[Any], every: Sequence[Any]) -> None:
        """Copy results that lie where they were not traced to lie: callers may overwrite each of them."""
        owners: dict[int, int | None] = {t.data_ptr(): None for t in every if _is_strided(t)}
        copies: dict[tuple[int, int | None], Any] = {}
        for n in self._apart:
            result, memory = outputs[n], model.outputs[n].memory
            address = result.data_ptr()
            if owners.setdefault(address, memory) != memory:
                copy = copies.get((address, memory))
                copy = copies[address, memory] = result.clone() if copy is None else copy
                outputs[n] = copy.as_strided(result.shape, result.stride(), copy.storage_offset())

    # Checking

    def _verified(self, arguments: list[Any]) -> list[Any]:
        """Eager's results, after ours have been compared with them. What fails is replaced. A program that does not run
        gives way to ATen."""
        bound = self._bound
        assert bound is not None
        try:
            truth = Float64Interpreter(self._module).run(*arguments)
            copies = [a.clone() if isinstance(a, torch.Tensor) else a for a in arguments]
            ours = self._results(arguments, overwrite=False)
        except Exception as error:
            eager = self._aten(arguments)  # an error of the model goes to the caller
            self._give_up(f"{type(error).__name__}: {error}")
            return eager
        eager = self._aten(arguments)
        rounded = max(PRECISIONS[c.workload.precision].factor_error for c in bound.program.kernels)
        found = compare(ours, eager, truth, rounded)
        if found is not None:
            self._replace_failing(copies, self._kernels, overwrite=False)
            again = self._results(copies, overwrite=False)
            found = compare(again, eager, truth, rounded)
        if found is not None:
            self._give_up(f"output {found.output} is off by {found.error:.3g}, allowed: {found.allowed:.3g}")
        elif self.status.state == "unverified":
            self.status.state = "ready"
        self._unchecked = frozenset()
        return eager

    def _replace_failing(self, arguments: list[Any], keys: Collection[str], *, overwrite: bool) -> list[Any]:
        """Compare the kernels of these workloads with what torch makes of the same inputs. Those that are off are run
        by torch, now and from now on. Return what ``_results`` does."""
        bound = self._bound
        assert bound is not None
        program = bound.program
        failed: dict[str, Replacement] = {}

        def watch(call: Call, tensors: Mapping[str, Any]) -> None:
            if not isinstance(call, KernelCall) or workload_key(call.workload) not in keys:
                return
            reads = [tensors[name] for name in call.reads]
            eager, truth = (
                call_by_torch(program.graph, call, wide=wide, device=self._device)(reads) for wide in (False, True)
            )
            for name, b, t in zip(call.writes, eager, truth, strict=True):
                wrong = compare_tensors(tensors[name], b, t, PRECISIONS[call.workload.precision].factor_error)
                if wrong is not None:
                    failed[call.writes[0]] = call_by_torch(program.graph, call, device=self._device)
                    self._report(program, call, *wrong)
                    tensors[name].copy_(b)  # what comes after it is compared on right inputs

        results = self._results(arguments, watch, overwrite=overwrite)
        self._unchecked -= frozenset(keys)
        if failed:
            self._bound = bound.with_replaced(failed)
        return results

    def _report(self, program: Program, call: KernelCall, error: float, allowed: float) -> None:
        key = workload_key(call.workload)
        operators = tuple(program.graph.producers[n].op for n in call.nodes)
        self.status.reports.append(KernelReport(key, self._chosen[key].to_json(), operators, error, allowed))
        log.warning(
            "kernel %s (%s) is off by %.3g, allowed: %.3g; ATen replaces it", key, " ".join(operators), error, allowed
        )


def _arranged(orders: Sequence[_Order], tensors: Sequence[Any]) -> list[Any]:
    return [t if order is None else t.permute(order) for t, order in zip(tensors, orders, strict=True)]


def _is_strided(a: Any) -> bool:
    return isinstance(a, torch.Tensor) and a.layout is torch.strided


def _joined_results(model: ImportedModel, program: Program) -> tuple[int, ...]:
    """Return the results that may lie in the memory of an argument or of another result, where one of them was traced
    to have memory of its own: a pass may give one value for several."""
    graph, names = program.graph, iter(program.graph.outputs)
    given = {v.name for v in (*graph.inputs, *graph.constants)}
    members: dict[str, list[int]] = {}
    for n, output in enumerate(model.outputs):
        if output.value is not None:
            name = next(names)
            members.setdefault(program.places.get(name, ValuePlace(name)).root, []).append(n)
    found: list[int] = []
    for root, results in members.items():
        memories = {model.outputs[n].memory for n in results}
        if len(memories) > 1 or (root in given and memories != {None}):
            found += results
    return tuple(sorted(found))


def _is_as_traced(model: ImportedModel, output: ImportedOutput) -> bool:
    """Return whether a dense tensor of the value has the dimensions and strides that were traced."""
    if output.value is None or output.order is None:
        return False
    value = model.graph.values[output.value]
    if value.type is None or list(output.order) != sorted(output.order):
        return False
    return output.strides in (None, dense_strides(value.shape))


def _as_traced(tensor: Any, output: Any) -> Any:
    """Return a result with the strides that were traced: code behind the next graph break relies on them."""
    if output.order is not None:
        result = tensor if list(output.order) == sorted(output.order) else tensor.permute(output.order)
        same = output.strides is None or result.stride() == output.strides
        return result if same else result.as_strided(result.shape, output.strides)
    return strided_copy(tensor, output.strides)


def _follow_job(
    shape: "weakref.ref[CompiledShape]",
    schedules: Schedules,
    program: Program,
    workloads: Mapping[str, Workload],
    cache: ScheduleCache,
) -> None:
    """Have kernels of a program tuned (``Schedules.tune``), and exchange them as tasks come further, for as long as
    the program is used."""
    owner = shape()
    if owner is None:
        return
    options, name = owner._options, owner._options.name or f"torch program {program.key[:12]}"
    del owner
    for found in schedules.tune(program, workloads, name, options.tune):
        if found:
            cache.store(found)
        owner = shape()
        if owner is None or not owner.swap(found):
            return
        del owner
