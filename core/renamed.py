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
    ``values``: old knob name -> (old value -> new value), for values that changed. ``dropped``: old knobs that say
    nothing any more, with the one value that they may have. ``added``: new knobs, with the value that means what was
    there before."""

    sketch: str
    version: int
    knobs: Mapping[str, str] = field(default_factory=dict)
    values: Mapping[str, Mapping[int | str, int | str]] = field(default_factory=dict)
    dropped: Mapping[str, int | str] = field(default_factory=dict)
    added: Mapping[str, int | str] = field(default_factory=dict)


_VECTOR_WIDTH = {"vector": "vector_width"}
RENAMED: Mapping[tuple[str, int], Renamed] = {
    ("amdgpu_products", 1): Renamed(
        "amdgpu_gemm", 2, knobs={"rows": "atoms_m", "columns": "atoms_n", "depth": "block_k"}
    ),
    ("amdgpu_rowwise", 2): Renamed("amdgpu_rowwise", 3, knobs=_VECTOR_WIDTH),
    ("amdgpu_rows", 1): Renamed(
        "amdgpu_rowwise",
        2,
        knobs={
            "lanes": "threads_per_row",
            "teams": "rows_per_cta",
            "cluster": "cluster_size",
            "hold": "row_storage",
            "resident": "ctas_per_sm",
            "ahead": "prefetch_depth",
            "early": "broadcast_preload",
        },
        values={
            "hold": {"split": "registers_and_shared", "queue": "circular_buffer", "memory": "global"},
            "ahead": {"all": "one_row", "half": "half_row", "two": "two_rows"},
        },
    ),
    ("amdgpu_scan", 1): Renamed("amdgpu_scan", 2, knobs=_VECTOR_WIDTH),
    ("cpu_dots", 3): Renamed(
        "cpu_gemm_dot",
        4,
        knobs={
            "rows": "mr",
            "vectors": "nr_vectors",
            "row_tasks": "m_blocks",
            "column_tasks": "n_blocks",
            "depth": "kc",
        },
    ),
    ("cpu_gemm", 3): Renamed(
        "cpu_gemm",
        4,
        knobs={
            "rows": "mr",
            "vectors": "nr_vectors",
            "row_tasks": "m_blocks",
            "column_tasks": "n_blocks",
            "depth": "kc",
        },
    ),
    ("cpu_gemv", 2): Renamed(
        "cpu_gemv", 3, knobs={"rows": "k_unroll", "column_tasks": "n_blocks", "row_tasks": "split_k"}
    ),
    ("cpu_loops", 3): Renamed("cpu_loops", 4, values={"store": {"streamed": "non_temporal"}}),
    ("cpu_scan", 1): Renamed("cpu_scan", 2, knobs=_VECTOR_WIDTH),
    ("cpu_tiles", 5): Renamed(
        "cpu_gemm_amx",
        6,
        knobs={
            "rows": "mr",
            "vectors": "nr_vectors",
            "row_tasks": "m_blocks",
            "column_tasks": "n_blocks",
            "depth": "kc",
            "by_rows": "order",
        },
        values={"by_rows": {1: "columns_inside", 0: "rows_inside"}, "store": {"streamed": "non_temporal"}},
    ),
    ("cuda_columns", 2): Renamed(
        "cuda_columnwise",
        3,
        knobs={"width": "threads_x", "depth": "threads_y", "deal": "arrangement", "join": "combine"},
        values={"deal": {"runs": "blocked", "turns": "striped"}, "join": {"launch": "second_launch"}},
    ),
    ("cuda_columnwise", 3): Renamed("cuda_columnwise", 4, knobs=_VECTOR_WIDTH),
    ("cuda_gemm_simt", 2): Renamed("cuda_gemm_simt", 3, added={"repacked": 0}),
    ("cuda_gemv", 3): Renamed("cuda_gemv", 4, knobs={"rows": "rows_per_warp", "lanes": "lanes_n"}),
    ("cuda_layers", 3): Renamed(
        "cuda_mlp",
        4,
        knobs={
            "rows": "atoms_m",
            "warps": "warps_n",
            "chunk": "tile_k",
            "cluster": "cluster_n",
            "resident": "ctas_per_sm",
        },
    ),
    ("cuda_loops", 1): Renamed("cuda_loops", 2, knobs={"chunk": "block_k", "lanes": "threads_per_output"}),
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
    ("cuda_permute", 2): Renamed(
        "cuda_permute",
        3,
        knobs={
            "vector": "vector_width",
            "tile_source": "tile_in",
            "tile_sink": "tile_out",
            "order": "raster_order",
            "stream": "evict_first",
        },
        values={"order": {"source": "along_input", "sink": "along_output"}},
    ),
    ("cuda_pointwise", 2): Renamed("cuda_pointwise", 3, knobs={"vector": "vector_width", "stream": "evict_first"}),
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
    ("cuda_rows", 2): Renamed(
        "cuda_rowwise",
        3,
        knobs={
            "lanes": "threads_per_row",
            "teams": "rows_per_cta",
            "cluster": "cluster_size",
            "hold": "row_storage",
            "resident": "ctas_per_sm",
            "ahead": "prefetch_depth",
            "early": "broadcast_preload",
        },
        values={
            "hold": {"split": "registers_and_shared", "queue": "circular_buffer", "memory": "global"},
            "ahead": {"all": "one_row", "half": "half_row", "two": "two_rows"},
        },
    ),
    ("cuda_rowwise", 3): Renamed("cuda_rowwise", 4, knobs=_VECTOR_WIDTH),
    ("cuda_rowwise_split", 1): Renamed("cuda_rowwise_split", 2, knobs=_VECTOR_WIDTH),
    ("cuda_scan", 1): Renamed("cuda_scan", 2, knobs=_VECTOR_WIDTH),
    ("cuda_skinny", 2): Renamed(
        "cuda_skinny_mma",
        3,
        knobs={"rows": "atoms_n", "chunk": "tile_k", "split": "split_k", "resident": "ctas_per_sm"},
    ),
    ("cuda_skinny_streams", 4): Renamed(
        "cuda_skinny_tma",
        5,
        knobs={
            "swapped": "swap_ab",
            "wide": "mma_n",
            "groups": "consumer_warpgroups",
            "slabs": "k_atoms",
            "split": "split_k",
            "resident": "ctas_per_sm",
        },
        values={"swapped": {0: 1, 1: 0}},
    ),
    ("cuda_windows", 2): Renamed("cuda_window", 3, knobs={"vector": "vector_width", "run": "tile_w", "rows": "tile_h"}),
}
"""(Old sketch, its version) -> what it is called now. An entry stays for as long as records of that version may
exist."""


def current(
    sketch: str, version: int, knobs: Mapping[str, int | str]
) -> tuple[str, int, tuple[tuple[str, int | str], ...]]:
    """Sketch, version and knobs under today's names; unchanged where the table has no entry for the version. An entry
    may lead to a version that has an entry itself."""
    setting = tuple(knobs.items())
    while (entry := RENAMED.get((sketch, version))) is not None:
        sketch, version, setting = entry.sketch, entry.version, _renamed(entry, setting)
    return sketch, version, setting


def _renamed(entry: Renamed, setting: tuple[tuple[str, int | str], ...]) -> tuple[tuple[str, int | str], ...]:
    renamed = []
    for name, value in setting:
        if name in entry.dropped and value == entry.dropped[name]:
            continue
        renamed.append((entry.knobs.get(name, name), entry.values.get(name, {}).get(value, value)))
    return (*renamed, *entry.added.items())
