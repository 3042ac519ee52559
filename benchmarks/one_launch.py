"""``python -m benchmarks.one_launch CASE SEED``: one kernel, launched once on random data.

CASE is JSON: ``{workload, schedule}``.
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
from tilewright.te.json import workload_from_json, workload_to_json
from tilewright.te.operators import OPERATORS
from tilewright.te.parse import parse_workload
from tilewright.te.workload import Workload

_IMAGE: Mapping[str, object] = {"batch": 2, "height": 14, "width": 17, "channels": 24, "filters": 24, "groups": 24}
_FEW_FILTERS = {"batch": 1, "channels": 32, "height": 32, "width": 32, "filters": 3}
_FEW_CHANNELS = {"batch": 1, "channels": 3, "height": 32, "width": 40, "filters": 32, "stride": 2}
_VOLUME = {"batch": 1, "channels": 16, "depth": 6, "height": 16, "width": 24, "filters": 32, "kernel_d": 3}
FURTHER: tuple[tuple[str, Mapping[str, object]], ...] = (
    ("log_softmax", {"rows": 6, "columns": 140003, "dtype": "float16"}),
    ("conv2d", {**_IMAGE, "kernel_h": 5, "kernel_w": 5, "padding": 2, "layout": "NHWC", "dtype": "float16"}),
    ("conv2d", {**_IMAGE, "kernel_h": 5, "kernel_w": 5, "padding": 2, "dtype": "float16"}),
    ("conv2d", {**_FEW_FILTERS, "kernel_h": 3, "kernel_w": 3, "padding": 1, "layout": "NHWC", "dtype": "float16"}),
    ("conv2d", {**_FEW_CHANNELS, "kernel_h": 3, "kernel_w": 3, "padding": 1, "layout": "NHWC", "dtype": "float16"}),
    ("conv3d", {**_VOLUME, "kernel_h": 3, "kernel_w": 3, "padding": 1, "layout": "NDHWC", "dtype": "float16"}),
    ("matmul", {"m": 64, "n": 64, "k": 8192, "dtype": "float16", "transpose_a": True}),
)
"""Rows so long that all CTAs of a device share them, a depthwise convolution for matrix units, one with channels first,
ones with few filters, with few channels and of a volume, and a product with long sums. No example of an operator is
like them."""


PACKED_WEIGHTS = (
    "A: float16[12, 512]\nW: uint8[96, 256]\nS: float16[96, 8]\n"
    "D[j, k < 512] = float16((float32(bitand(shr(int32(W[j, k // 2]), int32(4 * (k % 2))), 15)) - 8) "
    "* float32(S[j, k // 64]))\n"
    "C[i, j] = sum over k < 512 of float32(A[i, k]) * float32(D[j, k])"
)
"""A product with integers of 4 bits, 64 of which have a scale."""
STORED_KEYS = (
    "Q: float16[3, 4, 64]\nK: int8[3, 600, 64]\nV: int8[3, 600, 64]\n"
    "S[h, q, k < 600] = sum over c < 64 of float32(Q[h, q, c]) * float32(K[h, k, c])\n"
    "M[h, q] = max over k < 600 of S[h, q, k] * 0.01\n"
    "E[h, q, k] = exp(S[h, q, k] * 0.01 - M[h, q])\nZ[h, q] = sum over k < 600 of E[h, q, k]\n"
    "A[h, q, d < 64] = sum over k < 600 of float32(float16(E[h, q, k])) * float32(V[h, k, d])\n"
    "Y[h, q, d] = float16(A[h, q, d] / Z[h, q])"
)
"""Attention of a few queries over a cache of 8 bits."""
EXPRESSIONS = (
    """A: float16[300, 72]
B: float16[520, 72]
D[i < 300, j < 520] = sum over k < 72 of float32(A[i, k]) * float32(B[j, k])
M[i] = max over j < 520 of D[i, j]""",
    """A: float16[16, 16, 32]
B: float16[18, 18, 32]
O[y, x, v < 3, u < 3] = sum over c < 32 of float32(A[y, x, c]) * float32(B[y + v, x + u, c])""",
    """A: float16[72, 200, 3]
B: float16[3, 136, 72]
S[i, j, b] = sum over k < 72 of float32(A[k, i, b]) * float32(B[b, j, k])
C[i, j, b] = float16(S[i, j, b])""",
    """D: float16[2, 8, 8, 64]
I: float16[2, 10, 10, 64]
G[k, r < 3, s < 3, c] = sum over n < 2, y < 8, x < 8 of float32(D[n, y, x, k]) * float32(I[n, y + r, x + s, c])""",
    """X: float32[6, 4000]
H: float32[129]
Y[b, i < 3872] = sum over k < 129 of H[k] * X[b, i + k]""",
    PACKED_WEIGHTS,
    STORED_KEYS,
)
"""No operator is any of these: a product whose rows are reduced, a correlation of pixels, a product whose batch
comes last, a gradient towards filters, a filter of many taps, and operands that are computed in registers."""


def kernels_of(target: Target) -> tuple[str, ...]:
    """Return the sketches that write kernels for ``target`` of some example."""
    return tuple(name for name in SKETCHES if any(SKETCHES[name].matches(w, target) for w in _examples()))


def case_of(sketch: str, target: Target, seed: int) -> tuple[Workload, Schedule]:
    """Return a random setting for the largest example that the sketch matches."""
    largest = sorted(_examples(), key=lambda workload: -sum(b.elements for b in workload.inputs))
    workload = next(w for w in largest if SKETCHES[sketch].matches(w, target))
    space = SKETCHES[sketch].space(workload, target, seed=seed)
    row = int(stream(seed, "one launch", sketch).integers(0, len(space)))
    return workload, space.schedule(row)


def case_to_json(workload: Workload, schedule: Schedule) -> str:
    """Return what this program takes."""
    return json.dumps({"workload": workload_to_json(workload), "schedule": schedule.to_json()})


@cache
def _examples() -> tuple[Workload, ...]:
    cases = [(name, case) for name, operator in OPERATORS.items() for case in operator.cases()]
    of_operators = (OPERATORS[name].workload(case) for name, case in (*cases, *FURTHER))
    return (*of_operators, *map(parse_workload, EXPRESSIONS))


def main() -> None:
    case, seed = json.loads(sys.argv[1]), int(sys.argv[2])
    device = open_device("cuda")
    workload = workload_from_json(case["workload"])
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
    print("launched", workload.outputs)


if __name__ == "__main__":
    main()
