"""The node tests of ONNX, by the NumPy reference of graphs. Run as a program it counts all of them.

python -m tests.importers.onnx_nodes [STEP]
"""

import sys
from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.test.loader import load_model_tests

from tests.runtime.test_program import bound, run
from tilewright.core.errors import TilewrightError
from tilewright.graph.reference import graph_reference
from tilewright.importers.onnx.model import import_onnx
from tilewright.importers.weighted_graph import WeightedGraph

FIXED = {
    "Reshape", "Slice", "Pad", "Expand", "Tile", "Split", "Squeeze", "Unsqueeze", "ConstantOfShape", "Range", "Trilu",
    "Gather", "Dropout", "CumSum", "CumProd", "CenterCropPad", "OneHot", "TopK", "Resize", "Upsample",
    "ReverseSequence", "DFT", "STFT", "Col2Im",
}  # fmt: skip
"""Operators whose inputs after the first say shapes and places: in these tests their data count as known."""


@cache
def node_tests() -> list[Any]:
    return sorted(load_model_tests(kind="node"), key=lambda t: t.name)


def _array(a: Any) -> Any:
    if isinstance(a, onnx.TensorProto):
        a = numpy_helper.to_array(a)
    return np.asarray(a) if isinstance(a, np.generic) else a  # sequences stay what they are


def reference(found: WeightedGraph, arrays: dict[str, Any]) -> dict[str, Any]:
    return graph_reference(found.graph, arrays, decide_as_rounded=True)


def kernels(found: WeightedGraph, arrays: dict[str, Any]) -> dict[str, Any]:
    graph = found.graph
    outputs = run(bound(graph), graph, arrays)
    return dict(zip(graph.outputs, outputs, strict=True))


def outcome(test: Any, compute: Callable[[WeightedGraph, dict[str, Any]], dict[str, Any]] = reference) -> str:
    """``passed``, ``refused``, or ``wrong`` with what is wrong."""
    model = test.model
    given, expected = ([_array(a) for a in part] for part in test.data_sets[0])
    names = [i.name for i in model.graph.input]
    data = dict(zip(names, given, strict=False))
    known: set[str] = set()
    for node in model.graph.node:
        if node.op_type in FIXED or node.op_type.startswith("Reduce"):
            known.update(n for n in node.input[1:] if n in data)
        if node.op_type in ("ConstantOfShape", "Range"):
            known.update(n for n in node.input if n in data)
    try:
        found = import_onnx(model, values={n: data[n] for n in known})
    except TilewrightError as error:
        return f"refused: {error.message}"
    arrays = {**{value: data[name] for name, value in found.inputs.items()}, **found.weights}
    results = compute(found, arrays)
    for output, wanted in zip(model.graph.output, expected, strict=True):
        ours = results[found.outputs[output.name]]
        if ours.shape != wanted.shape:
            return f"wrong: shape {ours.shape} for {wanted.shape}"
        unit = {"float16": 2.0**-10, "bfloat16": 2.0**-7}.get(wanted.dtype.name, 5e-7)  # of the result, and within
        relative, absolute = max(test.rtol, 2 * unit), max(test.atol, 2 * unit)
        a, b = ours.astype(wanted.dtype).astype(np.float64), wanted.astype(np.float64)
        if not np.allclose(a, b, relative, absolute, equal_nan=True):
            return f"wrong: {output.name}"
    return "passed"


def main() -> None:
    step = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    compute = kernels if "kernels" in sys.argv else reference
    counts: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    for test in node_tests()[::step]:
        found = outcome(test, compute)
        counts[found.split(":")[0]] += 1
        if found.startswith("wrong"):
            print(test.name, found)
        elif found != "passed":
            reasons[found[:75]] += 1
    for reason, count in reasons.most_common(40):
        print(f"{count:5} {reason}")
    print(dict(counts), "of", sum(counts.values()))


if __name__ == "__main__":
    main()
