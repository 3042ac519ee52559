"""Are products right on the device? Random shapes (odd, whole, skinny, large, long), layouts, batches, 16-bit types and
epilogues, by every sketch that takes them, under random schedules: each kernel is judged as in tuning (guard bands,
poison, float64 on random data within te's tolerance). Bar: 240 shapes, no kernel wrong.

A pool of processes shares the work; one that a kernel crashes or hangs is replaced. ``--trials N``: schedules of each
sketch and shape. Settings: ``shapes``; ``sketch``: a glob; ``precision``: float32 in that precision instead of 16-bit
types; ``processes``; ``target`` (``cuda``). A failure is printed with its operator, parameters, seed and schedule.
"""

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatch
from typing import Any

import numpy as np

from tilewright.benchmarks.suite import Options, Result
from tilewright.benchmarks.sweep import Task, answers
from tilewright.core.streams import stream
from tilewright.core.target import Target
from tilewright.runtime.devices import host_target, open_device
from tilewright.schedule.sketches import SKETCHES
from tilewright.te.operators import OPERATORS
from tilewright.te.operators.maps import ACTIVATIONS
from tilewright.workers.child_environment import library_threads

SHAPES, SCHEDULES = 240, 4
DTYPES = ("float16", "bfloat16")
_SILENCE_SECONDS = 25.0
_MOST_PRODUCTS = 1 << 28
"""Multiply-adds of a case: its reference takes a fraction of a second."""
_MOST_ELEMENTS = 1 << 22
_MOST_BATCH = 12

_WHOLE = (8, 8, 8)
"""Rows of so many elements begin where boxes may."""

Json = dict[str, Any]
Draw = np.random.Generator
Extents = tuple[int, int, int]

CLASSES: Mapping[str, Callable[[Draw], Extents]] = {
    "odd": lambda d: _extents(d, (1, 700), (1, 700), (1, 700)),
    "whole": lambda d: _extents(d, (1, 128), (1, 128), (1, 128), units=_WHOLE),
    "skinny": lambda d: _extents(d, (1, 65), (1, 400), (1, 400), units=(1, 8, 8)),
    "few odd": lambda d: _extents(d, (2, 65), (1, 3000), (1, 1500)),
    "vector": lambda d: _extents(d, (1, 4), (1, 400), (1, 400), units=(1, 8, 8)),
    "large": lambda d: _extents(d, (64, 320), (64, 320), (1, 33), units=_WHOLE),
    "long": lambda d: _extents(d, (1, 40), (1, 40), (256, 1500), units=_WHOLE),
    "narrow": lambda d: _extents(d, (1, 16), (1, 40), (0, 0), units=_WHOLE),
    "one row": lambda d: _extents(d, (1, 1), (1, 50), (8, 50), units=(1, 8, 8)),
}
"""Kind of shape -> (m, n, k)."""


def _extents(draw: Draw, *ranges: tuple[int, int], units: Extents = (1, 1, 1)) -> Extents:
    m, n, k = (unit * int(draw.integers(low, high + 1)) for unit, (low, high) in zip(units, ranges, strict=True))
    return m, n, k


def _linear(draw: Draw, m: int, n: int, k: int) -> Json:
    return {"rows": m, "inputs": k, "outputs": n, "bias": _flag(draw), **_epilogue(draw)}


def _matmul(draw: Draw, m: int, n: int, k: int) -> Json:
    layout = {"transpose_a": _flag(draw), "transpose_b": _flag(draw)}
    return {"m": m, "n": n, "k": k, **layout, **(_epilogue(draw) if _flag(draw) else {})}


def _batch(draw: Draw, m: int, n: int, k: int) -> Json:
    return {"batch": int(draw.integers(1, _MOST_BATCH + 1)), **_matmul(draw, m, n, k)}


def _gated(draw: Draw, m: int, n: int, k: int) -> Json:
    return {"rows": m, "inputs": k, "outputs": n, "activation": str(draw.choice(ACTIVATIONS))}


def _layers(draw: Draw, m: int, n: int, k: int) -> Json:
    del k
    return {"rows": m, "width": n, "layers": int(draw.integers(1, 4)), "activation": str(draw.choice(ACTIVATIONS))}


def _flag(draw: Draw) -> bool:
    return bool(draw.integers(0, 2))


def _epilogue(draw: Draw) -> Json:
    return {"residual": _flag(draw), "activation": str(draw.choice(ACTIVATIONS))}


