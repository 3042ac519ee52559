"""Rows of other tuners' logs as results of our schedules, as far as their settings mean the same.

A Triton kernel has the settings of its log as knobs. For a product, tiles decide. Among the legal settings of a sketch
with the tile of the log, the one is taken that is nearest in threads, stages and order. Among equally near ones it is
that with the least estimated time. The log says nothing of the other knobs of a sketch. Of rows with one schedule the
fastest is kept.

Times of another program's clock are compared with one another alone.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..core.policy import SpacePolicy
from ..core.schedule import Schedule
from ..core.target import DeviceInfo, Target
from ..core.trial import Outcome, Timed
from ..ir.expr import WARP_LANES
from ..ir.gpu.barrier import WARPGROUP_THREADS
from ..ir.gpu.wgmma import LINE_BYTES, WGMMA_M
from ..schedule.gpu.gemm_mma.operands import ATOM_M, ATOM_N
from ..schedule.gpu.gemm_simt.sizes import LANES_M, LANES_N
from ..schedule.gpu.triton import CUDA_TRITON
from ..schedule.problems.gemm import Gemm, gemm_of
from ..schedule.sketches import sketches_for
from ..schedule.space.space import Space
from ..te.triton import TritonWorkload
from ..te.workload import Workload
from .tuning_logs import LogRow

Columns = Mapping[str, NDArray[np.float64]]
_ALIASES = {"BLOCK_SIZE_M": "BLOCK_M", "BLOCK_SIZE_N": "BLOCK_N", "BLOCK_SIZE_K": "BLOCK_K", "GROUP_SIZE_M": "GROUP_M"}
_TILE = ("BLOCK_M", "BLOCK_N", "BLOCK_K", "REGISTER_M", "REGISTER_N")
_EXACT = (*_TILE, "SPLIT_K")
"""A setting has to be equal in these where the log has them; in the others of a sketch's table it is the nearest."""


@dataclass(frozen=True, slots=True)
class Imported:
    """``refused``: why rows were not taken -> how many."""

    results: tuple[tuple[Schedule, Outcome], ...]
    refused: Mapping[str, int]


def imported(rows: Sequence[LogRow], workload: Workload, device: DeviceInfo) -> Imported:
    """Map rows to schedules of a workload on the target of a device."""
    find = _triton(workload) if isinstance(workload, TritonWorkload) else _Products(workload, device).find
    found: dict[Schedule, Outcome] = {}
    refused: Counter[str] = Counter()
    for row in rows:
        schedule: Schedule | str = row.refused or _unfit(row, workload) or find(row)
        if isinstance(schedule, str):
            refused[schedule] += 1
            continue
        assert row.outcome is not None  # _unfit
        if schedule in found:
            refused["another row with the same schedule is at least as fast"] += 1
        if schedule not in found or _seconds(row.outcome) < _seconds(found[schedule]):
            found[schedule] = row.outcome
    return Imported(tuple(found.items()), dict(refused))


def _unfit(row: LogRow, workload: Workload) -> str:
    """Why a row says nothing of a workload; empty where it does."""
    if row.outcome is None:
        return "the log does not say how fast its configuration is"
    if isinstance(workload, TritonWorkload) or not row.shapes:
        return ""
    shapes = [tensor.shape for tensor in workload.inputs]
    if row.extents:  # all arguments, outputs included
        shapes += [tensor.shape for tensor in workload.output_buffers]
    return "" if sorted(shapes) == sorted(row.shapes) else "the row is of other shapes"


def _seconds(outcome: Outcome) -> float:
    return outcome.seconds if isinstance(outcome, Timed) else float("inf")


def _triton(workload: TritonWorkload) -> Callable[[LogRow], Schedule | str]:
    configurations = workload.triton.configurations

    def find(row: LogRow) -> Schedule | str:
        missing = [name for name in configurations.names if name not in row.settings]
        if missing:
            return f"the row has no {', '.join(missing)}"
        knobs = {name: row.settings[name] for name in configurations.names}
        if configurations.row_of(knobs) is None:
            return "the kernel has no such configuration"
        return Schedule.of(CUDA_TRITON.name, CUDA_TRITON.version, knobs)

    return find


