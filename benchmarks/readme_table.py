"""Prints the README's table of results against other compilers and libraries, from the files of results.

    python -m benchmarks.readme_table

A row is one suite on one device. The speed-up of a kernel is the time of the fastest peer over ours, measured in the
same run, or in an earlier one where a peer was faster there (``EARLIER_PEERS``). The table has the geometric mean and
the least of a suite's kernels.
"""

import json
import math
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
ROWS: dict[str, tuple[str, ...]] = {
    "matrix products": ("2026-11-22-h200-products",),
    "products of few elements with long sums": ("2026-11-28-h200-products-long-sums",),
    "products of float64, sums over pairs of rows": ("2026-11-29-h200-products-pairs",),
    "products whose rows are reduced": ("2026-11-29-h200-products-row-reductions",),
    "contractions with axes in any order, batches of one row": ("2026-11-30-h200-products-contractions",),
    "few rows whose operands have rows of odd lengths": ("2026-12-01-h200-products-few-odd-rows",),
    "maps, reductions, norms, transposes, skinny products": (
        "2026-11-28-h200-memory",
        "2026-11-29-h200-memory-depthwise",
    ),
    "expressions of odd shapes: pitches, long rows, other axes, filters, differences": (
        "2026-11-28-h200-memory-odd",
        "2026-11-28-h200-memory-odd-norms",
        "2026-11-29-h200-memory-running-sums-9d06a90b",
        "2026-11-29-h200-memory-scatters",
        "2026-11-29-h200-memory-correlations",
        "2026-11-29-h200-memory-softmax-of-long-rows",
        "2026-11-29-h200-memory-filters-and-others",
    ),
    "attention": (
        "2026-11-27-h200-attention-d128",
        "2026-11-28-h200-attention-full-16x16384",
        "2026-11-28-h200-attention-rest",
    ),
    "attention with ALiBi, biases, masks, a soft cap, lengths of sequences, pages of keys": (
        "2026-11-29-h200-attention-scores",
        "2026-11-29-h200-attention-lengths-pages",
    ),
    "attention: decoding, bfloat16, 16,384 keys": ("2026-11-28-h100-attention-rest",),
    "convolutions, float16, ten with epilogues": (
        "2026-11-28-h200-convolution",
        "2026-11-29-h200-convolution-narrow-volume",
        "2026-11-30-h200-convolution-inception",
        "2026-11-30-h200-convolution-transposed",
        "2026-11-30-h200-convolution-inception-1a957fba",
        "2026-11-30-h200-convolution-transposed-1a957fba",
        "2026-11-30-h200-convolution-stem",
        "2026-11-30-h200-convolution-resnet50-3x3",
        "2026-11-30-h200-convolution-volumes",
        "2026-11-30-h200-convolution-strided-groups",
    ),
    "the same on an H100": (
        "2026-11-27-h100-convolution-resnet50",
        "2026-11-28-h100-convolution-fused",
        "2026-11-28-h100-convolution-depthwise-others",
    ),
    "pointwise convolutions of MobileNetV2, float16": ("2026-11-30-h200-convolution-mobilenet-pointwise",),
    "convolutions with channels first": (
        "2026-11-28-h200-convolution-channels-first",
        "2026-11-29-h200-convolution-depthwise-channels-first",
        "2026-11-29-h200-convolution-channels-first-more",
    ),
    "gradients of convolutions towards filters, a stem of volumes": ("2026-11-29-h200-convolution-weight-gradients",),
    "convolutions, float32 as TF32": (
        "2026-11-28-h200-convolution-tf32",
        "2026-11-28-h200-convolution-tf32-rest",
        "2026-11-30-h200-convolution-tf32-stem",
    ),
    "products of 8-bit floats, with scales of tensors or blocks": (
        "2026-11-27-h200-types-fp8",
        "2026-11-29-h200-types-fp8block",
    ),
    "products of float32 as TF32, both operands row-major": ("2026-11-30-h200-types-tf32-along-n",),
    "weights, keys and values of fewer bits": ("2026-11-29-h200-stored", "2026-11-29-h200-stored-rest"),
    "grouped products (experts), bfloat16": ("2026-11-28-h200-grouped",),
    "whole models, float16": ("2026-11-27-h200-models",),
    "single modules, float32, in training mode": ("2026-11-29-h200-modules",),
    "whole models, float32, batch 1, processor": ("2026-11-27-epyc-2-cores-cpu-models",),
    "the same on an Intel Xeon": ("2026-11-28-xeon-2-cores-cpu-models",),
    "all operators, and odd shapes, processor": (
        "2026-11-29-epyc-2-cores-cpu-fa7347a6",
        "2026-11-29-epyc-2-cores-cpu-odd-fa7347a6",
        "2026-11-29-epyc-2-cores-cpu-odd-softmax-fa7347a6",
    ),
    "all operators, and odd shapes, on an Intel Xeon": (
        "2026-11-28-xeon-2-cores-cpu",
        "2026-11-28-xeon-2-cores-cpu-odd",
        "2026-12-01-xeon-2-cores-cpu",
    ),
}
"""What a row shows -> the files that its kernels are in; of two files with one kernel, the later counts."""

