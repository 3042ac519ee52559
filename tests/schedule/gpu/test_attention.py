"""Attention by TMA and wgmma: which workloads match, what kernels compute, what the compiler makes of them."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from tests.schedule.gpu.tiles import H200, WHOLE, assert_agrees, compiled, legal_schedule_of, workload_of
from tilewright.codegen.backends import backend_for
from tilewright.codegen.lowering import build_kernel, finish
from tilewright.core.errors import IllegalSchedule
from tilewright.core.policy import SpacePolicy
from tilewright.core.schedule import KnobValue, Schedule
from tilewright.core.target import Target
from tilewright.ir.expr import Const, Expr, index
from tilewright.ir.gpu.ordered_sequence import OrderedSequenceWait
from tilewright.ir.simplify import simplify
from tilewright.ir.stmt import walk_statements
from tilewright.ir.text import kernel_text
from tilewright.schedule.defaults import default_schedule
from tilewright.schedule.gpu.attention.operand_tiles import v_is_of_keys
from tilewright.schedule.gpu.attention.space import CUDA_ATTENTION as SKETCH
from tilewright.schedule.gpu.attention.space import AttentionPlan
from tilewright.schedule.gpu.attention.tile_scheduler import AttentionTileScheduler
from tilewright.schedule.problems.attention import attention_of
from tilewright.schedule.sketches import sketches_for
from tilewright.te.parse import parse_workload
from tilewright.te.workload import Workload
from tilewright.tests.golden import check_golden
from tilewright.tests.schedule.attention_expressions import Spelling
from tilewright.tests.schedule.interpreted import assert_computes

FEW = Target("cuda", "sm_90a", (), threads=3, vector_bytes=16)
"""A device with three multiprocessors: a CTA works through many tiles even of a small workload."""
PLAINEST: Mapping[str, KnobValue] = {
    "consumer_warpgroups": 2,
    "tile_kv": 64,
    "stages": 2,
    "overlap": 1,
    "ping_pong": 0,
    "persistent": 0,
    "q_stages": 1,
    "split_kv": 1,
    "group_heads": 1,
}
LARGE: Mapping[str, Any] = {"heads": 32, "queries": 4096, "keys": 4096, "dtype": "float16"}


def _workload(**parameters: Any) -> Workload:
    return workload_of("attention", **{"heads": 2, "queries": 150, "keys": 170, "dtype": "float16", **parameters})


def _schedule(**knobs: KnobValue) -> Schedule:
    return Schedule.of(SKETCH.name, SKETCH.version, {**PLAINEST, **knobs})


@pytest.mark.parametrize(
    ("parameters", "knobs"),
    [
        ({"depth": 64}, {}),
        ({"depth": 64, "causal": True}, {"overlap": 0, "stages": 1}),
        ({"depth": 128, "causal": True, "dtype": "bfloat16"}, {"tile_kv": 80, "ping_pong": 1}),
        ({"depth": 96, "queries_per_key": 2}, {"consumer_warpgroups": 1, "tile_kv": 112, "stages": 1}),
        ({"depth": 72, "value_depth": 40, "causal": True}, {"consumer_warpgroups": 3}),
        ({"depth": 192, "value_depth": 128}, {"tile_kv": 80, "overlap": 0}),
        ({"depth": 256, "heads": 1}, {"tile_kv": 64, "stages": 1}),
        ({"depth": 64, "heads": 1, "queries": 64, "keys": 1000}, {"consumer_warpgroups": 1, "tile_kv": 192}),
        ({"depth": 64, "heads": 3, "queries": 1, "queries_per_key": 4, "keys": 130}, {"consumer_warpgroups": 1}),
        ({"depth": 64, "queries": 1, "keys": 400}, {"consumer_warpgroups": 1, "split_kv": 4}),
        ({"depth": 128, "queries": 8, "keys": 500, "causal": True}, {"consumer_warpgroups": 1, "split_kv": 2}),
        ({"depth": 64, "queries": 100, "keys": 300, "queries_per_key": 2}, {"split_kv": 4, "overlap": 0}),
    ],
    ids=lambda given: "-".join(f"{k}={v}" for k, v in given.items()) or "plain",
)
def test_kernels_compute_attention(parameters: Mapping[str, Any], knobs: Mapping[str, KnobValue]) -> None:
    workload = _workload(**parameters)
    assert_computes(SKETCH.lower(workload, H200, _schedule(**knobs)), workload)


def _latent(
    depth: int,
    columns: int,
    heads: int = 20,
    keys: int = 150,
    seen: str = "",
    page: int = 0,
    rounds: bool = True,
) -> Workload:
    """Attention of one token whose heads share keys, the first ``columns`` elements of which are the values too, as
    decoding of multi-head latent attention is. ``seen``: a condition that keys are seen under. ``page``: how many keys
    a page has, where a table names them. ``rounds``: whether weights are rounded."""
    of_keys = f"min(max(int64(B[b, j // {page}]), 0), 10), j % {page}" if page else "b, j"
    weight = "float32(float16(P[b, h, j]))" if rounds else "P[b, h, j]"
    score = f"select({seen}, S[b, h, j] * 0.05, -inf)" if seen else "S[b, h, j] * 0.05"
    return parse_workload(f"""
