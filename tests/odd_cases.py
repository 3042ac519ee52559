"""Parameters of operators drawn from their schemas: small odd shapes with whatever options go with them."""

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

import numpy as np

from tilewright.core.errors import InvalidParameter
from tilewright.core.streams import stream
from tilewright.te.operators import Operator
from tilewright.te.operators.parameter import Parameter
from tilewright.te.workload import Workload

SMALL = (1, 2, 3, 5, 7, 8, 11, 13, 16, 17, 29, 31, 33, 61, 64)
LARGE = (1, 3, 16, 31, 64, 67, 97, 112, 130, 200)
LONG = (1, 2, 3, 17, 97, 531, 768, 1031)
"""Extents to draw from; the latter two are enough for sketches that leave what is small to others."""
_MOST_KERNEL = 5
_MOST_POINTS = 1 << 24
"""Points of a stage, reduction axes included."""
_TRIES = 400
"""Draws for each case: many contradict themselves."""


def odd_cases(
    operator: Operator, count: int, seed: int = 0, sizes: tuple[Sequence[int], Sequence[int]] = (SMALL, LARGE)
) -> Iterator[dict[str, object]]:
    """Up to ``count`` different legal parameters: every dtype in turn, extents of either of the two sizes by turns;
    other options are drawn as often as not."""
    draw = stream(seed, "odd cases", operator.name)
    found: list[dict[str, object]] = []
    for _ in range(_TRIES * count):
        if len(found) == count:
            return
        round_, place = divmod(len(found), len(operator.dtypes))
        extents = sizes[(round_ + place) % 2]
        given = {p.name: _value(p, extents, draw) for p in operator.parameters if p.required or draw.random() < 0.5}
        given["dtype"] = operator.dtypes[place]
        try:
            workload = operator.workload(given)
        except InvalidParameter:
            continue
        if _points(workload) <= _MOST_POINTS and given not in found:
            found.append(given)
            yield given


def _points(workload: Workload) -> int:
    return max(prod(a.extent for a in (*s.axes, *s.reduce_axes)) for s in workload.stages)


def _value(parameter: Parameter, extents: Sequence[int], draw: np.random.Generator) -> Any:
    if parameter.name.startswith("kernel"):
        return int(draw.integers(1, _MOST_KERNEL + 1))
    return _drawn(parameter.schema(), extents, draw)


def _drawn(schema: dict[str, Any], extents: Sequence[int], draw: np.random.Generator) -> Any:
    if "enum" in schema:
        return schema["enum"][int(draw.integers(0, len(schema["enum"])))]
    if schema["type"] == "boolean":
        return bool(draw.integers(0, 2))
    if schema["type"] == "array":
        length = int(draw.integers(schema["minItems"], min(schema["maxItems"], 4) + 1))
        items = [_drawn(schema["items"], extents, draw) for _ in range(length)]
        return list(dict.fromkeys(items)) if schema.get("uniqueItems") else items
    low, high = schema["minimum"], schema["maximum"]
    if schema["type"] == "number":
        return float(np.exp(draw.uniform(np.log(low), np.log(high)))) if low > 0 else float(draw.uniform(low, high))
    if "default" in schema or low == 0:  # a stride, a dimension, a width of padding
        return int(draw.integers(low, min(high, low + 3) + 1))
    return int(draw.choice(extents))