EARLIER_PEERS: dict[str, tuple[str, ...]] = {
    "maps, reductions, norms, transposes, skinny products": ("2026-11-22-h200-memory-house",),
    "expressions of odd shapes: pitches, long rows, other axes, filters, differences": (
        "2026-11-27-h200-memory-odd",
        "2026-11-28-h200-memory-odd-240196b4",
        "2026-11-28-h200-memory-odd-9deddbae",
        "2026-11-29-h200-memory-running-sums",
    ),
    "convolutions, float16, ten with epilogues": (
        "2026-11-28-h200-convolution",
        "2026-11-29-h200-convolution-narrow-volume",
        "2026-11-30-h200-convolution-inception",
        "2026-11-30-h200-convolution-transposed",
    ),
    "pointwise convolutions of MobileNetV2, float16": (
        "2026-11-28-h200-convolution-mobilenet-pointwise",
        "2026-11-27-h200-convolution-pointwise",
        "2026-11-28-h200-convolution-mobilenet-pointwise-5fc2cc3b",
        "2026-11-28-h200-convolution-mobilenet-pointwise-82a52cc0",
        "2026-11-28-h200-convolution-mobilenet-pointwise-aeaeab4b",
    ),
}
"""Earlier results whose peers count too: what autotuning chooses for a peer differs from run to run, by up to a factor
of two. All are times of short replays of a rested chip, which its power does not bound, so that two runs compare."""


def _earlier_rows(name: str) -> list[dict[str, Any]]:
    """Return all rows of earlier results whose peers count."""
    files = [json.loads((RESULTS / f"{file}.json").read_text()) for file in EARLIER_PEERS.get(name, ())]
    return [row for file in files for row in file["rows"]]


def _fastest_peers(name: str) -> dict[str, float]:
    """Return the least time of any peer in earlier results, in microseconds, by kernel."""
    fastest: dict[str, float] = {}
    for row in _earlier_rows(name):
        times = [us for us in row["peers_us"].values() if not isinstance(us, str)]
        fastest[row["row"]] = min([*times, fastest.get(row["row"], math.inf)])
    return fastest


def table() -> str:
    """Return the table as Markdown."""
    lines = [
        "| kernels | device, day | number | fastest of | speed-up, geometric mean | least |",
        "|---|---|---|---|---|---|",
    ]
    for name, files in ROWS.items():
        found = [json.loads((RESULTS / f"{file}.json").read_text()) for file in files]
        rows: list[dict[str, Any]] = list({row["row"]: row for one in found for row in one["rows"]}.values())
        ratios = [min(row["ratio"], row.get("openvino_ratio", math.inf)) for row in rows]
        earlier = _fastest_peers(name)
        if earlier:
            by_earlier = [earlier.get(row["row"], math.inf) / row["ours_us"] for row in rows]
            ratios = [min(both) for both in zip(ratios, by_earlier, strict=True)]
        timed_rows = [*rows, *_earlier_rows(name)]
        times = [item for row in timed_rows for item in (row.get("peers_us") or row["us"]).items()]
        timed = {peer.partition(",")[0] for peer, us in times if not isinstance(us, str)}
        peers = ", ".join(sorted(timed - {"ours"}, key=str.lower))
        device, day = found[0]["device"], found[0]["started"][:10]
        cores = f", {device['cores']:.0f} cores" if device["name"].startswith(("AMD", "Intel")) else ""
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        lines.append(
            f"| {name} | {device['name']}{cores}, {day} | {len(rows)} | {peers} | {mean:.2f} | {min(ratios):.2f} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