Q: float16[2, {heads}, {depth}]
C: float16[{f"11, {page}" if page else f"2, {keys}"}, {depth}]
{f"B: int32[2, {-(-keys // page)}]" if page else ""}
{"L: int32[2]" if seen else ""}
{f"X: float32[{keys}]" if seen else ""}
S[b, h, j < {keys}] = sum over r < {depth} of float32(Q[b, h, r]) * float32(C[{of_keys}, r])
T[b, h, j] = {score}
M[b, h] = max over j < {keys} of T[b, h, j]
P[b, h, j] = exp(T[b, h, j] - M[b, h])
U[b, h] = sum over j < {keys} of P[b, h, j]
O[b, h, d < {columns}] = sum over j < {keys} of {weight} * float32(C[{of_keys}, d])
Y[b, h, d] = float16(O[b, h, d] / U[b, h]{f" + X[min(max(int64(L[b]), 0), {keys - 1})]" if seen else ""})""")


@pytest.mark.parametrize(
    ("workload", "count"),
    [
        (_latent(576, 512), 8),
        (_latent(576, 512, heads=70, keys=140, seen="j < int64(L[b])"), 6),
        (_latent(576, 512, keys=200, page=64), 4),
        (_latent(384, 384), 6),
        (_latent(576, 512, keys=40), 2),
        (_latent(288, 256), 6),
        (_latent(96, 64, heads=70), 10),
    ],
    ids=["latent", "lengths", "pages", "all columns", "one block", "narrower", "narrow"],
)
def test_values_may_be_a_part_of_the_keys(workload: Workload, count: int) -> None:
    p = attention_of(workload)
    assert p is not None and v_is_of_keys(p)
    assert_agrees(SKETCH, workload, count, policy=SpacePolicy(prune=False))


def test_two_warpgroups_share_many_columns() -> None:
    workload = _workload(depth=512, queries=70, keys=150, causal=True)
    assert_agrees(SKETCH, workload, 4, policy=SpacePolicy(prune=False))
    persistent = _workload(depth=384, heads=5, queries=70, keys=150, causal=True)
    assert_agrees(SKETCH, persistent, 6, FEW, policy=SpacePolicy(prune=False))
    assert_agrees(SKETCH, _latent(512, 512, rounds=False), 4, policy=SpacePolicy(prune=False))


def test_the_default_of_latent_attention_does_not_spill() -> None:
    """Nor does it load V again."""
    workload = _latent(576, 512, heads=128, keys=4096)
    schedule = default_schedule(workload, H200)
    assert schedule.sketch == SKETCH.name and dict(schedule.knobs)["shared_kv"] == 1
    resources = build_kernel(SKETCH.lower(workload, H200, schedule), H200).resources
    assert [function.spill_bytes for function in resources.values()] == [0, 0]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    "knobs",
    [
        {"q_stages": 2},
        {"q_stages": 2, "ping_pong": 1, "stages": 3},
        {"q_stages": 1, "overlap": 0},
    ],
    ids=["ahead", "turns", "plain"],
)
def test_persistent_ctas_work_through_tiles(causal: bool, knobs: Mapping[str, KnobValue]) -> None:
    workload = _workload(depth=64, heads=4, queries=300, keys=330, causal=causal)
    groups = {"group_heads": 2} if causal else {}
    assert_computes(SKETCH.lower(workload, FEW, _schedule(persistent=1, **groups, **knobs)), workload)


def test_columns_in_no_whole_sixteens_are_stored_from_each_stage() -> None:
    workload = _workload(depth=64, value_depth=40, heads=4, queries=300, keys=130)
    assert_computes(SKETCH.lower(workload, FEW, _schedule(persistent=1, q_stages=2)), workload)


def test_only_blocks_that_a_query_sees_are_gone_through() -> None:
    """Of all tiles, for a causal mask with a window: every visible key lies in a block that is gone through, the first
    and the last of them are needed, and blocks without a mask have nothing to hide."""
    p = attention_of(Spelling(causal=True, window=40).workload())
    assert p is not None
    plan = AttentionPlan(p, H200)
    for tile_kv, warpgroups in ((64, 1), (80, 1), (64, 2)):
        s = plan.sizes_of({**PLAINEST, "tile_kv": tile_kv, "consumer_warpgroups": warpgroups})
        queries, keys = np.arange(p.m.extent)[:, None], np.arange(p.n.extent)
        visible = (keys <= queries + 20) & (queries + 20 - keys < 40)
        for tile in range(s.tiles):
            at = AttentionTileScheduler(p, s).origin(index(tile))
            blocks = AttentionTileScheduler(p, s).key_blocks(at)
            first = _number(at["m"])
            rows = visible[first : first + s.tile_q]
            seen = np.flatnonzero(rows.any(axis=0))
            last, steps = _number(blocks.last), _number(blocks.steps)
            assert (last, last - steps + 1) == (seen.max() // tile_kv, seen.min() // tile_kv)
            for step in range(_number(blocks.upper_end), _number(blocks.lower_end)):
                assert rows[:, (last - step) * tile_kv :][:, :tile_kv].all()


def _number(e: Expr) -> int:
    simple = simplify(e, {})
    assert isinstance(simple, Const)
    return int(simple.value)


def test_tiles_with_the_most_keys_come_first() -> None:
    p = attention_of(_workload(depth=64, heads=4, queries=300, keys=300, causal=True))
    assert p is not None
    s = AttentionPlan(p, H200).sizes_of({**PLAINEST, "group_heads": 2})
    tiles = [AttentionTileScheduler(p, s).origin(index(n)) for n in range(s.tiles)]
    order = [(_number(at["batch_0"]), _number(at["m"])) for at in tiles]
    assert order[:6] == [(0, 256), (1, 256), (0, 128), (1, 128), (0, 0), (1, 0)]
    assert sorted(order) == [(head, m) for head in range(4) for m in (0, 128, 256)]


@pytest.mark.parametrize(
    ("parameters", "knobs"),
    [
        ({"depth": 128}, {"tile_kv": 176, "ping_pong": 1, "persistent": 1}),
        ({"depth": 128, "causal": True}, {"tile_kv": 128, "ping_pong": 1, "persistent": 1, "q_stages": 2}),
        ({"depth": 64, "causal": True, "dtype": "bfloat16"}, {"consumer_warpgroups": 3, "tile_kv": 128}),
        ({"depth": 256, "causal": True}, {"tile_kv": 80, "overlap": 1}),
    ],
    ids=["full", "causal", "three", "deep"],
)
def test_nothing_spills(parameters: Mapping[str, Any], knobs: Mapping[str, KnobValue]) -> None:
    workload = workload_of("attention", **{**LARGE, **parameters})
    assert compiled(SKETCH, workload, H200, **knobs).spill_bytes == 0


@pytest.mark.parametrize(
    "score",
    [
        "select(j <= i and i - j < 1024, S[h, i, j] * 0.125, -inf)",
        "select(j <= i, S[h, i, j] * 0.125 - A[h] * float32(i - j), -inf)",
        "S[h, i, j] * 0.125 + float32(B[h, i, j])",
    ],
    ids=["window", "ALiBi", "bias"],
)
def test_the_default_of_a_mask_or_a_bias_does_not_spill(score: str) -> None:
    text = f"""Q: float16[16, 4096, 64]
    K: float16[16, 4096, 64]
    V: float16[16, 4096, 64]
    {"A: float32[16]" if "A[" in score else ""}
    {"B: float16[16, 4096, 4096]" if "B[" in score else ""}
    S[h, i, j] = sum over r < 64 of float32(Q[h, i, r]) * float32(K[h, j, r])
    L[h, i, j] = {score}
    T[h, i] = max over t < 4096 of L[h, i, t]
    P[h, i, j] = exp(L[h, i, j] - T[h, i])
    U[h, i] = sum over t < 4096 of P[h, i, t]
    O[h, i, e] = sum over w < 4096 of float32(float16(P[h, i, w])) * float32(V[h, w, e])
    Y[h, i, e] = float16(O[h, i, e] / U[h, i])"""
    workload = parse_workload(text)
    schedule = default_schedule(workload, H200)
    assert schedule.sketch == SKETCH.name
    assert compiled(SKETCH, workload, H200, **dict(schedule.knobs)).spill_bytes == 0


def test_weights_are_computed_while_the_tensor_cores_work() -> None:
    """All exponentials of a step stand between the wait for its scores and the wait for the product before."""
    workload = workload_of("attention", **LARGE, depth=128)
    backend = backend_for(H200)
    kernel = SKETCH.lower(workload, H200, _schedule(tile_kv=128))
    lines = backend.assembly(backend.emit(finish(kernel, H200), H200), H200).splitlines()
    waits = [n for n, line in enumerate(lines) if "WARPGROUP.DEPBAR" in line]
    assert len(waits) == 4  # the first scores; the scores and the product of a step; the last product
    between = sum("MUFU.EX2" in line for line in lines[waits[1] : waits[2]])
    assert between == 64 + 2


def test_turns_are_taken_once_for_each_block() -> None:
    workload = _workload(depth=64, causal=True)
    taken = [
        sum(isinstance(s, OrderedSequenceWait) for s in walk_statements(SKETCH.lower(workload, H200, given).body))
        for given in (_schedule(), _schedule(ping_pong=1))
    ]
    assert taken[0] == 0 < taken[1]


def test_the_text_of_a_kernel() -> None:
    workload = _workload(depth=64, causal=True)
    backend = backend_for(H200)
    kernel = SKETCH.lower(workload, H200, _schedule(ping_pong=1))
    check_golden("schedule/golden/cuda_attention.cu", backend.emit(finish(kernel, H200), H200).text)


@pytest.mark.parametrize(
    ("knobs", "what"),
    [
        ({"tile_kv": 192, "consumer_warpgroups": 3}, "the registers of a consumer thread hold"),
        ({"stages": 4, "tile_kv": 128}, "fit into shared memory"),
        ({"persistent": 1}, "persistent is 0 where all tiles run at once"),
        ({"q_stages": 2}, "loaded ahead by a persistent CTA alone"),
        ({"ping_pong": 1, "consumer_warpgroups": 1}, "several consumer_warpgroups are needed"),
        ({"split_kv": 11}, "each of them has a block"),
        ({"group_heads": 4}, "group_heads divides the number of heads"),
    ],
)
def test_settings_that_cannot_be_built_are_refused(knobs: Mapping[str, KnobValue], what: str) -> None:
    workload = _workload(depth=128, queries=500, keys=600)
    with pytest.raises(IllegalSchedule, match=what):
        SKETCH.lower(workload, H200, _schedule(**knobs))


@pytest.mark.parametrize(
    "parameters",
    [
        {"depth": 64, "dtype": "float32"},
        {"depth": 36},
        {"depth": 264},
        {"depth": 64, "value_depth": 20},
        {"depth": 64, "accumulate": "float64"},
    ],
)
def test_what_the_instructions_cannot_do_is_left_to_others(parameters: Mapping[str, Any]) -> None:
    workload = _workload(**parameters)
    assert not SKETCH.matches(workload, H200)
    assert sketches_for(workload, H200)


def test_the_prior_ranks_what_was_measured() -> None:
    """On an H200, 32 heads of 4096 queries and keys of depth 128 take 400 us with turns, 442 without overlap, 475 with
    blocks of 64 keys, and 492 with one stage; causal ones 226 us with heads in groups, 249 without. One query against
    8192 keys takes 83 us, 50 with two CTAs for a head, 35 with four, and 41 with 16."""
    full, causal = (workload_of("attention", **LARGE, depth=128, causal=causal) for causal in (False, True))
    order = [{"ping_pong": 1}, {"overlap": 0}, {"tile_kv": 64, "stages": 3}, {"stages": 1}]
    given = [_schedule(**{"tile_kv": 128, **knobs}) for knobs in order]
    prior = SKETCH.prior_seconds(full, H200, given)
    assert np.argmin(prior) == 0 and np.argmax(prior) == 3
    assert 0.8 < prior[0] / 400e-6 < 1.2
    grouped = SKETCH.prior_seconds(causal, H200, [_schedule(tile_kv=128, group_heads=n) for n in (8, 1)])
    assert grouped[0] < grouped[1] and 0.8 < grouped[0] / 226e-6 < 1.2
    decoding = workload_of("attention", heads=32, queries=1, keys=8192, depth=128, dtype="float16")
    shared = [_schedule(consumer_warpgroups=1, stages=4, split_kv=n) for n in (4, 16, 2, 1)]
    assert list(np.argsort(SKETCH.prior_seconds(decoding, H200, shared))) == [0, 1, 2, 3]


def test_the_best_setting_that_was_measured_is_promising() -> None:
    workload = workload_of("attention", **LARGE, depth=128, causal=True)
    wanted = legal_schedule_of(SKETCH, workload, H200, ping_pong=1, tile_kv=128, group_heads=16, stages=2, overlap=1)
    space = SKETCH.space(workload, H200)
    assert space.row_of(wanted) is not None
    assert len(space) < len(SKETCH.space(workload, H200, policy=WHOLE))


@pytest.mark.parametrize(("parameters", "read_once"), [({}, True), ({"queries_per_key": 4, "queries": 70}, False)])
def test_keys_that_one_cta_reads_leave_l2_first(parameters: dict[str, int], read_once: bool) -> None:
    """Where heads share keys, and have too many queries for one tile, others read the keys again."""
    given = {"heads": 2, "queries": 1, "keys": 512, "depth": 64, **parameters}
    workload = workload_of("attention", dtype="float16", **given)
    schedule = legal_schedule_of(SKETCH, workload, H200, split_kv=4, consumer_warpgroups=1)
    launch = next(line for line in kernel_text(SKETCH.lower(workload, H200, schedule)).splitlines() if "launch" in line)
    assert ("evict_first K V" in launch) == read_once


@pytest.mark.parametrize(("page", "queries"), [(8, 3), (16, 70), (256, 1)])
def test_rows_may_be_in_pages(page: int, queries: int) -> None:
    """A table says which page has which keys. The last page has rows behind the last key."""
    keys = 200
    of_keys = f"min(max(int64(T[b, j // {page}]), 0), 36), j % {page}"
    workload = parse_workload(f"""
