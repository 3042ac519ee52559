"""Whether a change of the compiler leaves machine code as it is.

``python -m benchmarks machine-code --set record=FILE`` draws schedules of every sketch and keeps them with the hash of
what they compile to: the whole cubin on CUDA, the executable sections of the object elsewhere. ``--set against=FILE``
compiles the schedules of such a file with this commit and compares the hashes. No GPU is needed.
``--rows GLOB`` picks sketches by name, ``--trials N`` says how many schedules of each (default 20).
"""

import gzip
import json
import struct
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from fnmatch import fnmatch
from hashlib import sha256
from pathlib import Path
from typing import Any

from benchmarks.suite import Options, Result
from tilewright.codegen.lowering import build
from tilewright.core.errors import TilewrightError
from tilewright.core.schedule import Schedule
from tilewright.core.streams import stream
from tilewright.core.target import Target
from tilewright.schedule.sketches import SKETCHES
from tilewright.te.json import workload_from_json, workload_to_json
from tilewright.te.operators import OPERATORS

F16 = "float16"
CASES: tuple[tuple[str, Mapping[str, Any]], ...] = (
    ("matmul", {"m": 512, "n": 768, "k": 1024}),
    ("matmul", {"m": 2048, "n": 2048, "k": 2048, "dtype": F16, "transpose_b": True}),
    ("matmul", {"m": 512, "n": 768, "k": 4096, "dtype": "bfloat16", "transpose_a": True}),
    ("matmul", {"m": 200, "n": 311, "k": 177, "dtype": F16}),
    ("matmul", {"m": 512, "n": 512, "k": 512, "dtype": "int8"}),
    ("batch_matmul", {"batch": 8, "m": 128, "n": 128, "k": 1024, "dtype": F16}),
    ("gated_linear", {"rows": 2048, "inputs": 1024, "outputs": 1024, "dtype": F16}),
    ("multi_dot", {"m": 512, "n": 384, "k": 640, "p": 256, "precision": "tf32"}),
    ("bilinear", {"rows": 64, "first": 256, "second": 128, "outputs": 64}),
    (
        "linear",
        {"rows": 2304, "inputs": 320, "outputs": 2304, "residual": True, "activation": "gelu_tanh", "dtype": F16},
    ),
    ("matmul", {"m": 1, "n": 768, "k": 1024}),
    ("linear", {"rows": 1, "inputs": 4096, "outputs": 4096}),
    ("linear", {"rows": 8, "inputs": 1024, "outputs": 512, "dtype": F16}),
    ("linear", {"rows": 4, "inputs": 1025, "outputs": 513, "dtype": F16}),
    ("linear", {"rows": 16, "inputs": 4096, "outputs": 4096, "dtype": F16}),
    ("linear", {"rows": 64, "inputs": 1024, "outputs": 512, "dtype": "bfloat16"}),
    ("mlp", {"rows": 64, "width": 128, "layers": 2, "dtype": F16}),
    ("softmax", {"rows": 4096, "columns": 1024}),
    ("softmax", {"rows": 64, "columns": 100_000, "dtype": F16}),
    ("layer_norm", {"rows": 100, "columns": 50257, "dtype": F16}),
    ("rms_norm", {"rows": 1000, "columns": 4096, "dtype": F16}),
    ("reduce", {"shape": [4096, 4096], "axes": [0, 1]}),
    ("reduce", {"shape": [4096, 4096], "axes": [0]}),
    ("reduce", {"shape": [64, 1000, 33], "axes": [1]}),
    ("scan", {"shape": [512, 4096], "axis": 1}),
    ("scan", {"shape": [4096, 512], "axis": 0, "dtype": F16}),
    ("segment_reduce", {"terms": 4096, "segments": 5000, "columns": 64, "dtype": F16}),
    ("segment_reduce", {"terms": 4096, "segments": 64}),
    ("elementwise", {"shape": [4096, 4096], "functions": ["relu", "add1"]}),
    ("transpose", {"shape": [1024, 4096], "axes": [1, 0]}),
    ("transpose", {"shape": [8, 100, 77, 30], "axes": [0, 3, 1, 2], "dtype": F16}),
    (
        "conv2d",
        {
            "batch": 1, "channels": 64, "height": 56, "width": 56, "filters": 64,
            "kernel_h": 3, "kernel_w": 3, "padding": 1,
        },
    ),
    (
        "conv2d",
        {
            "batch": 4, "channels": 128, "height": 28, "width": 28, "filters": 192, "bias": True, "activation": "relu",
            "kernel_h": 3, "kernel_w": 3, "padding": 1, "layout": "NHWC", "dtype": F16,
        },
    ),
    (
        "conv3d",
        {
            "batch": 1, "channels": 32, "depth": 64, "height": 64, "width": 64, "filters": 32, "layout": "NDHWC",
            "kernel_d": 3, "kernel_h": 3, "kernel_w": 3, "padding": 1, "bias": True, "activation": "relu", "dtype": F16,
        },
    ),
    (
        "conv2d",
        {
            "batch": 8, "channels": 3, "height": 224, "width": 224, "filters": 64, "bias": True, "activation": "relu",
            "kernel_h": 7, "kernel_w": 7, "stride": 2, "padding": 3, "layout": "NHWC", "dtype": F16,
        },
    ),
    (
        "conv2d",
        {
            "batch": 32, "channels": 144, "height": 56, "width": 56, "filters": 144, "groups": 144,
            "kernel_h": 3, "kernel_w": 3, "padding": 1, "dtype": F16,
        },
    ),
    ("attention", {"heads": 2, "queries": 64, "keys": 128, "depth": 64}),
    ("attention", {"heads": 8, "queries": 256, "keys": 256, "depth": 64, "dtype": F16}),
    (
        "pool2d",
        {
            "batch": 4, "channels": 64, "height": 28, "width": 28, "kernel_h": 3, "kernel_w": 3, "padding": 1,
            "kind": "average", "layout": "NHWC", "dtype": F16,
        },
    ),
)  # fmt: skip
"""Operators and parameters that between them reach every sketch."""

