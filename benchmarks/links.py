"""How many lines of six kernels are linked to the layer above: ``python -m benchmarks links``.

The bar: at least 90 % of the lines of the source that are not blank come from a statement of the IR. No GPU is needed.
``--rows GLOB`` picks kernels by name.
"""

from collections.abc import Mapping
from fnmatch import fnmatch

from benchmarks.suite import Options, Result
from tilewright.codegen.layers import code_layers, linked_share
from tilewright.codegen.lowering import lowering_stages
from tilewright.core.target import Target
from tilewright.schedule.sketches import sketches_for
from tilewright.te.operators import OPERATORS

CPU = Target("llvm", "x86-64", ("avx2", "fma"), 2, 32)
H200 = Target("cuda", "sm_90a", (), 132, 16)
KERNELS: Mapping[str, tuple[str, Mapping[str, object], Target]] = {
    "cpu gemm": ("matmul", {"m": 512, "n": 512, "k": 512}, CPU),
    "softmax": ("softmax", {"rows": 4096, "columns": 1024}, CPU),
    "gpu gemm": ("matmul", {"m": 4096, "n": 4096, "k": 4096, "dtype": "float16"}, H200),
    "reduction": ("reduce", {"shape": [4096, 4096], "axes": [1], "dtype": "float16"}, H200),
    "transpose": ("transpose", {"shape": [4096, 4096], "axes": [1, 0], "dtype": "float16"}, H200),
    "map": ("elementwise", {"shape": [4096, 4096], "functions": ["gelu_erf"]}, H200),
}
LEAST_SHARE = 0.9


def run(options: Options) -> Result:
    rows = []
    for name, (operator, parameters, target) in KERNELS.items():
        if not fnmatch(name, options.rows):
            continue
        workload = OPERATORS[operator].workload(dict(parameters))
        schedule = sketches_for(workload, target)[0].space(workload, target, limit=64).schedule(0)
        layers = code_layers(workload, lowering_stages(workload, target, schedule))
        shares = {layer.title: linked_share(layer) for layer in layers[1:]}
        source = next(layer for layer in layers if layer.title == "source")
        lines = sum(bool(line.strip()) for line in source.text.splitlines())
        rows.append({"row": name, "sketch": schedule.sketch, "source_lines": lines, **shares})
    least = min(float(str(row["source"])) for row in rows)
    return Result(tuple(rows), {"least_share_of_source": least, "bar": LEAST_SHARE}, least >= LEAST_SHARE)
