"""``python -m benchmarks.one_launch CASE SEED``: one kernel, launched once on random data.

CASE is JSON: ``{operator, parameters, schedule}``.
"""

import json
import sys
from collections.abc import Mapping
from functools import cache

import numpy as np

from tilewright.codegen import lowering
from tilewright.core.schedule import Schedule
from tilewright.core.streams import stream
from tilewright.core.target import Target
from tilewright.runtime.devices import host_target, open_device
from tilewright.schedule.sketches import SKETCHES
from tilewright.te.data import random_inputs
from tilewright.te.operators import OPERATORS
from tilewright.te.workload import Workload

_IMAGE: Mapping[str, object] = {"batch": 2, "height": 14, "width": 17, "channels": 24, "filters": 24, "groups": 24}
_FEW_FILTERS = {"batch": 1, "channels": 32, "height": 32, "width": 32, "filters": 3}
FURTHER: tuple[tuple[str, Mapping[str, object]], ...] = (
    ("log_softmax", {"rows": 6, "columns": 140003, "dtype": "float16"}),
    ("conv2d", {**_IMAGE, "kernel_h": 5, "kernel_w": 5, "padding": 2, "layout": "NHWC", "dtype": "float16"}),
    ("conv2d", {**_IMAGE, "kernel_h": 5, "kernel_w": 5, "padding": 2, "dtype": "float16"}),
    ("conv2d", {**_FEW_FILTERS, "kernel_h": 3, "kernel_w": 3, "padding": 1, "layout": "NHWC", "dtype": "float16"}),
    ("matmul", {"m": 64, "n": 64, "k": 8192, "dtype": "float16", "transpose_a": True}),
)
"""Rows so long that all CTAs of a device share them, a depthwise convolution for matrix units, one with channels first,
one with few filters, and a product with long sums. No example of an operator is like them."""


def kernels_of(target: Target) -> tuple[str, ...]:
    """Return the sketches that write kernels for ``target`` of some operator's example."""
    return tuple(name for name in SKETCHES if any(SKETCHES[name].matches(w, target) for *_, w in _examples()))


def case_of(sketch: str, target: Target, seed: int) -> tuple[str, Mapping[str, object], Schedule]:
    """(operator, parameters, schedule): a random setting for the largest example that the sketch matches."""
    largest = sorted(_examples(), key=lambda example: -sum(b.elements for b in example[2].inputs))
    name, parameters, workload = next(e for e in largest if SKETCHES[sketch].matches(e[2], target))
    space = SKETCHES[sketch].space(workload, target, seed=seed)
    row = int(stream(seed, "one launch", sketch).integers(0, len(space)))
    return name, parameters, space.schedule(row)


def case_to_json(operator: str, parameters: Mapping[str, object], schedule: Schedule) -> str:
    """Return what this program takes."""
    return json.dumps({"operator": operator, "parameters": dict(parameters), "schedule": schedule.to_json()})


@cache
def _examples() -> tuple[tuple[str, Mapping[str, object], Workload], ...]:
    cases = [(name, case) for name, operator in OPERATORS.items() for case in operator.cases()]
    return tuple((name, case, OPERATORS[name].workload(case)) for name, case in (*cases, *FURTHER))


def main() -> None:
    case, seed = json.loads(sys.argv[1]), int(sys.argv[2])
    device = open_device("cuda")
    workload = OPERATORS[case["operator"]].workload(case["parameters"])
    binary = lowering.build(workload, host_target("cuda"), Schedule.from_json(case["schedule"]))
    kernel = device.load(binary)
    inputs = random_inputs(workload, seed)
    memories = []
    for parameter in binary.parameters:
        memory = device.allocate(parameter.bytes)
        if parameter.role == "input":
            memory.write(np.ascontiguousarray(inputs[parameter.name]).reshape(-1).view(np.uint8))
        memories.append(memory)
    kernel.launch(memories)
    print("launched", case["operator"])


if __name__ == "__main__":
    main()
