"""What dynamic dimensions cost: kernels of dynamic rows and lengths against those of the static workload of each call.

Each row is one kernel class at the extents of one call: a number of rows, or the numbers of queries and keys. Both
kernels have one schedule, the default one of the dynamic workload, where that is legal for the static one and does not
spill; else the static kernel has its own default. ``registers`` and ``instructions`` (SASS, of all launches) need no
GPU, but a disassembler: they are 0 where there is none. With a GPU, both kernels are checked and timed interleaved,
cold, and ``ratio`` is the time of the dynamic kernel by that of the static one. Bar: a geometric mean of at most 1.03
where kernels are timed, and no kernel that spills.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from fnmatch import fnmatch
from statistics import geometric_mean, median
from typing import Any

from benchmarks.suite import Options, Result
from tilewright.codegen.backend import Artifacts, CompiledKernel
from tilewright.codegen.backends import backend_for
from tilewright.codegen.lowering import build, finish, lower
from tilewright.core.errors import IllegalSchedule, ResourcesExceeded, UnsupportedTarget
from tilewright.core.schedule import Schedule
from tilewright.core.target import Target
from tilewright.runtime.device import Device
from tilewright.runtime.devices import open_device
from tilewright.schedule.defaults import default_schedules
from tilewright.te.dynamic import at_extent, with_dynamic
from tilewright.te.operators import OPERATORS
from tilewright.te.operators.attention import attention_of_lengths
from tilewright.te.workload import Workload
from tilewright.workers.harness import HarnessRules, MeasurementHarness
from tilewright.workers.reference_data import compute_reference
from tilewright.workers.timing import RemeasureRules, TimingRules

F16 = "float16"
LIMIT = 1.03
WITHOUT_GPU = Target("cuda", "sm_90a", threads=132, vector_bytes=16)

ROWS: Mapping[str, tuple[str, Mapping[str, Any], int, tuple[int, ...]]] = {
    "softmax-1024": ("softmax", {"rows": 16384, "columns": 1024, "dtype": F16}, 8192, (64, 4099, 8192)),
    "softmax-50257": ("softmax", {"rows": 8192, "columns": 50257, "dtype": F16}, 4096, (64, 4096)),
    "rms_norm-4096": ("rms_norm", {"rows": 16384, "columns": 4096, "dtype": F16}, 8192, (16, 4099, 8192)),
    "gelu-4096": (
        "elementwise",
        {"shape": [16384, 4096], "functions": ["gelu_tanh"], "dtype": F16},
        8192,
        (16, 4099, 8192),
    ),
    "linear-4096x4096": (
        "linear",
        {"rows": 8192, "inputs": 4096, "outputs": 4096, "bias": True, "dtype": F16},
        4096,
        (128, 1000, 4096),
    ),
    "gated_linear-4096x11008": (
        "gated_linear",
        {"rows": 8192, "inputs": 4096, "outputs": 11008, "dtype": F16},
        2048,
        (512, 2048),
    ),
}
"""Name -> operator, its parameters with the most rows, the representative extent, and the extents of rows."""

HEADS = {"depth": 128, "causal": True, "dtype": F16}
LENGTHS: Mapping[str, tuple[Mapping[str, Any], tuple[int, ...], tuple[tuple[int, ...], ...]]] = {
    "sequence-32-heads": (
        {**HEADS, "heads": 32, "queries": 4096, "keys": 4096},
        (2048,),
        ((512,), (1024,), (2000,), (4096,)),
    ),
    "prefill-32-heads": (
        {**HEADS, "heads": 32, "queries": 4096, "keys": 4096},
        (2048, 2048),
        ((512, 512), (512, 2048), (4096, 4096)),
    ),
    "prefill-16-heads-64": (
        {**HEADS, "heads": 16, "queries": 4096, "keys": 4096, "depth": 64, "causal": False},
        (2048, 2048),
        ((512, 512), (1000, 3000), (4096, 4096)),
    ),
    "decode-8-heads": (
        {**HEADS, "heads": 8, "queries": 16, "keys": 32768},
        (1, 8192),
        ((1, 2048), (1, 8192), (16, 8192), (1, 32768), (16, 32768)),
    ),
    "decode-8-groups-of-8": (
        {**HEADS, "heads": 8, "queries_per_key": 8, "queries": 1, "keys": 32768},
        (0, 8192),
        ((2048,), (8192,), (32768,)),
    ),
    "decode-64-heads": (
        {**HEADS, "heads": 64, "queries": 16, "keys": 32768},
        (1, 8192),
        ((1, 2048), (1, 8192), (4, 16384), (1, 32768)),
    ),
}
"""Name -> parameters of attention with the largest lengths, the representative (queries, keys), and those of calls. 0
queries: their number is static. One number alone: a sequence has as many queries as keys."""


def run(options: Options) -> Result:
    """Compare all rows, and time them where there is a GPU."""
    try:
        device: Device | None = open_device("cuda")
    except UnsupportedTarget:
        device = None
    target = WITHOUT_GPU if device is None else device.info.target
    names = [name for name in (*ROWS, *LENGTHS) if fnmatch(name, options.rows)]
    rows = [row for name in names for row in _compared(name, target, device, options.seed)]
    ratios = [float(str(row["ratio"])) for row in rows if "ratio" in row]
    summary: dict[str, object] = {"rows": len(rows), "more_registers": max(_more(rows), default=0)}
    if ratios:
        summary |= {"ratio": geometric_mean(ratios), "slowest": max(ratios)}
    passed = bool(rows) and (not ratios or geometric_mean(ratios) <= LIMIT)
    return Result(tuple(rows), summary, passed, device={} if device is None else {"name": device.info.name})


def _compared(name: str, target: Target, device: Device | None, seed: int) -> Iterator[dict[str, object]]:
    dynamic, calls = _workload(name)
    schedule, kernel = _built(dynamic, target, default_schedules(dynamic, target))
    found = _artifacts(dynamic, target, schedule)
    for extents in calls:
        static = at_extent(dynamic, *extents)
        same, static_kernel = _built(static, target, [schedule, *default_schedules(static, target)])
        other = _artifacts(static, target, same)
        row: dict[str, object] = {
            "row": f"{name}-at-{'x'.join(map(str, extents))}",
            "sketch": schedule.sketch,
            "schedules": "one" if same == schedule else "own",
            "static_registers": _registers(other),
            "registers": _registers(found),
            "static_instructions": sum(other.instructions.values()),
            "instructions": sum(found.instructions.values()),
        }
        if device is not None:
            static_seconds, seconds = _seconds(device, static, [static_kernel, kernel.at_extent(*extents)], seed)
            row |= {"static_us": 1e6 * static_seconds, "us": 1e6 * seconds, "ratio": seconds / static_seconds}
        yield {**row, "schedule": schedule.to_json()}


def _workload(name: str) -> tuple[Workload, list[tuple[int, ...]]]:
    """Return a dynamic workload, and the extents of its calls."""
    if name in LENGTHS:
        parameters, representative, lengths = LENGTHS[name]
        if len(representative) == 1:
            return attention_of_lengths(parameters, sequence=representative[0]), list(lengths)
        return attention_of_lengths(parameters, *representative), list(lengths)
    operator, parameters, measured, rows = ROWS[name]
    workload = with_dynamic(OPERATORS[operator].workload(parameters), representative=measured)
    return workload, [(n,) for n in rows]


def _built(workload: Workload, target: Target, schedules: Iterable[Schedule]) -> tuple[Schedule, CompiledKernel]:
    """Return the first schedule that is legal and does not spill, with its kernel."""
    for schedule in schedules:
        with suppress(IllegalSchedule, ResourcesExceeded):
            return schedule, build(workload, target, schedule)
    raise IllegalSchedule(f"no default schedule fits {workload.outputs} on {target}", field="/workload")


def _artifacts(workload: Workload, target: Target, schedule: Schedule) -> Artifacts:
    backend = backend_for(target)
    return backend.artifacts(backend.emit(finish(lower(workload, target, schedule), target), target), target)


def _registers(found: Artifacts) -> int:
    return max((taken.registers for taken in found.resources.values()), default=0)


def _more(rows: list[dict[str, object]]) -> list[int]:
    """Return how many registers more the dynamic kernels have, where both have one schedule."""
    return [int(str(r["registers"])) - int(str(r["static_registers"])) for r in rows if r["schedules"] == "one"]


def _seconds(device: Device, workload: Workload, binaries: list[CompiledKernel], seed: int) -> list[float]:
    """Return the medians of interleaved samples on cold caches. Both must compute what the workload says."""
    rules = HarnessRules(TimingRules(), RemeasureRules(), 2 * int(device.info.hardware["l2_bytes"]), seed)
    harness = MeasurementHarness(device, workload, compute_reference(workload, seed), rules)
    for binary in binaries:
        verdict = harness.judge(binary)
        if verdict.failed is not None:
            raise RuntimeError(f"a kernel of {workload.outputs} is wrong: {verdict.failed}")
    report = harness.remeasure(binaries, lambda _: None)
    return [median(samples) for samples in report.samples]
