"""What a search loses when the constants of its prior are wrong: replays of tables that an H200 recorded.

A row is a table of ``benchmarks/data``. In each of ``draws`` (20) every peak of the device and every constant of the
priors of products is multiplied by a factor of its own, from 0.3 to 3, evenly in its logarithm. ``loss_N`` is how much
slower the best of N trials is than the best of the table, the median over the draws; ``right_N`` is the same with the
constants as they are, ``worst_N`` that of the worst draw. Bar: the median loss of all draws and tables after 100 trials
is at most 2 %.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import fields, replace
from math import exp, log
from pathlib import Path
from random import Random
from statistics import median
from types import ModuleType
from typing import Any
from unittest.mock import patch

from benchmarks.prior_search import curve_of, recorded_workloads
from benchmarks.suite import Options, Result
from tilewright.benchmarks.recorded_tables import FOLDER, SUFFIX
from tilewright.schedule.gpu import peaks
from tilewright.schedule.gpu.gemm import prior as gemm
from tilewright.schedule.gpu.gemm_mma import prior as gemm_mma

COUNTS = (8, 32, 100)
DRAWS = 20
LEAST, MOST = 0.3, 3.0
MOST_LOSS = 0.02


def run(options: Options) -> Result:
    """Replay every table whose name matches."""
    draws = int(options.extra.get("draws", DRAWS))
    losses: dict[int, list[float]] = {n: [] for n in COUNTS}
    rows = []
    for path in sorted(FOLDER.glob("*" + SUFFIX)):
        if path.match(options.rows):
            rows.append(_row(path, draws, options.seed, losses))
    summary = {f"median_loss_{n}": median(found) for n, found in losses.items() if found}
    passed = bool(rows) and summary[f"median_loss_{max(COUNTS)}"] <= MOST_LOSS
    return Result(tuple(rows), summary, passed, {"draws": draws, "least": LEAST, "most": MOST})


def _row(path: Path, draws: int, seed: int, losses: dict[int, list[float]]) -> dict[str, object]:
    (table,) = recorded_workloads([path])
    right = curve_of(table, seed, COUNTS)
    found: dict[int, list[float]] = {n: [] for n in COUNTS}
    for draw in range(seed, seed + draws):
        with _wrong_constants(Random(draw)):
            (led,) = recorded_workloads([path])
        for n, speed in curve_of(led, draw, COUNTS).items():
            found[n].append(1.0 / speed - 1.0)
    row: dict[str, object] = {"row": path.name.removesuffix(SUFFIX), "settings": table.settings}
    for n in COUNTS:
        losses[n] += found[n]
        row |= {f"loss_{n}": median(found[n]), f"worst_{n}": max(found[n]), f"right_{n}": 1.0 / right[n] - 1.0}
    print(row, flush=True)
    return row


@contextmanager
def _wrong_constants(random: Random) -> Iterator[None]:
    """Every constant that is a number is another one while the block runs."""

    def factor() -> float:
        return exp(random.uniform(log(LEAST), log(MOST)))

    with ExitStack() as stack:
        for module in (gemm, gemm_mma):
            for name, value in _constants(module).items():
                stack.enter_context(patch.object(module, name, value * factor()))
        traits = peaks.ARCHITECTURES["sm_90a"]
        rates = {f.name: getattr(traits, f.name) * factor() for f in fields(traits) if f.name not in _NO_RATES}
        other = {**peaks.ARCHITECTURES, "sm_90a": replace(traits, **rates)}
        stack.enter_context(patch.object(peaks, "ARCHITECTURES", other))
        yield


_NO_RATES = ("float32_lanes",)
"""How many units there are is no estimate."""
_SIZES = ("ATOM_K", "LINE_BYTES", "WARP_LANES", "WGMMA_M")


def _constants(module: ModuleType) -> dict[str, Any]:
    """Return the constants of a prior by name: factors, rates and cycles, but no sizes of the instruction set."""
    found = {name: v for name, v in vars(module).items() if name.isupper() and name not in _SIZES}
    return {name: v for name, v in found.items() if isinstance(v, int | float)}
