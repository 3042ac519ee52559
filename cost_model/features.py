"""Feature columns: one table with name, unit and meaning, and a version that every trained model carries.

A row describes one schedule of one workload on one device. Nothing is lowered for it: the columns come from the
workload, the device and what the sketch derives from its knobs. Columns that do not apply are NaN, which the
models take as missing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..core.schedule import KnobValue
from ..core.target import DeviceInfo
from ..ir.expr import Select, Unary, walk
from ..schedule.sketches import SKETCHES
from ..schedule.space.knob import Knob
from ..schedule.space.space import Space
from ..te.cost import flops, minimum_bytes
from ..te.workload import Workload

FEATURE_VERSION = 2
"""Grows whenever a column changes its place or meaning; models of another version are not loaded."""

KNOB_COLUMNS = 24
"""Raw knob settings beyond this many are left out (the derived columns still see them)."""


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
)

PRIOR_COLUMNS: tuple[Column, ...] = (
    Column("prior.nanoseconds", "log2 ns", "the time that the sketch's analytic prior estimates for the device"),
)

SKETCH_COLUMNS: tuple[Column, ...] = tuple(
    Column(f"{sketch.name}.{q.name}", q.unit, q.meaning) for sketch in SKETCHES.values() for q in sketch.quantities
)

COLUMNS: tuple[Column, ...] = (
    *WORKLOAD_COLUMNS,
    *DEVICE_COLUMNS,
    *PRIOR_COLUMNS,
    *SKETCH_COLUMNS,
    *(
        Column(f"knob.{i}", "log2", f"setting of knob {i}: its value if a number, else its place")
        for i in range(KNOB_COLUMNS)
    ),
)


def space_features(space: Space, workload: Workload | None, device: DeviceInfo | None) -> NDArray[np.float32]:
    """float32[n, len(COLUMNS)] for every row of a space. ``workload`` and ``device`` are None for recorded spaces."""
    knobs = [_knob_numbers(k)[space.codes[:, i]] for i, k in enumerate(space.knobs[:KNOB_COLUMNS])]
    return _assemble(len(space), space.sketch, space.quantities, space.prior_seconds, knobs, workload, device)


def schedule_features(
    sketch: str,
    quantities: Mapping[str, NDArray[np.float32]],
    prior_seconds: NDArray[np.float32] | None,
    knobs: Sequence[Sequence[tuple[str, KnobValue]]],
    workload: Workload,
    device: DeviceInfo,
) -> NDArray[np.float32]:
    """float32[n, len(COLUMNS)] for n given schedules of one sketch.

    ``quantities`` are as from ``Sketch.derive``, ``prior_seconds`` as from ``Sketch.prior_seconds``, or None.

    String-valued knobs are NaN here: their places belong to a space, not to a schedule.
    """
    width = min(KNOB_COLUMNS, max((len(k) for k in knobs), default=0))
    table = np.full((width, len(knobs)), np.nan, dtype=np.float32)
    for row, setting in enumerate(knobs):
        for column, (_, value) in enumerate(setting[:width]):
            if isinstance(value, int):
                table[column, row] = np.log2(1.0 + abs(value))
    return _assemble(len(knobs), sketch, quantities, prior_seconds, list(table), workload, device)


def workload_features(workload: Workload) -> NDArray[np.float32]:
    """float32[len(WORKLOAD_COLUMNS)]."""
    operations, moved = float(flops(workload)), float(minimum_bytes(workload))
    nodes = [node for stage in workload.stages for node in walk(stage.body)]
    points = max(stage.tensor.elements for stage in workload.stages)
    reduction = max(int(np.prod([a.extent for a in stage.reduce_axes], dtype=np.float64)) for stage in workload.stages)
    last = workload.output_buffers[-1].shape
    return np.array(
        [
            np.log2(1 + operations),
            np.log2(1 + moved),
            np.log2(1 + operations / max(moved, 1.0)),
            np.log2(1 + points),
            np.log2(reduction),
            len(workload.stages),
            len(workload.inputs),
            len(workload.outputs),
            (workload.inputs or workload.output_buffers)[0].dtype.bytes,
            np.log2(1 + (last[-1] if last else 1)),
            sum(isinstance(n, Unary) and n.op.value in _TRANSCENDENTAL for n in nodes),
            sum(isinstance(n, Select) for n in nodes),
        ],
        dtype=np.float32,
    )


_TRANSCENDENTAL = frozenset({"exp", "log", "tanh", "erf", "sin", "cos"})


def _device_features(device: DeviceInfo) -> NDArray[np.float32]:
    hardware = device.hardware
    return np.array(
        [
            device.target.threads,
            device.target.vector_bytes,
            *(np.log2(1 + hardware.get(f"{level}_bytes", np.nan)) for level in ("l1d", "l2", "l3")),
        ],
        dtype=np.float32,
    )


def _knob_numbers(knob: Knob) -> NDArray[np.float32]:
    """float32[values]: log2(1 + |v|) of numeric settings, the place of textual ones."""
    numbers = [np.log2(1.0 + abs(v)) if isinstance(v, int) else float(place) for place, v in enumerate(knob.values)]
    return np.array(numbers, dtype=np.float32)


def _assemble(
    rows: int,
    sketch: str,
    quantities: Mapping[str, NDArray[np.float32]],
    prior_seconds: NDArray[np.float32] | None,
    knobs: Sequence[NDArray[np.float32]],
    workload: Workload | None,
    device: DeviceInfo | None,
) -> NDArray[np.float32]:
    out = np.full((rows, len(COLUMNS)), np.nan, dtype=np.float32)
    if workload is not None:
        out[:, : len(WORKLOAD_COLUMNS)] = workload_features(workload)
    start = len(WORKLOAD_COLUMNS)
    if device is not None:
        out[:, start : start + len(DEVICE_COLUMNS)] = _device_features(device)
    start += len(DEVICE_COLUMNS)
    if prior_seconds is not None:
        out[:, start] = np.log2(1.0 + 1e9 * prior_seconds)
    start += len(PRIOR_COLUMNS)
    for place, column in enumerate(SKETCH_COLUMNS):
        owner, _, quantity = column.name.partition(".")
        if owner == sketch and quantity in quantities:
            values = quantities[quantity]
            out[:, start + place] = values if column.unit == "fraction" else np.log2(1.0 + np.maximum(values, 0.0))
    start += len(SKETCH_COLUMNS)
    for place, numbers in enumerate(knobs):
        out[:, start + place] = numbers
    return out
