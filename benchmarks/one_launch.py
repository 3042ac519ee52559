"""``python -m benchmarks.one_launch CASE SEED``: one kernel, launched once on random data.

CASE is JSON: ``{operator, parameters, schedule}``.
"""

import json
import sys
from collections.abc import Mapping

import numpy as np

from tilewright.codegen import lowering
from tilewright.core.schedule import Schedule
from tilewright.core.streams import stream
from tilewright.core.target import Target
from tilewright.runtime.devices import host_target, open_device
from tilewright.schedule.sketches import SKETCHES
from tilewright.te.data import random_inputs
from tilewright.te.operators import OPERATORS


def kernels_of(target: Target) -> tuple[str, ...]:
    """The sketches that write kernels for ``target`` of some operator's example."""
    return tuple(name for name in SKETCHES if _cases(name, target))


def case_of(sketch: str, target: Target, seed: int) -> tuple[str, Mapping[str, object], Schedule]:
    """(operator, parameters, schedule): a random setting for the largest example that the sketch matches."""
    name, parameters = max(_cases(sketch, target), key=lambda case: _elements(*case))
    space = SKETCHES[sketch].space(OPERATORS[name].workload(parameters), target, seed=seed)
    row = int(stream(seed, "one launch", sketch).integers(0, len(space)))
    return name, parameters, space.schedule(row)


def case_to_json(operator: str, parameters: Mapping[str, object], schedule: Schedule) -> str:
    """What this program takes."""
    return json.dumps({"operator": operator, "parameters": dict(parameters), "schedule": schedule.to_json()})


def _cases(sketch: str, target: Target) -> list[tuple[str, Mapping[str, object]]]:
    found: list[tuple[str, Mapping[str, object]]] = []
    for name, operator in OPERATORS.items():
        for case in operator.cases():
            if SKETCHES[sketch].matches(operator.workload(case), target):
                found.append((name, case))
    return found


def _elements(name: str, parameters: Mapping[str, object]) -> int:
    return sum(b.elements for b in OPERATORS[name].workload(parameters).inputs)


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
