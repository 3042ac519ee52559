"""Layers of products with statistics of their rows, in one kernel: see ``schedule.tile.layer_program``.

16-bit floats summed in float32, tokens along ``k``, weights along ``k`` or ``n``, any pointwise functions of the sums
and of reductions of their rows (layer norm, softmax), layer after layer. As wide as a block can hold whole rows.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ....core.schedule import KnobValue
from ....core.target import Target
from ....ir.expr import WARP_LANES
from ....ir.stmt import Kernel
from ....te.workload import Workload
from ...loop_nest.nest import KERNEL_NAME
from ...problems.mlp import Layers, layers_of, vectors_of
from ...space.columns import Bools, Columns, Ints
from ...space.enumerate import all_settings
from ...space.knob import Knob, Quantity
from ...tile_sketch import Plan, TileSketch
from ..occupancy import limits_of
from ..quantities import GPU_QUANTITIES, gpu_columns
from ..skinny.mma_mainloop import COLUMNS, PIECE, ROWS
from .kernel import LayerSetting, can_lower_layers, lies_along_k, lower_layers

SPARE_REGISTERS = 44
"""Registers for addresses and constants, roughly (from compiled kernels)."""
LEAST_SHARE = 64
"""Columns of a block of a cluster: fewer are no work for its warps."""
MOST_SUMS = 64
"""Registers of a thread that hold sums, at most: more and the functions of them would spill."""

QUANTITIES = (
    *GPU_QUANTITIES,
    Quantity("steps", "steps", "pieces of the weights of all layers, one after the other"),
    Quantity("stages", "stages", "of those, how many the ring holds"),
    Quantity("sums", "registers", "registers of a thread that hold sums"),
    Quantity("weight_bytes", "B", "bytes of the weights that all blocks read together"),
)


@dataclass(frozen=True)
class LayerPlan(Plan):
    layers: Layers
    target: Target

    @property
    def knobs(self) -> tuple[Knob, ...]:
        clusters = (1, 2, 4, 8) if limits_of(self.target).clusters and len(self.layers.layers) == 1 else (1,)
        return (
            Knob("rows", (1, 2, 4), "times 16 rows of a block"),
            Knob("warps", (8, 4, 16, 2), "warps of a block, which share out the columns"),
            Knob("chunk", (64, 32, 128), "places of k that arrive together"),
            Knob("cluster", clusters, "blocks that share out the columns of the layer"),
            Knob("resident", (1, 2, 4), "blocks meant for a multiprocessor at once"),
        )

    def _sizes(self, columns: Columns) -> dict[str, Ints]:
        p, limits = self.layers, limits_of(self.target)
        rows, warps, chunk = columns.ints("rows"), columns.ints("warps"), columns.ints("chunk")
        cluster = columns.ints("cluster")
        widest = max(layer.n.extent for layer in p.layers) // cluster
        longest = max(layer.k.extent for layer in p.layers)
        steps = np.sum([-(-layer.k.extent // chunk) for layer in p.layers], axis=0)
        tiles = -(-(widest // COLUMNS) // warps)
        stage = _tile_bytes(widest, chunk) if lies_along_k(p) else _tile_bytes(chunk, widest)
        streams = len(p.layers) == 1
        tokens = _tile_bytes(rows * ROWS, chunk if streams else -(-longest // chunk) * chunk)
        stage, tokens = (stage + tokens, 0 * tokens) if streams else (stage, tokens)
        vectors = sum(layer.n.extent * load.buffer.dtype.bytes for layer in p.layers for load in vectors_of(p, layer))
        beside = tokens + vectors // cluster + 8 * rows * ROWS * (warps + 1)
        room = limits.shared_bytes_per_multiprocessor // columns.ints("resident") - 1024
        room = np.minimum(room, limits.shared_bytes_per_block) - beside - 256
        stages = np.minimum(room // stage, steps)
        blocks = -(-p.m.extent // (rows * ROWS)) * cluster
        return {
            "threads": WARP_LANES * warps,
            "blocks": blocks,
            "steps": steps,
            "stages": stages,
            "widest": widest,
            "tiles": tiles,
            "sums": 4 * rows * tiles,
            "registers": SPARE_REGISTERS + 6 * rows * tiles + 8 * rows,
            "shared": np.maximum(stages, 1) * stage + beside,
            "stage": stage,
            "weights": blocks // cluster * 2 * sum(layer.n.extent * layer.k.extent for layer in p.layers),
        }

    def legal(self, columns: Columns) -> Bools:
        p, size, limits = self.layers, self._sizes(columns), limits_of(self.target)
        rows, warps, chunk = columns.ints("rows"), columns.ints("warps"), columns.ints("chunk")
        resident = columns.ints("resident")
        fits = limits.resident_blocks(size["threads"], size["registers"], size["shared"]) >= resident
        fits &= (size["stages"] >= np.minimum(size["steps"], 2)) & (size["sums"] <= MOST_SUMS)
        for layer in p.layers[1:]:  # what a layer passes on must fill whole pieces
            fits &= layer.k.extent % chunk == 0
        shortest = min(layer.k.extent for layer in p.layers)
        # rows of 64 bytes are slow to copy
        fits &= (chunk > 32) | (len(self.layers.layers) > 1) | (shortest % 64 > 0) | (not limits.clusters)
        # nothing is gained by warps without columns, by rows or places of k that there are none of, or by waiting room
        fits &= (warps - 1) * size["tiles"] < size["widest"] // COLUMNS
        cluster = columns.ints("cluster")
        whole = np.all([layer.n.extent % (cluster * COLUMNS) == 0 for layer in p.layers], axis=0)
        fits &= (cluster == 1) | (whole & (size["widest"] >= LEAST_SHARE))
        fits &= (rows * ROWS < p.m.extent + ROWS) & ((chunk == 32) | (chunk < shortest + 32))
        result: Bools = fits & ((resident == 1) | (size["blocks"] > self.target.threads * (resident // 2)))
        return result

    @cached_property
    def fits(self) -> bool:
        """Whether there is any setting."""
        return bool(self.legal(all_settings(self.knobs)).any())

    def derive(self, columns: Columns) -> Mapping[str, NDArray[np.float64]]:
        size = self._sizes(columns)
        common = gpu_columns(
            limits_of(self.target),
            self.target.threads,
            blocks=size["blocks"],
            threads=size["threads"],
            registers=np.minimum(size["registers"], 255),
            shared=size["shared"],
            wanted=size["stage"] * np.maximum(size["stages"], 1) // size["threads"],
        )
        own = {"steps": "steps", "stages": "stages", "sums": "sums", "weight_bytes": "weights"}
        return {**common, **{name: size[key].astype(np.float64) for name, key in own.items()}}

    def lower(self, setting: Mapping[str, KnobValue]) -> Kernel:
        knobs = {name: int(value) for name, value in setting.items()}
        codes = np.array([[k.values.index(knobs[k.name]) for k in self.knobs]], dtype=np.int16)
        stages = int(self._sizes(Columns(self.knobs, codes, {}))["stages"][0])
        return lower_layers(self.layers, KERNEL_NAME, LayerSetting(**knobs, stages=stages))


def _tile_bytes(lines: Ints, columns: Ints) -> Ints:
    """Shared memory of a tile of 16-bit elements (see ``schedule.tile.skinny.tile_pitch``)."""
    power_of_two = (columns >= 64) & (columns & (columns - 1) == 0)
    taken: Ints = 2 * lines * (columns + np.where(power_of_two, 0, PIECE))
    return taken


def _plan(workload: Workload, target: Target) -> LayerPlan | None:
    layers = layers_of(workload)
    if layers is None or not can_lower_layers(layers):
        return None
    plan = LayerPlan(layers, target)
    return plan if plan.fits else None


CUDA_MLP = TileSketch("cuda_mlp", 4, QUANTITIES, _plan)
