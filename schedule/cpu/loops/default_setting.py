"""A sensible setting for a group that is not tuned."""

from collections.abc import Mapping

import numpy as np

from ....core.schedule import KnobValue
from ....core.target import Target
from ...space.columns import Columns
from .constraints import tile_constraints
from .fusion import FusedGroup
from .knobs import row_knobs, scalar_knobs, tile_knobs
from .promising import keeps_rules
from .tiles import REDUCTION, tiles_of

WANTED: Mapping[str, tuple[KnobValue, ...]] = {
    "vectorise": (REDUCTION,),
    "vectors": (2, 1),
    "rows": (4, 2, 1),
    "unroll": (4, 2, 1),
    "row_tiles": (4, 1),
    "column_tiles": (4, 1),
}
"""Values that are tried in this order; the first one that is legal and promising with those before it stays. Other
knobs keep their first value."""


def default_setting(group: FusedGroup, target: Target, defaults: Mapping[str, KnobValue]) -> dict[str, KnobValue]:
    """Return one value for each knob of the group's kind."""
    if group.kind != "tile":
        knobs = row_knobs(group, target) if group.kind == "row" else scalar_knobs(group, target)
        return {k.name: k.values[min(1, len(k.values) - 1)] if k.name == "vectors" else k.values[0] for k in knobs}
    tiles = tiles_of(group)
    knobs, constraints = tile_knobs(tiles, target), tile_constraints(tiles, target)
    codes = np.zeros((1, len(knobs)), dtype=np.int16)
    for position, knob in enumerate(knobs):
        for value in WANTED.get(knob.name, ()):
            if value in knob.values:
                tried = codes.copy()
                tried[0, position] = knob.values.index(value)
                columns = Columns(knobs, tried, defaults)
                if all(c.holds(columns)[0] for c in constraints) and keeps_rules(tiles, target, columns)[0]:
                    codes = tried
                    break
    return {k.name: k.values[int(codes[0, i])] for i, k in enumerate(knobs)}
