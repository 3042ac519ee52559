"""Thread tiles: what they take, what they load, what they compute, and what the compiler makes of them."""

from collections.abc import Mapping

import pytest

from tests.schedule.gpu.tiles import H200, legal_schedule_of
from tests.sketch_agreement import check_schedules
from tilewright.codegen.lowering import lowering_stages
from tilewright.core.policy import SpacePolicy
from tilewright.core.schedule import Schedule
from tilewright.schedule.defaults import default_schedule
from tilewright.schedule.gpu.thread_tile.loads import MOST_COMPUTED, ThreadTile, tile_loads
from tilewright.schedule.gpu.thread_tile.pieces import load_order, pieces_of
from tilewright.schedule.gpu.thread_tile.space import CUDA_THREAD_TILE as SKETCH
from tilewright.schedule.gpu.thread_tile.space import thread_tile_problem
from tilewright.te.parse import parse_workload
from tilewright.te.workload import Workload

LUMA = "X: uint8[{n}, {x}, 3]\nW: float32[3]\nY[n, x] = sum over c < 3 of float32(X[n, x, c]) * W[c]"
MATRIX = (
    "X: uint8[2, {x}, 3]\nM: float32[3, 3]\nS[n, x, c < 3] = sum over k < 3 of float32(X[n, x, k]) * M[c, k]\n"
    "Y[n, x, c] = uint8(min(max(S[n, x, c], 0.0), 255.0))"
)
YUV = (
    "X: uint8[2, 4, {x}, 3]\nY[n, y, x, c < 3] = uint8(float32(X[n, y, x, 0]) + select(c == 0, "
    "1.402 * (float32(X[n, y, x, 2]) - 128), select(c == 1, -0.344 * (float32(X[n, y, x, 1]) - 128), "
    "1.772 * (float32(X[n, y, x, 1]) - 128))))"
)
NV12 = (
    "Y: uint8[2, 4, 32]\nC: uint8[2, 2, 16, 2]\nR[n, y, x, c < 3] = float16(float32(Y[n, y, x]) + "
    "float32(C[n, y // 2, x // 2, min(c, 1)]))"
)
POLYPHASE = "X: float32[2, 47]\nH: float32[8, 4]\nY[b, t < 40, p < 4] = sum over k < 8 of X[b, t + k] * H[k, p]"
RESAMPLED = "X: float32[2, 40]\nH: float32[3, 8]\nY[b, t < 48] = sum over k < 8 of X[b, t * 2 // 3 + k] * H[t % 3, k]"
COSTS = (
    "L: float16[2, 5, 3, 16]\nR: float16[2, 5, 3, 24]\n"
    "V[n, d < 8, y, x < 16] = sum over c < 5 of float32(L[n, c, y, x]) * float32(R[n, c, y, x + 7 - d])"
)
BEHIND_THE_BORDER = (
    "L: float32[2, 3, 4, 16]\nR: float32[2, 3, 4, 16]\n"
    "V[n, d < 4, y, x] = sum over c < 3 of select(x >= d, L[n, c, y, x] * R[n, c, y, max(x - d, 0)], 0.0)"
)
INVOLUTION = (
    "X: float16[2, 8, 10, 18]\nK: float16[2, 2, 9, 8, 16]\nS[n, c, y < 8, x < 16] = sum over r < 3, s < 3 of "
    "float32(X[n, c, y + r, x + s]) * float32(K[n, c // 4, r * 3 + s, y, x])"
)
SKINNING = (
    "P: float32[24, 4]\nI: int32[24, 4]\nW: float32[24, 4]\nB: float32[6, 3, 4]\n"
    "Y[v, i < 3] = sum over b < 4, j < 4 of W[v, b] * B[min(max(int64(I[v, b]), 0), 5), i, j] * P[v, j]"
)

DILATION = (
    "X: uint8[2, 6, {x}, 3]\nY[n, y < 6, x < {x}, c] = max over r < 3, s < 3 of "
    "X[n, min(max(y + r - 1, 0), 5), min(max(x + s - 1, 0), {x} - 1), c]"
)
REFLECTED = (
    "X: float32[3, 6, 48]\nW: float32[3, 3]\nY[n, y < 6, x < 48] = sum over r < 3, s < 3 of "
    "X[n, min(max(y + r - 1, 0), 5), min(max(47 - abs(47 - abs(x + s - 1)), 0), 47)] * W[r, s]"
)
PADDED = (
    "X: float16[3, 40]\nW: float32[5]\nY[n, x < 40] = sum over s < 5 of "
    "select(x + s >= 2 and x + s < 42, float32(X[n, min(max(x + s - 2, 0), 39)]) * W[s], 0.0)"
)


