"""Makes the pages of operators, of knobs and of the HTTP API from the code, while MkDocs builds the site."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from tilewright.api.openapi import document_text
from tilewright.core.target import Target
from tilewright.schedule.sketch import Sketch
from tilewright.schedule.sketches import SKETCHES
from tilewright.te.operators import OPERATORS
from tilewright.te.parse import parse_workload
from tilewright.te.workload import Workload

DOTS = ("avx512f", "avx512bw", "avx512vl", "avx512bf16", "avx512vnni")
TARGETS = (
    Target("llvm", "x86-64", DOTS, 16, 64),
    Target("llvm", "x86-64", (*DOTS, "amx-tile", "amx-bf16", "amx-int8"), 16, 64),
    Target("cuda", "sm_90a", (), 132, 16),
    Target("cuda", "sm_100a", (), 148, 16),
    Target("amdgpu", "gfx942", (), 304, 16),
)
"""Targets for which sketches of each kind write kernels."""
LARGER: tuple[tuple[str, Mapping[str, object]], ...] = (
    ("matmul", {"m": 1, "n": 768, "k": 1024}),
    ("linear", {"rows": 4, "inputs": 1024, "outputs": 512, "dtype": "float16"}),
    ("matmul", {"m": 256, "n": 256, "k": 256, "dtype": "bfloat16"}),
    ("linear", {"rows": 16, "inputs": 1024, "outputs": 512, "dtype": "float16"}),
    ("mlp", {"rows": 32, "width": 128, "layers": 3, "dtype": "float16"}),
    ("softmax", {"rows": 16, "columns": 1048576, "dtype": "float16"}),
    ("matmul", {"m": 64, "n": 64, "k": 65536, "dtype": "float16", "transpose_a": True}),
    (
        "conv2d",
        {
            **{"batch": 1, "height": 56, "width": 56, "channels": 64, "filters": 64, "layout": "NHWC"},
            **{"kernel_h": 3, "kernel_w": 3, "padding": 1},
        },
    ),
    (
        "conv2d",
        {
            **{"batch": 1, "height": 28, "width": 28, "channels": 96, "filters": 96, "groups": 96, "layout": "NHWC"},
            **{"kernel_h": 7, "kernel_w": 7, "padding": 3, "dtype": "float16"},
        },
    ),
    (
        "conv2d",
        {
            **{"batch": 2, "height": 28, "width": 28, "channels": 96, "filters": 96, "groups": 96},
            **{"kernel_h": 7, "kernel_w": 7, "padding": 3, "dtype": "float16"},
        },
    ),
    (
        "conv2d",
        {
            **{"batch": 1, "height": 64, "width": 64, "channels": 64, "filters": 3, "layout": "NHWC"},
            **{"kernel_h": 3, "kernel_w": 3, "padding": 1, "dtype": "float16"},
        },
    ),
)
"""Examples of sketches that take none of the small ones of operators."""
EXPRESSIONS: tuple[tuple[str, ...], ...] = (
    (
        "A: float16[512, 64]",
        "B: float16[1024, 64]",
        "D[i, j] = sum over k < 64 of float32(A[i, k]) * float32(B[j, k])",
        "M[i] = argmax over j < 1024 of D[i, j]",
    ),
    (
        "A: float16[1, 32, 32, 64]",
        "B: float16[1, 40, 40, 64]",
        "O[n, y, x, v < 9, u < 9] = sum over c < 64 of float32(A[n, y, x, c]) * float32(B[n, y + v, x + u, c])",
    ),
    (
        "A: float16[64, 512, 16]",
        "B: float16[16, 512, 64]",
        "S[i, j, b] = sum over k < 64 of float32(A[k, i, b]) * float32(B[b, j, k])",
        "C[i, j, b] = float16(S[i, j, b])",
    ),
    (
        "D: float16[8, 28, 28, 128]",
        "I: float16[8, 30, 30, 64]",
        "G[k, r < 3, s < 3, c] = sum over n < 8, y < 28, x < 28 of "
        "float32(D[n, y, x, k]) * float32(I[n, y + r, x + s, c])",
    ),
    (
        "X: float16[32, 400000]",
        "H: float16[1000]",
        "Y[b, i < 399001] = sum over k < 1000 of float32(H[k]) * float32(X[b, i + k])",
    ),
    (
        "V: float32[2000000]",
        "P: int32[50001]",
        "Y[r < 50000] = sum over e < 2000000 of select(e >= int64(P[r]) and e < int64(P[r + 1]), V[e], 0.0)",
    ),
    (
        "A: float16[8, 4096]",
        "W: int8[4096, 4096]",
        "S: float16[4096, 32]",
        "C[i, j < 4096] = sum over k < 4096 of float32(A[i, k]) "
        "* float32(float16(float32(W[j, k]) * float32(S[j, k // 128])))",
    ),
    (
        "Q: float16[64, 8, 128]",
        "K: int8[64, 4096, 128]",
        "V: int8[64, 4096, 128]",
        "S[h, q, k < 4096] = sum over c < 128 of float32(Q[h, q, c]) * float32(K[h, k, c])",
        "M[h, q] = max over k < 4096 of S[h, q, k]",
        "Z[h, q] = sum over k < 4096 of exp(S[h, q, k] - M[h, q])",
        "A[h, q, d] = sum over k < 4096 of float32(float16(exp(S[h, q, k] - M[h, q]))) * float32(V[h, k, d])",
        "Y[h, q, d] = float16(A[h, q, d] / Z[h, q])",
    ),
)
"""The lines of examples of sketches that take no operator."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made from the code."""
    for name, content in (("operators.md", operators()), ("knobs.md", knobs()), ("api.md", api())):
        files.append(File.generated(config, name, content=content))
    return files


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """Return the lines of a table. Bars in cells would end them, and are escaped."""
    lines = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines]