class _Products:
    """The legal settings of the sketches that have a table of tiles, with what a log calls their columns."""

    def __init__(self, workload: Workload, device: DeviceInfo) -> None:
        self._gemm = gemm_of(workload)
        self._spaces: list[tuple[Space, Columns]] = []
        policy = SpacePolicy(prune=False)
        for sketch in sketches_for(workload, device.target) if self._gemm is not None else ():
            table = _TABLES.get(sketch.name)
            if table is not None and self._gemm is not None:
                space = sketch.space(workload, device.target, policy=policy, peaks=device.measured)
                self._spaces.append((space, table(space, self._gemm, device.target)))

    def find(self, row: LogRow) -> Schedule | str:
        if self._gemm is None:
            return "the workload is no product, whose tiles could be told"
        if not self._spaces:
            return "no sketch for the workload on this target has tiles like those of a log"
        extents = (self._gemm.m.extent, self._gemm.n.extent, self._gemm.k.extent)
        if row.extents and row.extents != extents:
            return "the row tiles loops of other extents"
        wanted = {"SPLIT_K": 1, **{_ALIASES.get(name, name): value for name, value in row.settings.items()}}
        if isinstance(warps := wanted.get("num_warps"), int):
            wanted["threads"] = WARP_LANES * warps
        if isinstance(stages := wanted.get("num_stages"), int):
            wanted["stages"] = stages
        for space, columns in self._spaces:
            known = {name: float(v) for name, v in wanted.items() if name in columns and isinstance(v, int)}
            if not any(name in _TILE for name in known):
                continue
            fits = np.ones(len(space), np.bool_)
            apart = np.zeros(len(space))
            for name, value in known.items():
                if name in _EXACT:
                    fits &= columns[name] == value
                else:
                    apart += np.abs(np.log2(1 + columns[name]) - np.log2(1 + value))
            if fits.any():
                prior = np.zeros(len(space)) if space.prior_seconds is None else space.prior_seconds
                places = np.flatnonzero(fits)
                return space.schedule(int(places[np.lexsort((prior[places], apart[places]))[0]]))
        return "no legal setting has this tile" if any(name in wanted for name in _TILE) else "the row has no tile"


def _numbers(space: Space, name: str) -> NDArray[np.float64]:
    return np.asarray(space.column(name), np.float64)


def _element_bytes(gemm: Gemm) -> int:
    return (gemm.a.body if gemm.a.load is None else gemm.a.load.buffer).dtype.bytes


def _wgmma(space: Space, gemm: Gemm, target: Target) -> Columns:
    groups, joined = _numbers(space, "consumer_warpgroups"), _numbers(space, "ping_pong") == 0
    return {
        "BLOCK_M": WGMMA_M * _numbers(space, "atoms_m") * np.where(joined, groups, 1),
        "BLOCK_N": _numbers(space, "mma_n") / len(gemm.accumulators),
        "BLOCK_K": LINE_BYTES / _element_bytes(gemm) * _numbers(space, "k_atoms"),
        "SPLIT_K": _numbers(space, "split_k"),
        "GROUP_M": _numbers(space, "group_m"),
        "threads": WARPGROUP_THREADS * groups,
        "stages": space.quantities["stages"].astype(np.float64),
    }


def _mma(space: Space, gemm: Gemm, target: Target) -> Columns:
    return _of_warps(space, ATOM_M * _numbers(space, "atoms_m"), ATOM_N * _numbers(space, "atoms_n"))


def _simt(space: Space, gemm: Gemm, target: Target) -> Columns:
    return _of_warps(space, LANES_M * _numbers(space, "thread_m"), LANES_N * _numbers(space, "thread_n"))


def _of_warps(space: Space, warp_m: NDArray[np.float64], warp_n: NDArray[np.float64]) -> Columns:
    warps_m, warps_n = _numbers(space, "warps_m"), _numbers(space, "warps_n")
    return {
        "BLOCK_M": warp_m * warps_m,
        "BLOCK_N": warp_n * warps_n,
        "BLOCK_K": _numbers(space, "block_k"),
        "SPLIT_K": _numbers(space, "split_k"),
        "threads": WARP_LANES * warps_m * warps_n,
        "stages": space.quantities["stages"].astype(np.float64),
    }


def _cpu(space: Space, gemm: Gemm, target: Target) -> Columns:
    lanes = target.vector_bytes // _element_bytes(gemm)
    return {
        "REGISTER_M": _numbers(space, "mr"),
        "REGISTER_N": lanes * _numbers(space, "nr_vectors"),
        "KC": _numbers(space, "kc"),
        "BLOCKS_M": _numbers(space, "m_blocks"),
        "BLOCKS_N": _numbers(space, "n_blocks"),
    }


_TABLES: Mapping[str, Callable[[Space, Gemm, Target], Columns]] = {
    "cuda_gemm": _wgmma,
    "cuda_gemm_mma": _mma,
    "cuda_gemm_simt": _simt,
    "cpu_gemm": _cpu,
}
"""Sketch -> what a log calls the columns of its legal settings."""
