"""Which tables are recorded: workloads of five kinds, and of each the settings of every sketch that takes it.

A table is one sketch on one workload, and so one file. Together, the tables of a workload are what a search chooses
from. A sub-space holds some knobs to a few values; where there is none, the table is the whole space.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.benchmarks.recorded_tables import SUFFIX
from tilewright.core.policy import SpacePolicy
from tilewright.core.schedule import KnobValue
from tilewright.core.target import Target
from tilewright.schedule.gpu.columnwise.space import CUDA_COLUMNWISE
from tilewright.schedule.gpu.conv.space import CUDA_CONV
from tilewright.schedule.gpu.gemm.space import CUDA_GEMM
from tilewright.schedule.gpu.gemm.swap_ab_space import CUDA_GEMM_SWAP_AB
from tilewright.schedule.gpu.loops.space import CUDA_LOOPS
from tilewright.schedule.gpu.permute.space import CUDA_PERMUTE
from tilewright.schedule.gpu.rowwise.space import CUDA_ROWWISE
from tilewright.schedule.sketch import Sketch
from tilewright.schedule.space.space import Space
from tilewright.te.operators import OPERATORS
from tilewright.te.workload import Workload

LANGUAGE_MODELS = "language_models"
"""The kind of the first twelve tables, products of smaller sub-spaces. Their files lie in the folder itself."""
Subspace = Mapping[str, tuple[KnobValue, ...]]
"""Knob -> the values that it is held to. All other knobs have all of theirs."""


@dataclass(frozen=True)
class Table:
    """What is recorded in one file. ``kind``: the group of workloads that it belongs to."""

    name: str
    operator: str
    parameters: Mapping[str, Any]
    sketch: Sketch
    subspace: Subspace = field(default_factory=dict)
    kind: str = LANGUAGE_MODELS

    def path(self, folder: Path) -> Path:
        """Return the file below ``folder``."""
        return (folder if self.kind == LANGUAGE_MODELS else folder / self.kind) / (self.name + SUFFIX)

    @property
    def workload(self) -> Workload:
        return OPERATORS[self.operator].workload(self.parameters)

    def selection(self, target: Target) -> str | None:
        """Say how settings were chosen, where that is not by a sub-space."""
        return None

    @property
    def precise(self) -> bool:
        """Whether fast settings are timed for longer."""
        return False

    def space(self, target: Target) -> Space:
        """Return the settings to be recorded. Raises ValueError where the sketch does not list all that are legal."""
        whole = self.sketch.space(self.workload, target, policy=SpacePolicy(prune=False))
        if whole.total > len(whole):
            raise ValueError(f"{self.name}: only {len(whole)} of {whole.total} settings are listed")
        kept = self.kept(whole, target)
        columns = {name: column[kept] for name, column in whole.quantities.items()}
        total = int(kept.sum())
        prior = None if whole.prior_seconds is None else whole.prior_seconds[kept]
        return Space(
            *(whole.sketch, whole.version, whole.knobs, whole.codes[kept], columns, total, prior), low=total, high=total
        )

    def kept(self, whole: Space, target: Target) -> NDArray[np.bool_]:
        """Return which settings of the whole space are recorded."""
        kept = np.ones(len(whole), dtype=bool)
        for knob, values in self.subspace.items():
            kept &= np.isin(whole.column(knob), values)
        return kept


_LANGUAGE_MODELS: Mapping[str, tuple[int, int, int]] = {
    "llama-3-8b-qkv": (256, 6144, 4096),
    "llama-3-8b-out": (512, 4096, 4096),
    "llama-3-8b-up_gate": (1024, 28672, 4096),
    "llama-3-8b-down": (1024, 4096, 14336),
    "qwen2.5-7b-qkv": (2048, 4608, 3584),
    "qwen2.5-7b-out": (4096, 3584, 3584),
    "qwen2.5-7b-up_gate": (512, 37888, 3584),
    "qwen2.5-7b-down": (512, 3584, 18944),
    "llama-3-70b-qkv": (4096, 1280, 8192),
    "llama-3-70b-out": (1024, 8192, 1024),
    "llama-3-70b-up_gate": (256, 7168, 8192),
    "llama-3-70b-down": (2048, 8192, 3584),
}
"""Tokens, outputs, inputs: Y[tokens, outputs] = X[tokens, inputs] W[outputs, inputs], in bfloat16. They are the
projections of Llama 3 8B and Qwen2.5 7B, and an eighth of Llama 3 70B's, which eight devices share. Up to 64 tokens
another sketch takes them."""
_LANGUAGE_MODEL: Subspace = {
    "consumer_warpgroups": (1, 2),
    "atoms_m": (1,),
    "mma_n": (64, 96, 128, 144, 160, 176, 192, 208, 224, 256),
    "k_atoms": (1,),
    "cluster_m": (1, 2),
    "cluster_n": (1, 2),
    "group_m": (8,),
    "ctas_per_sm": (1,),
    "epilogue_stages": (0, 2),
}
_PLAIN: Subspace = {"k_atoms": (1,), "stream_k": (0,)}
"""What hardly ever wins on large products and convolutions is left out."""
_PRODUCT: Subspace = {**_PLAIN, "group_m": (4, 8, 16, 32), "cluster_m": (1, 2), "cluster_n": (1, 2)}
_CONVOLUTION: Subspace = {**_PLAIN, "group_m": (8,), "split_k": (1, 2), "ctas_per_sm": (1,)}
_FMA_TILES: Subspace = {
    "threads_y": (8, 16),
    "threads_x": (16, 32),
    "items_y": (4, 8),
    "items_x": (4, 8),
    "block_k": (8, 16, 32),
    "staged": ("yes",),
}
"""Products without matrix units: the faster tiles alone, since the others take most of the time and teach little."""


def linear(tokens: int, outputs: int, inputs: int) -> Mapping[str, Any]:
    """Return the parameters of a layer in bfloat16 without a bias."""
    return {"rows": tokens, "inputs": inputs, "outputs": outputs, "bias": False, "dtype": "bfloat16"}


def _convolution(side: int, channels: int, stride: int) -> Mapping[str, Any]:
    """Return a 3 x 3 layer of ResNet-50 for 32 images, with channels last."""
    return {
        **{"batch": 32, "channels": channels, "height": side, "width": side, "filters": channels, "groups": 1},
        **{"kernel_h": 3, "kernel_w": 3, "stride": stride, "padding": 1, "layout": "NHWC", "dtype": "float16"},
    }


def _softmax(rows: int, columns: int) -> Mapping[str, Any]:
    return {"rows": rows, "columns": columns, "dtype": "float16"}


def _transpose(shape: list[int], axes: list[int], dtype: str) -> Mapping[str, Any]:
    return {"shape": shape, "axes": axes, "dtype": dtype}


def _reduction(shape: list[int], axes: list[int], kind: str, dtype: str) -> Mapping[str, Any]:
    return {"shape": shape, "axes": axes, "kind": kind, "dtype": dtype}


_Sketches = tuple[tuple[Sketch, Subspace], ...]
_ROWS: _Sketches = ((CUDA_ROWWISE, {}), (CUDA_LOOPS, {}))
_PERMUTED: _Sketches = ((CUDA_PERMUTE, {}), (CUDA_LOOPS, {}))
_COLUMNS: _Sketches = ((CUDA_COLUMNWISE, {}), (CUDA_LOOPS, {}))
_FEW_COLUMNS: _Sketches = ((CUDA_COLUMNWISE, {"splits": (4, 8, 16, 32, 66, 132, 264)}), (CUDA_LOOPS, {}))
"""Without splits, few long sums take up to a thousand times as long as the best setting."""


def _product(*swapped: int, **subspace: tuple[KnobValue, ...]) -> _Sketches:
    """Return the sub-spaces of a product. ``swapped``: values of ``mma_n`` where sides are swapped."""
    swap = ((CUDA_GEMM_SWAP_AB, {**_PRODUCT, "group_m": (8,), "mma_n": swapped}),) if swapped else ()
    return ((CUDA_GEMM, {**_PRODUCT, **subspace}), *swap, (CUDA_LOOPS, _FMA_TILES))


def _convolved(**subspace: tuple[KnobValue, ...]) -> _Sketches:
    return ((CUDA_CONV, {**_CONVOLUTION, **subspace}), (CUDA_LOOPS, _FMA_TILES))


_Row = tuple[str, str, Mapping[str, Any], _Sketches]
_KINDS: Mapping[str, tuple[_Row, _Row, _Row]] = {
    "softmax": (
        ("softmax-8192x1024", "softmax", _softmax(8192, 1024), _ROWS),
        ("softmax-8192x8192", "softmax", _softmax(8192, 8192), _ROWS),
        ("softmax-1024x65536", "softmax", _softmax(1024, 65536), _ROWS),
    ),
    "permute": (
        ("transpose-8192x8192", "transpose", _transpose([8192, 8192], [1, 0], "float16"), _PERMUTED),
        ("permute_0231-32x256x56x56", "transpose", _transpose([32, 256, 56, 56], [0, 2, 3, 1], "float16"), _PERMUTED),
        ("transpose-4096x8192-f32", "transpose", _transpose([4096, 8192], [1, 0], "float32"), _PERMUTED),
    ),
    "reduction": (
        ("column_sum-8192x8192-f32", "reduce", _reduction([8192, 8192], [0], "sum", "float32"), _COLUMNS),
        ("mean_nhw-32x56x56x256", "reduce", _reduction([32, 56, 56, 256], [0, 1, 2], "mean", "float16"), _FEW_COLUMNS),
        ("column_sum-16384x4096-bf16", "reduce", _reduction([16384, 4096], [0], "sum", "bfloat16"), _COLUMNS),
    ),
    "convolution": (
        (
            "convolution-3x3-56x56x64",
            "conv2d",
            _convolution(56, 64, 1),
            _convolved(mma_n=(32, 48, 64, 128), cluster_m=(1, 2), cluster_n=(1, 2)),
        ),
        (
            "convolution-3x3-14x14x256",
            "conv2d",
            _convolution(14, 256, 1),
            _convolved(mma_n=(64, 128), producer_warpgroup=(0,)),
        ),
        (
            "convolution-3x3s2-28x28x256",
            "conv2d",
            _convolution(28, 256, 2),
            _convolved(mma_n=(32, 64, 128, 256)),
        ),
    ),
    "product": (
        (
            "product-2048x4096x4096",
            "linear",
            linear(2048, 4096, 4096),
            _product(mma_n=(64, 128, 192, 208, 256), group_m=(4, 8, 16)),
        ),
        (
            "product-512x6144x4096",
            "linear",
            linear(512, 6144, 4096),
            _product(128, 176, 256, mma_n=(64, 96, 128, 160, 192, 208, 224, 256)),
        ),
        (
            "product-1024x4096x14336",
            "linear",
            linear(1024, 4096, 14336),
            _product(144, 208, 256, mma_n=(64, 128, 160, 192, 256)),
        ),
    ),
}
"""Kind -> its three workloads: name, operator, parameters, and the sub-space of each sketch. They are of the tables of
``h200_memory``, ``h200_convolution`` and ``h200_products``, or much alike, and what was fastest there is inside."""


def _tables() -> dict[str, Table]:
    """Return the first workload of every kind, then the second of every kind, and so on: a recording that is cut short
    has something of each."""
    found = []
    for number in range(3):
        for kind, rows in _KINDS.items():
            name, operator, parameters, sketches = rows[number]
            for sketch, subspace in sketches:
                found.append(Table(f"{name}-{sketch.name}", operator, parameters, sketch, subspace, kind))
    for name, shape in _LANGUAGE_MODELS.items():
        row = f"{name}-{'x'.join(map(str, shape))}"
        found.append(Table(row, "linear", linear(*shape), CUDA_GEMM, _LANGUAGE_MODEL))
    return {table.name: table for table in found}


TABLES = _tables()