AVX512 = ("avx512bf16", "avx512bw", "avx512dq", "avx512f", "avx512vl", "avx512vnni", "fma")
TARGETS: tuple[Target, ...] = (
    Target("cuda", "sm_90a", threads=132),
    Target("cuda", "sm_80", threads=108),
    Target("amdgpu", "gfx942", threads=304),
    Target("llvm", "x86-64", AVX512, threads=2, vector_bytes=64),
    Target("llvm", "x86-64", ("amx-bf16", "amx-int8", "amx-tile", *AVX512), threads=2, vector_bytes=64),
)


def run(options: Options) -> Result:
    if "record" in options.extra:
        rows = list(_drawn(options.rows, options.trials or 20))
        _write(Path(options.extra["record"]), rows)
        return Result(tuple(_counted(rows)), {"schedules": len(rows)}, bool(rows))
    kept = [r for r in _read(Path(options.extra["against"])) if fnmatch(_today(r), options.rows)]
    with ProcessPoolExecutor() as pool:
        now = list(pool.map(_hash, kept, chunksize=4))
    changed = [
        {"row": _today(was), "schedule": was["schedule"], "workload": was["case"], "was": was["hash"], "is": found}
        for was, found in zip(kept, now, strict=True)
        if was["hash"] != found
    ]
    for row in changed:
        print(f"changed: {row}")
    counts = Counter(_today(r) for r in kept)
    rows = [
        {"row": name, "schedules": n, "changed": sum(c["row"] == name for c in changed)} for name, n in counts.items()
    ]
    return Result((*rows, *changed), {"schedules": len(kept), "changed": len(changed)}, not changed)


def _drawn(glob: str, count: int) -> Iterator[dict[str, Any]]:
    """Schedules of every sketch, ``count`` each, spread over the cases that it takes, with their hashes."""
    for name, sketch in SKETCHES.items():
        if not fnmatch(name, glob):
            continue
        taken = []
        for case in CASES:
            workload = OPERATORS[case[0]].workload(case[1])
            taken += [(case, workload, t) for t in TARGETS if sketch.matches(workload, t)]
        if not taken:
            print(f"{name} takes none of the cases: its machine code is not compared")
            continue
        draws = stream(0, f"machine code of {name}")
        wanted: list[dict[str, Any]] = []
        spaces = [sketch.space(w, t, limit=4096) for _, w, t in taken[:10]]
        for number in range(count):
            (case, workload, target), space = taken[number % len(spaces)], spaces[number % len(spaces)]
            schedule = space.schedule(int(draws.integers(len(space))))
            wanted.append(
                {
                    "case": [case[0], dict(case[1])],
                    "workload": workload_to_json(workload),
                    "target": target.to_json(),
                    "schedule": schedule.to_json(),
                }
            )
        with ProcessPoolExecutor() as pool:
            for row, found in zip(wanted, pool.map(_hash, wanted, chunksize=2), strict=True):
                yield {**row, "hash": found}


def _hash(row: Mapping[str, Any]) -> str:
    """Return the hash of the machine code of one row; the name of the error where it cannot be built."""
    target = row["target"]
    made_for = Target(
        target["kind"], target["arch"], tuple(target["features"]), target["threads"], target["vector_bytes"]
    )
    try:
        binary = build(workload_from_json(row["workload"]), made_for, Schedule.from_json(row["schedule"]))
    except TilewrightError as error:
        return type(error).__name__
    return sha256(binary.code if binary.format == "cubin" else _executable(binary.code)).hexdigest()


def _executable(elf: bytes) -> bytes:
    """Return the bytes of all sections of a 64-bit ELF file that hold instructions."""
    offset, size, count = (*struct.unpack_from("<Q", elf, 40), *struct.unpack_from("<HH", elf, 58))
    found = []
    for n in range(count):
        flags, _, start, length = struct.unpack_from("<QQQQ", elf, offset + n * size + 8)
        if flags & 4:
            found.append(elf[start : start + length])
    return b"".join(found)


def _today(row: Mapping[str, Any]) -> str:
    return Schedule.from_json(row["schedule"]).sketch


def _counted(rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for name, n in Counter(r["schedule"]["sketch"] for r in rows).items():
        yield {"row": name, "schedules": n}


def _write(path: Path, rows: list[dict[str, Any]]) -> None:
    with gzip.open(path, "wt") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def _read(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path, "rt") as file:
        return [json.loads(line) for line in file]
