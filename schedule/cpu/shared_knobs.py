"""Knobs and values that several kernel classes for processors have."""

from ..space.knob import Knob

ROWS_INSIDE, COLUMNS_INSIDE = "rows_inside", "columns_inside"
"""Loop orders over the register tiles of a task: rows or columns are the inner loop."""
CACHED, NON_TEMPORAL = "cached", "non_temporal"


def store_knob() -> Knob:
    """Return how outputs are stored. Non-temporal stores write whole lines to memory without reading them first."""
    return Knob(
        "store",
        (CACHED, NON_TEMPORAL),
        "whether the output goes through the caches (cached) or past them (non_temporal)",
    )