def _resize(rows: str, columns: str) -> str:
    def tap(dx: int) -> str:
        at = f"min(max(int64(floor((float32(x) + 0.5) * 0.4 - 0.5)) + {dx}, 0), 11)"
        return f"float32(X[n, c, min(max(int64((float32(y) + 0.5) * 0.7), 0), 6), {at}])"

    share = "((float32(x) + 0.5) * 0.4 - 0.5 - floor((float32(x) + 0.5) * 0.4 - 0.5))"
    return (
        f"X: float16[2, 4, 7, 12]\nY[n, c, y < {rows}, x < {columns}] = "
        f"float16({tap(0)} * (1.0 - {share}) + {tap(1)} * {share})"
    )


WORKLOADS = {
    "luma": LUMA.format(n=4, x=32),
    "luma of odd rows": LUMA.format(n=3, x=7),
    "matrix": MATRIX.format(x=32),
    "matrix of odd rows": MATRIX.format(x=5),
    "costs of many channels": COSTS.replace("2, 5, 3", "2, 9, 3").replace("c < 5", "c < 9"),
    "largest of many": POLYPHASE.replace("sum", "max").replace("float32", "int32"),
    "normalised": "X: uint8[3, 8, 3]\nM: float32[3]\nY[n, x, c] = float16(float32(X[n, x, c]) / 255 - M[c])",
    "yuv": YUV.format(x=16),
    "yuv of odd rows": YUV.format(x=5),
    "nv12": NV12,
    "polyphase": POLYPHASE,
    "resampled": RESAMPLED,
    "costs": COSTS,
    "costs behind the border": BEHIND_THE_BORDER,
    "involution": INVOLUTION,
    "skinning": SKINNING,
    "resize": _resize("10", "30"),
    "dilation": DILATION.format(x=32),
    "dilation of odd rows": DILATION.format(x=11),
    "reflected": REFLECTED,
    "padded": PADDED,
}


@pytest.mark.parametrize("name", WORKLOADS)
def test_every_kind_of_problem_is_computed(name: str) -> None:
    workload = parse_workload(WORKLOADS[name])
    assert check_schedules("cuda_thread_tile", H200, workload, 1, 6, SpacePolicy(prune=False)) >= 4


def _loads(text: str, tile: ThreadTile) -> list[tuple[str, int, int]]:
    """The buffer of each group, how many chunks are loaded, and of how many elements."""
    problem = thread_tile_problem(parse_workload(text))
    assert problem is not None
    loads = tile_loads(problem, tile)
    assert loads is not None and not loads.others
    return sorted((g.buffer.name, len(g.chunks), g.lanes) for g in loads.groups)


def test_pixels_are_loaded_by_aligned_chunks() -> None:
    assert _loads(LUMA.format(n=4, x=32), ThreadTile(16)) == [("W", 3, 1), ("X", 3, 16)]
    assert _loads(LUMA.format(n=4, x=32), ThreadTile(8)) == [("W", 3, 1), ("X", 3, 8)]
    # Pixels of rows of seven begin anywhere.
    assert _loads(LUMA.format(n=3, x=7), ThreadTile(7)) == [("W", 3, 1), ("X", 21, 1)]


def test_channels_of_a_pixel_are_known() -> None:
    assert _loads(YUV.format(x=16), ThreadTile(12)) == [("X", 3, 4)]
    assert _loads(MATRIX.format(x=32), ThreadTile(24)) == [("M", 9, 1), ("X", 3, 8)]


def test_rows_are_loaded_beyond_their_ends_and_patched_there() -> None:
    problem = thread_tile_problem(parse_workload(DILATION.format(x=32)))
    assert problem is not None
    loads = tile_loads(problem, ThreadTile(24))
    assert loads is not None and not loads.others
    assert [(g.lanes, len(g.chunks)) for g in loads.groups] == 3 * [(8, 5)]
    # The first and the last tile have a pixel of three channels beyond each row.
    assert sorted(p.edge for patches in loads.patches.values() for p in patches) == 9 * [0] + 9 * [3]
    # Two rows of outputs read four rows.
    loads = tile_loads(problem, ThreadTile(24, 2, "y"))
    assert loads is not None and loads.accesses == 4 * 5


