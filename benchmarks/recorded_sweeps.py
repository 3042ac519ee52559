"""Sweeps: linear layers of one model at many numbers of rows, which shape families are made of (``families``).

A family needs times of the same settings at many shapes. So the tables of a sketch and layer share a pool of settings:

    pool            the settings that the prior ranks first at some number of rows, in turns: all firsts, all seconds, …
    table at rows   the first ones of the pool that are legal there

Nothing depends on the device at hand: priors are made from no peaks but those of the architecture's data sheet.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from tilewright.benchmarks.recorded_tables import SWEEP
from tilewright.benchmarks.recorded_workloads import Table, linear
from tilewright.core.keys import canonical_json
from tilewright.core.policy import SpacePolicy
from tilewright.core.schedule import Schedule
from tilewright.core.target import Target
from tilewright.schedule.problems.gemm import LARGEST_SKINNY_M
from tilewright.schedule.sketches import SKETCHES
from tilewright.schedule.space.space import Space
from tilewright.te.operators import OPERATORS
from tilewright.te.workload import Workload

ROWS = (
    *(1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 17, 20, 24, 28, 32, 40, 48, 56, 64),
    *(65, 80, 100, 112, 128, 150, 160, 192, 200, 256, 300, 384, 448, 512, 600, 768, 1000, 1024, 1280, 1536),
    *(2048, 2560, 3072, 4096, 5000, 6144, 8192),
)
LAYERS = ((6144, 4096), (4096, 14336))
"""Outputs and inputs of two projections of Llama 3 8B: of queries, keys and values, and down."""
SETTINGS, POOL = 150, 450
"""How many settings are recorded at up to ``LARGEST_SKINNY_M`` rows, of all sketches together, and how many a pool has
at most. At more rows all of the pool are."""
_SKETCHES = ("cuda_gemv", "cuda_skinny_mma", "cuda_skinny_tma", "cuda_gemm", "cuda_gemm_swap_ab")
_TARGET = Target("cuda", "sm_90a", threads=132, vector_bytes=16)
"""Which sketches take a number of rows is asked of it, so that tables have names without a device."""


@dataclass(frozen=True)
class SweepTable(Table):
    """``most``: how many settings it has at most."""

    most: int = SETTINGS

    def selection(self, target: Target) -> str:
        """Say how settings were chosen. A pool that another prior makes has another digest."""
        knobs = [dict(schedule.knobs) for schedule in self._pool(target)]
        digest = hashlib.sha256(canonical_json({"pool": knobs}).encode()).hexdigest()[:12]
        return f"the first {self.most} at most of the {len(knobs)} of pool {digest}"

    @property
    def precise(self) -> bool:
        return True

    def kept(self, whole: Space, target: Target) -> NDArray[np.bool_]:
        rows = [row for row in map(whole.row_of, self._pool(target)) if row is not None]
        return np.isin(np.arange(len(whole)), rows[: self.most])

    def _pool(self, target: Target) -> tuple[Schedule, ...]:
        return pool(self.sketch.name, self.parameters["outputs"], self.parameters["inputs"], target)


@cache
def pool(name: str, outputs: int, inputs: int, target: Target) -> tuple[Schedule, ...]:
    """Return the settings that tables of the sketch ``name`` and of a layer share."""
    sketch = SKETCHES[name]
    workloads = [w for rows in ROWS if sketch.matches(w := _workload(rows, outputs, inputs), target)]
    spaces = [sketch.space(workload, target, policy=SpacePolicy(prune=False)) for workload in workloads]
    ranked = [np.argsort(s.prior_seconds, kind="stable") for s in spaces if s.prior_seconds is not None]
    members: dict[Schedule, None] = {}
    for rank in range(max(map(len, ranked))):
        for space, order in zip(spaces, ranked, strict=True):
            if len(members) < POOL and rank < len(order):
                members.setdefault(space.schedule(int(order[rank])))
    return tuple(members)


def _workload(rows: int, outputs: int, inputs: int) -> Workload:
    return OPERATORS["linear"].workload(linear(rows, outputs, inputs))


def layer_tables(rows: int, outputs: int, inputs: int, settings: int | None = None) -> list[SweepTable]:
    """Return the tables of a layer at a number of rows: of all sketches that take it, which share the settings."""
    settings = settings or (SETTINGS if rows <= LARGEST_SKINNY_M else POOL)
    workload, parameters = _workload(rows, outputs, inputs), linear(rows, outputs, inputs)
    sketches = [SKETCHES[name] for name in _SKETCHES if SKETCHES[name].matches(workload, _TARGET)]
    most, name = settings // len(sketches), f"{SWEEP}-{rows}x{outputs}x{inputs}"
    return [SweepTable(f"{name}-{s.name}", "linear", parameters, s, kind=SWEEP, most=most) for s in sketches]


SWEEPS: Mapping[str, Table] = {
    table.name: table for rows in ROWS for layer in LAYERS for table in layer_tables(rows, *layer)
}