def operators() -> str:
    """Return the page of the operators with their parameters."""
    lines = ["# Operators", "", "What can be tuned by name: `tilewright tune NAME PARAMETER=VALUE …`.", ""]
    for operator in OPERATORS.values():
        rows = [
            (f"`{p.name}`", p.meaning, "required" if p.required else f"`{json.dumps(p.schema()['default'])}`")
            for p in operator.parameters
        ]
        lines += [f"## {operator.name}", "", f"`{operator.summary}`", ""]
        lines += [*table(("parameter", "meaning", "default"), rows), ""]
    return "\n".join(lines)


def knobs() -> str:
    """Return the page of the sketches with the knobs that each has for an example."""
    lines = ["# Knobs", "", "What a schedule of each sketch decides, with the values for one example."]
    for name, sketch in SKETCHES.items():
        found = next(_matching(sketch), None)
        if found is None:
            continue
        example, workload, target = found
        space = sketch.space(workload, target, limit=4)
        rows = [(f"`{knob.name}`", knob.meaning, ", ".join(map(str, knob.values))) for knob in space.knobs]
        lines += ["", f"## {name}", "", f"Version {sketch.version}, for `{example}` on {target.kind} {target.arch}."]
        lines += ["", *table(("knob", "meaning", "values"), rows)]
    return "\n".join(lines)


def _matching(sketch: Sketch) -> Iterator[tuple[str, Workload, Target]]:
    """Yield examples that a sketch writes kernels for, with their text form."""
    for target in TARGETS:
        for example, workload in _examples():
            if sketch.matches(workload, target):
                yield example, workload, target


@cache
def _examples() -> list[tuple[str, Workload]]:
    small = [(name, parameters) for name, operator in OPERATORS.items() for parameters in operator.examples]
    of_operators = [
        (
            " ".join((name, *(f"{key}={value}" for key, value in parameters.items()))),
            OPERATORS[name].workload(parameters),
        )
        for name, parameters in (*small, *LARGER)
    ]
    return [*of_operators, *(("; ".join(lines), parse_workload("\n".join(lines))) for lines in EXPRESSIONS)]


def api() -> str:
    """Return the page of the routes. A service has the whole description at ``/openapi.json``."""
    document = json.loads(document_text())
    rows = [
        (f"`{method.upper()} {path}`", operation.get("description", "").partition("\n")[0])
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    text = "Every route with what it does. A service describes them wholly, with all schemas, at `/openapi.json`."
    return "\n".join(["# HTTP API", "", text, "", *table(("route", "what it does"), rows)])
