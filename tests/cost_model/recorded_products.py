"""Recorded tables of products on an H200 as experiences: the table's names of knobs are those of an earlier version."""

from functools import cache
from pathlib import Path

from tilewright.core.schedule import Schedule
from tilewright.core.target import DeviceInfo, Target
from tilewright.cost_model.dataset import Experience
from tilewright.schedule.sketches import SKETCHES
from tilewright.search.t4 import parse_t4, read_document
from tilewright.te.operators import OPERATORS

FOLDER = Path(__file__).parents[2] / "benchmarks" / "data"
RENAMED_IN = 7
"""The version of the sketch for which ``core.renamed`` knows the names. The knobs did not change before it."""


@cache
def experience(name: str, most: int) -> Experience:
    """The first ``most`` settings of a table, as records of the sketch that there is now."""
    document = read_document(FOLDER / f"{name}.t4.json.gz")
    space, outcomes, _ = parse_t4({**document, "results": document["results"][:most]}, name)
    metadata = document["metadata"]
    workload = OPERATORS[metadata["operator"]].workload(metadata["parameters"])
    device = metadata["device"]
    target = Target(**{**device["target"], "features": tuple(device["target"]["features"])})
    schedules = [
        Schedule.from_json({"sketch": s.sketch, "version": RENAMED_IN, "knobs": dict(s.knobs)})
        for s in map(space.schedule, range(len(space)))
    ]
    assert all(s.version == SKETCHES[s.sketch].version for s in schedules)
    info = DeviceInfo(device["name"], target, device["hardware"])
    return Experience(workload, info, list(zip(schedules, outcomes, strict=True)), profile="cold-v1")
