"""Feature columns: one table with name, unit and meaning, and a version that every trained model carries.

A row describes one schedule of one workload on one device. Nothing is lowered for it: the columns come from the
workload, the device and what the sketch derives from its knobs. Columns that do not apply are NaN, which the
models take as missing. A knob or a derived quantity has one column by its name, whichever sketch has it: what has the
same name means the same. Texts have the same number wherever they come from.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from ..codegen.llvm.architectures import ARCHITECTURES as PROCESSORS
from ..core.dtypes import DType
from ..core.precision import PRECISIONS
from ..core.schedule import KnobValue
from ..core.target import DeviceInfo
from ..ir.expr import Select, Unary, walk
from ..schedule.gpu.peaks import ARCHITECTURES as GPU_ARCHITECTURES
from ..schedule.sketches import SKETCHES
from ..schedule.space.space import Space
from ..schedule.tensor_peaks import tensor_flops_per_second
from ..te.cost import flops, minimum_bytes
from ..te.workload import Workload
from .knob_names import KNOBS

ARCHITECTURES: tuple[str, ...] = (*PROCESSORS, *GPU_ARCHITECTURES)

UNLISTED_KNOBS = 24
"""So many knobs that ``KNOBS`` does not list have a column, in the order of their names: those of other tuners, and
of the steps of chains of contractions."""


@dataclass(frozen=True, slots=True)
class Column:
    """One feature: ``log2(1 + x)`` of the quantity unless ``unit`` says ``fraction`` or ``log2``."""

    name: str
    unit: str
    meaning: str


WORKLOAD_COLUMNS: tuple[Column, ...] = (
    Column("workload.operations", "log2 operations", "arithmetic operations of one run"),
    Column("workload.bytes", "log2 bytes", "inputs read once and outputs written once"),
    Column("workload.intensity", "log2 operations/byte", "the two above divided"),
    Column("workload.points", "log2 elements", "elements of the largest stage"),
    Column("workload.reduction", "log2 iterations", "iterations of the longest reduction"),
    Column("workload.stages", "stages", "computed tensors"),
    Column("workload.inputs", "tensors", "input tensors"),
    Column("workload.outputs", "tensors", "output tensors"),
    Column("workload.element_bytes", "bytes", "element size of the first input"),
    Column("workload.output_bytes", "bytes", "element size of the first output"),
    Column("workload.is_float", "fraction", "1 where the first input has floats, else 0"),
    Column("workload.is_bfloat16", "fraction", "1 where the first input has bfloat16, else 0"),
    Column("workload.precision", "number", "place of the precision among those there are"),
    Column("workload.innermost", "log2 elements", "extent of the last output's last dimension"),
    Column("workload.transcendental", "nodes", "exp, tanh, erf, … in the expressions"),
    Column("workload.selects", "nodes", "selects in the expressions"),
)

DEVICE_COLUMNS: tuple[Column, ...] = (
    Column("device.threads", "threads", "native threads a kernel may use"),
    Column("device.vector_bytes", "bytes", "widest vector register"),
    Column("device.l1_bytes", "log2 bytes", "first-level data cache of a core"),
    Column("device.l2_bytes", "log2 bytes", "second-level cache of a core"),
    Column("device.l3_bytes", "log2 bytes", "last-level cache"),
    Column("device.float32_flops", "log2 operations/s", "measured peak of float32 arithmetic"),
    Column("device.tensor_flops", "log2 operations/s", "peak of the best matrix instructions for the first input"),
    Column("device.memory_rate", "log2 bytes/s", "measured peak of copying"),
    Column("device.read_rate", "log2 bytes/s", "measured peak of reading"),
    Column("device.launch_seconds", "log2 s", "measured time of an empty kernel"),
    *(Column(f"device.is_{name}", "fraction", f"1 on {name}, else 0") for name in ARCHITECTURES),
)

PRIOR = Column("prior.nanoseconds", "log2 ns", "the time that the sketch's analytic prior estimates for the device")

IDENTITY_COLUMNS: tuple[Column, ...] = tuple(
    Column(f"sketch.{name}", "fraction", f"1 for schedules of {name}, else 0") for name in SKETCHES
)

_QUANTITIES = {q.name: q for sketch in SKETCHES.values() for q in sketch.quantities}
QUANTITY_COLUMNS: tuple[Column, ...] = tuple(
    Column(f"quantity.{q.name}", q.unit, q.meaning) for q in _QUANTITIES.values()
)

KNOB_COLUMNS: tuple[Column, ...] = (
    *(
        Column(f"knob.{name}", "log2", f"the knob {name}: its value if a number, else a number for its text")
        for name in KNOBS
    ),
    *(
        Column(f"knob.unlisted.{i}", "log2", f"number {i} of the knobs without a column of their name")
        for i in range(UNLISTED_KNOBS)
    ),
)

COLUMNS: tuple[Column, ...] = (
    *WORKLOAD_COLUMNS,
    *DEVICE_COLUMNS,
    PRIOR,
    *IDENTITY_COLUMNS,
    *QUANTITY_COLUMNS,
    *KNOB_COLUMNS,
)
PLACES: Mapping[str, int] = {column.name: place for place, column in enumerate(COLUMNS)}
"""Name of a column -> its place."""


def space_features(space: Space, workload: Workload | None, device: DeviceInfo | None) -> NDArray[np.float32]:
    """Return the features of every row of a space, float32[n, len(COLUMNS)]. ``workload`` and ``device`` are
    None for recorded spaces."""
    knobs = {
        knob.name: np.array([_knob_number(v) for v in knob.values], np.float32)[space.codes[:, i]]
        for i, knob in enumerate(space.knobs)
    }
    return _assemble(len(space), space.sketch, space.quantities, space.prior_seconds, knobs, workload, device)


def schedule_features(
    sketch: str,
    quantities: Mapping[str, NDArray[np.float32]],
    prior_seconds: NDArray[np.float32] | None,
    knobs: Sequence[Sequence[tuple[str, KnobValue]]],
    workload: Workload,
    device: DeviceInfo,
) -> NDArray[np.float32]:
    """Return the features of schedules of one sketch, float32[n, len(COLUMNS)]. They are the same as in their space.

    ``quantities`` are as from ``Sketch.derive``, ``prior_seconds`` as from ``Sketch.prior_seconds``, or None.
    """
    table: dict[str, NDArray[np.float32]] = {}
    for row, setting in enumerate(knobs):
        for name, value in setting:
            if name not in table:
                table[name] = np.full(len(knobs), np.nan, np.float32)
            table[name][row] = _knob_number(value)
    return _assemble(len(knobs), sketch, quantities, prior_seconds, table, workload, device)


def workload_features(workload: Workload) -> NDArray[np.float32]:
    """Return the features of a workload, float32[len(WORKLOAD_COLUMNS)]. Those of a Triton kernel, of which nothing is
    known, are NaN."""
    if not workload.stages:
        return np.full(len(WORKLOAD_COLUMNS), np.nan, np.float32)
    operations, moved = float(flops(workload)), float(minimum_bytes(workload))
    nodes = [node for stage in workload.stages for node in walk(stage.body)]
    points = max(stage.tensor.elements for stage in workload.stages)
    reduction = max(int(np.prod([a.extent for a in stage.reduce_axes], dtype=np.float64)) for stage in workload.stages)
    last = workload.output_buffers[-1].shape
    first = _first_dtype(workload)
    return np.array(
        [
            *cost_features(operations, moved),
            np.log2(1 + points),
            np.log2(reduction),
            len(workload.stages),
            len(workload.inputs),
            len(workload.outputs),
            first.bytes,
            workload.output_buffers[0].dtype.bytes,
            first.is_float,
            first.name == "bfloat16",
            list(PRECISIONS).index(workload.precision),
            np.log2(1 + (last[-1] if last else 1)),
            sum(isinstance(n, Unary) and n.op.value in _TRANSCENDENTAL for n in nodes),
            sum(isinstance(n, Select) for n in nodes),
        ],
        dtype=np.float32,
    )


def cost_features(operations: float, moved: float) -> NDArray[np.float64]:
    """Return the features that say what a workload costs, float64[3]: operations, bytes, and operations for a byte."""
    return np.log2([1 + operations, 1 + moved, 1 + operations / max(moved, 1.0)])


_TRANSCENDENTAL = frozenset({"exp", "log", "tanh", "erf", "sin", "cos"})


def _first_dtype(workload: Workload) -> DType:
    return (workload.inputs or workload.output_buffers)[0].dtype


def _device_features(device: DeviceInfo, workload: Workload | None) -> NDArray[np.float32]:
    """float32[len(DEVICE_COLUMNS)]."""
    hardware, measured = device.hardware, device.measured
    tensor = None if workload is None else tensor_flops_per_second(device.target, measured, _first_dtype(workload))
    rates = (
        measured.get("peak_float32_flops_per_second"),
        tensor,
        measured.get("copy_bytes_per_second"),
        measured.get("read_bytes_per_second"),
        measured.get("launch_seconds"),
    )
    return np.array(
        [
            device.target.threads,
            device.target.vector_bytes,
            *(np.log2(1 + hardware.get(f"{level}_bytes", np.nan)) for level in ("l1d", "l2", "l3")),
            *(np.log2(rate) if rate else np.nan for rate in rates),
            *(device.target.arch == name for name in ARCHITECTURES),
        ],
        dtype=np.float32,
    )


def _knob_number(value: KnobValue) -> float:
    """log2(1 + |v|) of a number. A text has a number that depends on it alone, so that a record has the same one as the
    pool: its checksum, cut to ten bits."""
    return float(np.log2(1.0 + abs(value))) if isinstance(value, int) else float(crc32(value.encode()) % 1024)


def _knob_places(names: Iterable[str]) -> dict[str, int]:
    """Name of a knob -> its column. Of unlisted knobs the first ``UNLISTED_KNOBS`` by name have one."""
    unlisted = sorted(name for name in names if f"knob.{name}" not in PLACES)[:UNLISTED_KNOBS]
    places = {name: PLACES[f"knob.unlisted.{i}"] for i, name in enumerate(unlisted)}
    return {**places, **{name: PLACES[f"knob.{name}"] for name in names if f"knob.{name}" in PLACES}}


def _assemble(
    rows: int,
    sketch: str,
    quantities: Mapping[str, NDArray[np.float32]],
    prior_seconds: NDArray[np.float32] | None,
    knobs: Mapping[str, NDArray[np.float32]],
    workload: Workload | None,
    device: DeviceInfo | None,
) -> NDArray[np.float32]:
    out = np.full((rows, len(COLUMNS)), np.nan, dtype=np.float32)
    if workload is not None:
        out[:, : len(WORKLOAD_COLUMNS)] = workload_features(workload)
    if device is not None:
        start = len(WORKLOAD_COLUMNS)
        out[:, start : start + len(DEVICE_COLUMNS)] = _device_features(device, workload)
    if prior_seconds is not None:
        out[:, PLACES[PRIOR.name]] = np.log2(1.0 + 1e9 * prior_seconds)
    if sketch in SKETCHES:
        start = PLACES[IDENTITY_COLUMNS[0].name]
        out[:, start : start + len(IDENTITY_COLUMNS)] = [name == sketch for name in SKETCHES]
    for name, values in quantities.items():
        column = PLACES.get(f"quantity.{name}")
        if column is not None:
            in_log = COLUMNS[column].unit != "fraction"
            out[:, column] = np.log2(1.0 + np.maximum(values, 0.0)) if in_log else values
    for name, column in _knob_places(knobs).items():
        out[:, column] = knobs[name]
    return out