_DRAWN: Sequence[tuple[str, Callable[[Draw, int, int, int], Json]]] = (
    ("linear", _linear),
    ("matmul", _matmul),
    ("linear", _linear),
    ("batch_matmul", _batch),
    ("matmul", _matmul),
    ("gated_linear", _gated),
)


def cases(count: int, seed: int, precision: str | None = None) -> list[tuple[str, Json]]:
    """(operator, parameters) of ``count`` products; every operator meets every class of shapes. ``precision``: that of
    float32, which operators that have one take instead of 16-bit types then."""
    found = [_case(number, seed) for number in range(count)]
    if precision is None:
        return found
    single = {"dtype": "float32", "precision": precision}
    return [(name, {**given, **single}) for name, given in found if _has_precision(name)]


def _has_precision(operator: str) -> bool:
    return any(parameter.name == "precision" for parameter in OPERATORS[operator].parameters)


def _case(number: int, seed: int) -> tuple[str, Json]:
    draw = stream(seed, "products check", number)
    kinds = list(CLASSES)
    round_, place = divmod(number, len(kinds))
    kind, (operator, parameters) = kinds[place], _DRAWN[(round_ + place) % len(_DRAWN)]
    if kind == "narrow":
        operator, parameters = "mlp", _layers
    if kind == "one row":
        operator, parameters = "batch_matmul", _batch
    while True:
        m, n, k = CLASSES[kind](draw)
        given = {**parameters(draw, m, n, k), "dtype": DTYPES[int(draw.integers(0, 2))]}
        batch = given.get("batch", 1)
        sizes = (m * n, m * k, n * k)
        if batch * m * n * k <= _MOST_PRODUCTS and batch * max(sizes) <= _MOST_ELEMENTS:
            return operator, given


def tasks(count: int, seed: int, target: Target, sketches: str = "*", precision: str | None = None) -> list[Task]:
    """Return every case by every sketch for ``target`` that takes it."""
    found = []
    for operator, parameters in cases(count, seed, precision):
        workload = OPERATORS[operator].workload(parameters)
        fitting = [n for n, s in SKETCHES.items() if fnmatch(n, sketches) and s.matches(workload, target)]
        found += [Task(operator, parameters, name, target, runs_here=True) for name in fitting]
    return found


def run(options: Options) -> Result:
    """Return one row for each sketch; passes when no kernel is wrong."""
    extra, kind = options.extra, options.extra.get("target", "cuda")
    shapes, count = int(extra.get("shapes", SHAPES)), options.trials or SCHEDULES
    processes = int(extra.get("processes", max(1, len(os.sched_getaffinity(0)) - 1)))
    target = host_target(kind)
    if kind == "llvm":  # kernels are judged side by side
        target = replace(target, threads=1)
    drawn = tasks(shapes, options.seed, target, extra.get("sketch", "*"), extra.get("precision"))
    wanted = [t for t in drawn if fnmatch(t.sketch, options.rows)]
    order = stream(options.seed, "order").permutation(len(wanted))
    os.environ.update(library_threads(1))  # for the processes, of which there is one for each core
    began = time.perf_counter()
    found = list(
        answers([wanted[int(n)] for n in order], count, options.seed, processes, silence_seconds=_SILENCE_SECONDS)
    )
    seconds = time.perf_counter() - began
    rows = [_row(name, found) for name in dict.fromkeys(t.sketch for t in wanted)]
    failures = [f for answer in found for f in answer["failures"]]
    for failure in failures:
        print("WRONG", json.dumps(failure))
    summary = {
        "shapes": shapes,
        "kernels": sum(int(row["kernels"]) for row in rows),
        "refused": sum(int(row["refused"]) for row in rows),
        "wrong": len(failures),
        "seconds": seconds,
    }
    about = {"name": open_device(kind).info.name}
    settings = {"schedules": count, "processes": processes, **extra}
    return Result(tuple(rows), summary, not failures and len(found) == len(wanted), settings, about)


def _row(sketch: str, found: Sequence[Json]) -> Json:
    """Return what became of a sketch's kernels. ``refused``: they do not fit the device, which compiling said."""
    own = [answer for answer in found if answer["sketch"] == sketch]
    return {
        "row": sketch,
        "shapes": len(own),
        "kernels": sum(a["kernels"] for a in own),
        "refused": sum(a["refused"] for a in own),
        "wrong": sum(len(a["failures"]) for a in own),
        "process_seconds": sum(a["seconds"] for a in own),
        "failures": [f for a in own for f in a["failures"]],
    }
