"""The one table of names that schedules had before: sketches, knobs and values of knobs, by sketch and version.

Records, exported lines and tables made before a renaming hold the old names. ``current`` turns them into today's, so
that everything that reads a schedule knows the new names alone. A renaming changes no meaning: the schedule before and
the schedule after lower to the same kernel.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Renamed:
    """What a sketch of one version is called now. ``knobs``: old knob name -> new knob name, for those that changed.
    ``values``: old knob name -> (old value -> new value), for text values that changed. ``dropped``: old knobs that say
    nothing any more, with the one value that they may have."""

    sketch: str
    version: int
    knobs: Mapping[str, str] = field(default_factory=dict)
    values: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    dropped: Mapping[str, int | str] = field(default_factory=dict)


RENAMED: Mapping[tuple[str, int], Renamed] = {
    ("amdgpu_products", 1): Renamed(
        "amdgpu_gemm", 2, knobs={"rows": "atoms_m", "columns": "atoms_n", "depth": "block_k"}
    ),
    ("amdgpu_rows", 1): Renamed("amdgpu_rowwise", 2),
    ("cpu_dots", 3): Renamed("cpu_gemm_dot", 4),
    ("cpu_gemm", 3): Renamed("cpu_gemm", 4),
    ("cpu_gemv", 2): Renamed("cpu_gemv", 3),
    ("cpu_loops", 3): Renamed("cpu_loops", 4),
    ("cpu_tiles", 5): Renamed("cpu_gemm_amx", 6),
    ("cuda_columns", 2): Renamed("cuda_columnwise", 3),
    ("cuda_gemv", 3): Renamed("cuda_gemv", 4),
    ("cuda_layers", 3): Renamed("cuda_mlp", 4),
    ("cuda_loops", 1): Renamed("cuda_loops", 2),
    ("cuda_mma", 2): Renamed(
        "cuda_gemm_mma",
        3,
        knobs={
            "rows": "atoms_m",
            "columns": "atoms_n",
            "depth": "block_k",
            "split": "split_k",
            "resident": "ctas_per_sm",
            "staged": "staged_epilogue",
            "evened": "repacked",
        },
    ),
    ("cuda_permute", 2): Renamed("cuda_permute", 3),
    ("cuda_pointwise", 2): Renamed("cuda_pointwise", 3),
    ("cuda_products", 7): Renamed(
        "cuda_gemm",
        8,
        knobs={
            "groups": "consumer_warpgroups",
            "in_turn": "ping_pong",
            "rows": "atoms_m",
            "wide": "mma_n",
            "slabs": "k_atoms",
            "cluster": "cluster_m",
            "across": "cluster_n",
            "split": "split_k",
            "band": "group_m",
            "resident": "ctas_per_sm",
            "roomy": "producer_warpgroup",
            "even": "stream_k",
            "boxes": "epilogue_stages",
            "copied": "repacked",
        },
    ),
    ("cuda_rows", 2): Renamed("cuda_rowwise", 3),
    ("cuda_skinny", 2): Renamed("cuda_skinny_mma", 3),
    ("cuda_skinny_streams", 4): Renamed("cuda_skinny_tma", 5),
    ("cuda_windows", 2): Renamed("cuda_window", 3),
}
"""(Old sketch, its version) -> what it is called now. An entry stays for as long as records of that version may
exist."""


def current(
    sketch: str, version: int, knobs: Mapping[str, int | str]
) -> tuple[str, int, tuple[tuple[str, int | str], ...]]:
    """Sketch, version and knobs under today's names; unchanged where the table has no entry for the version."""
    entry = RENAMED.get((sketch, version))
    if entry is None:
        return sketch, version, tuple(knobs.items())
    renamed = []
    for name, value in knobs.items():
        if name in entry.dropped and value == entry.dropped[name]:
            continue
        if isinstance(value, str):
            value = entry.values.get(name, {}).get(value, value)
        renamed.append((entry.knobs.get(name, name), value))
    return entry.sketch, entry.version, tuple(renamed)