Q: float16[2, 3, {queries}, 32]
K: float16[37, {page}, 3, 32]
V: float16[37, {page}, 3, 16]
T: int32[2, {-(-keys // page)}]
S[b < 2, g < 3, i < {queries}, j < {keys}] = sum over r < 32 of float32(Q[b, g, i, r]) * float32(K[{of_keys}, g, r])
M[b, g, i] = max over j < {keys} of S[b, g, i, j]
P[b, g, i, j] = exp(S[b, g, i, j] - M[b, g, i])
U[b, g, i] = sum over j < {keys} of P[b, g, i, j]
O[b, g, i, d < 16] = sum over j < {keys} of float32(float16(P[b, g, i, j])) * float32(V[{of_keys}, g, d])
Y[b, g, i, d] = float16(O[b, g, i, d] / U[b, g, i])""")
    assert_agrees(SKETCH, workload, 4, policy=SpacePolicy(prune=False))


@pytest.mark.parametrize(
    ("queries", "seen"),
    [
        (1, "j < int64(L[b])"),
        (3, "j < int64(L[b]) and j <= i + 297"),
        (70, "j <= i and j < int64(L[b])"),
        (4, "j >= int64(L[b])"),
    ],
    ids=["one query", "few queries", "causal", "last keys"],
)
def test_sequences_have_lengths_of_their_own(queries: int, seen: str) -> None:
    """Blocks behind the end of a sequence are left out. Its length is read by the kernel; CTAs that share the keys
    share those that are seen. ``X`` is there so that lengths are drawn among the places of keys."""
    workload = parse_workload(f"""
Q: float16[4, 3, {queries}, 32]
K: float16[4, 3, 300, 32]
V: float16[4, 3, 300, 16]
L: int32[4]
X: float32[300]
S[b < 4, g < 3, i < {queries}, j < 300] = sum over r < 32 of float32(Q[b, g, i, r]) * float32(K[b, g, j, r])
C[b, g, i, j] = select({seen}, S[b, g, i, j], -inf)
M[b, g, i] = max over j < 300 of C[b, g, i, j]
P[b, g, i, j] = exp(C[b, g, i, j] - M[b, g, i])
U[b, g, i] = sum over j < 300 of P[b, g, i, j]
O[b, g, i, d < 16] = sum over j < 300 of float32(float16(P[b, g, i, j])) * float32(V[b, g, j, d])
Y[b, g, i, d] = float16(O[b, g, i, d] / U[b, g, i] + X[min(max(int64(L[b]), 0), 299)])""")
    p = attention_of(workload)
    assert p is not None and p.bounds and not p.conditions
    assert_agrees(SKETCH, workload, 6, policy=SpacePolicy(prune=False))
