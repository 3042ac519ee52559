"""Descriptions that are no legal workload: plain junk, and valid ones broken in one place."""

import copy
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tests.random_expressions import random_workload
from tilewright.core.streams import stream
from tilewright.te.json import workload_to_json

Data = dict[str, Any]
_HUGE = 10**30
_JUNK: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    3.5,
    float("nan"),
    float("inf"),
    _HUGE,
    "",
    "workload",
    "\ud800",
    [],
    [[]],
    {},
    {"inputs": [], "stages": [], "outputs": []},
    {"inputs": None, "stages": None, "outputs": None},
    {"inputs": {}, "stages": {}, "outputs": {}},
    {"operator": "matmul"},
    {"": {}, "~/": 1},
)
_WRONG: tuple[Any, ...] = ({"unknown": 1}, [[]], True, -2.5, float("nan"), "no such thing", "", _HUGE, [None])
"""Values that are right in no place of a workload; but see ``_wrong_value``."""


def malformed_workloads(seed: int, n: int) -> Iterator[object]:
    """``n`` values as Python's ``json`` reads them, none a legal workload.

    They hold NaN and infinities, lone surrogates and numbers of any size, and are nested up to 400 deep: write them
    with ``json.dumps(value)`` (which spells NaN) to send them anywhere.
    """
    draw = stream(seed, "malformed")
    valid: list[Data] = [workload_to_json(random_workload(int(draw.integers(0, 1 << 20)))) for _ in range(50)]
    for number in range(n):
        if number % 20 == 0:
            yield copy.deepcopy(_JUNK[(number // 20) % len(_JUNK)])
            continue
        broken = None
        while broken is None:
            broken = _pick(draw, _MUTATIONS)(copy.deepcopy(_pick(draw, valid)), draw)
        yield broken


Mutation = Callable[[Data, np.random.Generator], "Data | None"]


def _pick(draw: np.random.Generator, things: Any) -> Any:
    return things[int(draw.integers(0, len(things)))]


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, below in items:
        yield from _places(below, (*path, name))


def _at(data: Any, path: tuple[Any, ...]) -> Any:
    for step in path:
        data = data[step]
    return data


def _expressions(data: Data) -> list[Data]:
    return [
        e
        for p in _places(data)
        if isinstance(e := _at(data, p), dict) and ("op" in e or "load" in e or "axis" in e or "const" in e)
    ]


def _extents(data: Data) -> list[tuple[Any, Any]]:
    """(container, position) of every extent."""
    found = [(t["shape"], d) for t in data["inputs"] for d in range(len(t["shape"]))]
    return found + [(a, "extent") for s in data["stages"] for a in s["axes"] + s.get("reduce_axes", [])]


def _wrong_value(data: Data, draw: np.random.Generator) -> Data | None:
    path = _pick(draw, list(_places(data)))
    value = _pick(draw, _WRONG)
    if path[-1] == "const" and isinstance(value, int | float):
        return None  # may be right for the constant's dtype
    _at(data, path[:-1])[path[-1]] = value
    return data


def _without_member(data: Data, draw: np.random.Generator) -> Data | None:
    paths = [p for p in _places(data) if isinstance(_at(data, p[:-1]), dict) and not {"terms", "precision"} & {*p}]
    path = _pick(draw, paths)
    del _at(data, path[:-1])[path[-1]]
    return data


def _unknown_member(data: Data, draw: np.random.Generator) -> Data | None:
    paths = [(), *(p for p in _places(data) if isinstance(_at(data, p), dict))]
    _at(data, _pick(draw, paths))[_pick(draw, ("unknown", "", "a/b~c", "Op", "\ud800", "x" * 1000))] = 1
    return data


def _bad_extent(data: Data, draw: np.random.Generator) -> Data | None:
    found = _extents(data)
    if not found:
        return None
    container, position = _pick(draw, found)
    container[position] = _pick(draw, (0, -1, -(2**31), 2**31, _HUGE, 1.5, 4.0, True, "4", None, float("nan"), [4]))
    return data


def _bad_name(data: Data, draw: np.random.Generator) -> Data | None:
    tensor = _pick(draw, data["inputs"] + data["stages"])
    tensor["name"] = _pick(draw, ("", "1a", "a b", "a" * 65, "é", "a\n", "\ud800", "a-b", "#", 7))
    return data


def _same_name(data: Data, draw: np.random.Generator) -> Data | None:
    axes = [a for s in data["stages"] for a in s["axes"]]
    tensor = _pick(draw, data["stages"])
    if not axes:
        return None
    _pick(draw, axes)["name"] = tensor["name"]
    return data


def _bad_dtype(data: Data, draw: np.random.Generator) -> Data | None:
    places = [p for p in _places(data) if p[-1] == "dtype"]
    path = _pick(draw, places)
    _at(data, path[:-1])["dtype"] = _pick(draw, ("float8", "FLOAT32", "", "int", "object", 32, None, ["float32"]))
    return data


def _other_dtype(data: Data, draw: np.random.Generator) -> Data | None:
    stage = _pick(draw, data["stages"])
    stage["dtype"] = "uint8" if stage["dtype"] == "int64" else "int64"
    return data


def _cycle(data: Data, draw: np.random.Generator) -> Data | None:
    position = int(draw.integers(0, len(data["stages"])))
    stage = data["stages"][position]
    later = _pick(draw, data["stages"][position:])
    stage["body"] = {"load": later["name"], "at": [0] * len(later["axes"])}
    return data


def _unknown_tensor(data: Data, draw: np.random.Generator) -> Data | None:
    loads = [e for e in _expressions(data) if "load" in e]
    if not loads:
        return None
    _pick(draw, loads)["load"] = _pick(draw, ("nowhere", "", 3, "\ud800", "x" * 5000))
    return data


def _bad_index(data: Data, draw: np.random.Generator) -> Data | None:
    places = [p for p in _places(data) if len(p) > 1 and p[-2] == "at"]
    if not places:
        return None
    path = _pick(draw, places)
    bad: tuple[Any, ...] = (
        2**31,
        -(2**31),
        _HUGE,
        1.0,
        None,
        "nowhere",
        {"terms": {"nowhere": 1}, "constant": 0},
        {"terms": {}},
    )
    _at(data, path[:-1])[path[-1]] = _pick(draw, (*bad, {"axis": "i"}, {"terms": [], "constant": 0}))
    return data


def _out_of_bounds(data: Data, draw: np.random.Generator) -> Data | None:
    """A read one beyond the end, by a new stage without conditions."""
    if not data["inputs"] or not data["inputs"][0]["shape"]:
        return None
    shape = data["inputs"][0]["shape"]
    reads = [{"terms": {f"q{d}": 1}, "constant": 0} for d in range(len(shape))]
    reads[int(draw.integers(0, len(shape)))]["constant"] = _pick(draw, (1, -1, 1000))
    axes = [{"name": f"q{d}", "extent": e} for d, e in enumerate(shape)]
    body = {"load": data["inputs"][0]["name"], "at": reads}
    data["stages"].append({"name": "beyond", "dtype": data["inputs"][0]["dtype"], "axes": axes, "body": body})
    data["outputs"].append("beyond")
    return data


def _bad_operation(data: Data, draw: np.random.Generator) -> Data | None:
    operations = [e for e in _expressions(data) if "args" in e]
    if not operations:
        return None
    e = _pick(draw, operations)
    kind = int(draw.integers(0, 4))
    if kind == 0:
        e["op"] = _pick(draw, ("plus", "ADD", "", None, "ramp", "reduce", "__import__", 3))
    elif kind == 1:
        e["args"] = e["args"] + e["args"] + e["args"] + e["args"]
    elif kind == 2:
        e["args"] = []
    else:
        e["args"][0] = {"op": "not", "args": [{"axis": "i"}]}
    return data


def _bad_constant(data: Data, draw: np.random.Generator) -> Data | None:
    bad: tuple[Data, ...] = (
        {"const": float("nan"), "dtype": "float32"},
        {"const": float("inf"), "dtype": "float32"},
        {"const": "nan", "dtype": "float32"},
        {"const": 1e39, "dtype": "float32"},
        {"const": 70000.0, "dtype": "float16"},
        {"const": 10**400, "dtype": "float64"},
        {"const": 128, "dtype": "int8"},
        {"const": -1, "dtype": "uint8"},
        {"const": 2.5, "dtype": "int32"},
        {"const": 1, "dtype": "bool"},
        {"const": True, "dtype": "float32"},
        {"const": [1.0], "dtype": "float32"},
        {"const": 1.0},
        {"const": 1.0, "dtype": "float32", "op": "add"},
    )
    constant = copy.deepcopy(_pick(draw, bad))
    stage = _pick(draw, data["stages"])
    stage["body"] = constant
    stage["dtype"] = constant.get("dtype", "float32")
    return data


def _division(data: Data, draw: np.random.Generator) -> Data | None:
    stage = _pick(draw, data["stages"])
    stage["dtype"] = "int32"
    by: tuple[Data, ...] = (
        {"const": 0, "dtype": "int32"},
        {"const": -1, "dtype": "int32"},
        {"op": "cast", "args": [{"const": 2, "dtype": "int8"}], "dtype": "int32"},
    )
    op = _pick(draw, ("floordiv", "mod"))
    stage["body"] = {"op": op, "args": [{"const": 5, "dtype": "int32"}, copy.deepcopy(_pick(draw, by))]}
    return data


def _too_deep(data: Data, draw: np.random.Generator) -> Data | None:
    stage = _pick(draw, data["stages"])
    for _ in range(int(draw.integers(101, 190))):
        stage["body"] = {"op": "neg", "args": [stage["body"]]}
    return data


def _too_many(data: Data, draw: np.random.Generator) -> Data | None:
    kind = int(draw.integers(0, 4))
    stage = _pick(draw, data["stages"])
    if kind == 0:
        stage["axes"] = [{"name": f"q{n}", "extent": 1} for n in range(9)]
    elif kind == 1:
        data["inputs"] = [{"name": f"q{n}", "dtype": "float32", "shape": []} for n in range(257)]
    elif kind == 2:
        data["inputs"].append({"name": "q", "dtype": "int8", "shape": [1 << 20, 1 << 20]})
    else:
        for _ in range(12):
            stage["body"] = {"op": "max", "args": [stage["body"], stage["body"]]}
    return data


def _bad_outputs(data: Data, draw: np.random.Generator) -> Data | None:
    kind = int(draw.integers(0, 4))
    if kind == 0:
        data["outputs"] = []
    elif kind == 1:
        data["outputs"].append(data["outputs"][0])
    elif kind == 2:
        data["outputs"].append("nowhere")
    elif data["inputs"]:
        data["outputs"].append(data["inputs"][0]["name"])
    else:
        return None
    return data


def _bad_reduction(data: Data, draw: np.random.Generator) -> Data | None:
    reductions = [s for s in data["stages"] if "reducer" in s]
    if not reductions:
        return None
    stage = _pick(draw, reductions)
    stage["reducer"] = _pick(draw, ("product", "SUM", "", None, 0))
    return data


def _dead_stage(data: Data, draw: np.random.Generator) -> Data | None:
    body = {"const": 1.0, "dtype": "float32"}
    data["stages"].append({"name": "dead", "dtype": "float32", "axes": [], "body": body})
    return data


def _deep_junk(data: Data, draw: np.random.Generator) -> Data | None:
    nested: Any = 1
    for _ in range(int(draw.integers(200, 400))):
        nested = [nested] if draw.random() < 0.5 else {"args": nested}
    path = _pick(draw, list(_places(data)))
    _at(data, path[:-1])[path[-1]] = nested
    return data


_MUTATIONS: tuple[Mutation, ...] = (
    _wrong_value,
    _without_member,
    _unknown_member,
    _bad_extent,
    _bad_name,
    _same_name,
    _bad_dtype,
    _other_dtype,
    _cycle,
    _unknown_tensor,
    _bad_index,
    _out_of_bounds,
    _bad_operation,
    _bad_constant,
    _division,
    _too_deep,
    _too_many,
    _bad_outputs,
    _bad_reduction,
    _dead_stage,
    _deep_junk,
)