def test_long_sums_are_accumulated_and_loaded_piece_by_piece() -> None:
    """Registers hold what the next terms read, not what all of them do."""
    text = COSTS.replace("5, 3", "64, 3").replace("c < 5", "c < 64")
    problem = thread_tile_problem(parse_workload(text))
    assert problem is not None
    tile = ThreadTile(8, 8, "d")
    loads = tile_loads(problem, tile)
    pieces = pieces_of(problem)
    assert loads is not None and [p.last for p in pieces] == [False] * 64 + [True]
    order = load_order(problem, tile, loads)
    assert len({c for chunks in order.ahead for c in chunks}) == sum(map(len, order.ahead)) == 64 * (1 + 2)
    assert order.registers < 64 < 64 * (4 + 8)


def test_neighbours_along_another_axis_share_loads() -> None:
    assert _loads(POLYPHASE, ThreadTile(4)) == [("H", 8, 4), ("X", 8, 1)]
    assert _loads(POLYPHASE, ThreadTile(4, 8, "t")) == [("H", 8, 4), ("X", 15, 1)]
    # Vectors of disparities beside each other read one position more for each.
    assert _loads(COSTS, ThreadTile(8, 8, "d")) == [("L", 5, 8), ("R", 10, 8)]


def test_places_that_are_computed_are_shared_among_channels() -> None:
    problem = thread_tile_problem(parse_workload(WORKLOADS["resize"]))
    assert problem is not None
    for channels in (1, 4):
        loads = tile_loads(problem, ThreadTile(2, channels, "c" if channels > 1 else ""))
        assert loads is not None and len(loads.groups) == 4 and loads.accesses == 4 * channels
    assert tile_loads(problem, ThreadTile(MOST_COMPUTED)) is None


def _default(text: str) -> tuple[Workload, Schedule]:
    workload = parse_workload(text)
    schedule = default_schedule(workload, H200)
    assert schedule.sketch == "cuda_thread_tile"
    return workload, schedule


def _accesses(workload: Workload, schedule: Schedule) -> tuple[int, int, Mapping[str, int]]:
    """How many loads and stores of global memory a compiled kernel has, and all its instructions by class."""
    counts = lowering_stages(workload, H200, schedule).artifacts.instructions
    loads, stores = (
        sum(n for kind, n in counts.items() if kind.startswith(which)) for which in ("global_load", "global_store")
    )
    return loads, stores, counts


def test_bytes_are_loaded_stored_and_converted_in_few_instructions() -> None:
    workload, schedule = _default(YUV.format(x=1920).replace("2, 4,", "16, 1080,"))
    loads, stores, counts = _accesses(workload, schedule)
    knobs = dict(schedule.knobs)
    words = int(knobs["vector_width"]) * int(knobs["unroll"]) // 4
    assert 0 < loads <= words and 0 < stores <= words
    assert counts["convert"] == counts["local_memory"] == 0


def test_filters_and_places_are_loaded_and_computed_once_for_a_tile() -> None:
    workload, schedule = _default(POLYPHASE.replace("2, 47", "64, 65543").replace("t < 40", "t < 65536"))
    loads, _, counts = _accesses(workload, schedule)
    assert counts["fma_f32"] > 3 * loads
    resize = parse_workload(WORKLOADS["resize"].replace("2, 4, 7", "16, 64, 7"))
    for channels in (2, 8):
        schedule = legal_schedule_of(SKETCH, resize, vector_width=2, unroll=channels, unroll_axis=1)
        loads, _, counts = _accesses(resize, schedule)
        assert loads == 4 * channels and counts["convert"] <= 12 + channels


def test_bounds_that_a_conversion_has_are_dropped() -> None:
    """A byte is rounded and bounded by its conversion, so that those of the workload add nothing; others stay."""
    text = "X: float32[{n}]\nY[i] = {kind}(min(max(X[i], {low}), {high}))"

    def source(kind: str, low: str, high: str) -> str:
        workload = parse_workload(text.format(n=4096, kind=kind, low=low, high=high))
        return lowering_stages(workload, H200, default_schedule(workload, H200)).source.text.split("__global__")[1]

    assert "float_to_byte" in source("uint8", "0.0", "255.0") and "max_nan" not in source("uint8", "0.0", "255.0")
    assert "max_nan" in source("uint8", "1.0", "255.0") and "min_nan" not in source("uint8", "1.0", "255.0")
    assert "max_nan" in source("int8", "0.0", "127.0") and "min_nan" not in source("int8", "0.0", "127.0")
