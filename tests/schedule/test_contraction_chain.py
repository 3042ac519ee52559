"""Chains of contractions: the kernels of all orders, what each order costs, and which sketches write the steps."""

from dataclasses import replace
from math import prod

import numpy as np
import pytest

from tests.chains import einsum, random_chain
from tests.sketch_agreement import assert_kernel_agrees, check_schedules
from tilewright.codegen.llvm.architectures import target_named
from tilewright.codegen.lowering import lower
from tilewright.core.errors import IllegalSchedule
from tilewright.core.policy import SpacePolicy
from tilewright.core.schedule import Schedule
from tilewright.core.target import Target
from tilewright.runtime.devices import host_target
from tilewright.schedule.contraction_chain import contraction_steps
from tilewright.schedule.defaults import default_schedule
from tilewright.schedule.sketches import SKETCHES, sketches_for
from tilewright.te import build as te
from tilewright.te.contraction_path import path_as_written
from tilewright.te.dynamic import with_dynamic
from tilewright.te.operators import OPERATORS
from tilewright.te.workload import Workload

H200 = Target("cuda", "sm_90a", threads=132, vector_bytes=16)
MI300 = Target("amdgpu", "gfx942", threads=304, vector_bytes=16)
HOST = host_target("llvm")
AVX512 = target_named("x86-64+avx512f+avx512bw+avx512vl+avx512bf16+avx512vnni")
EVERY_LEGAL = SpacePolicy(prune=False)
SIZES = {"b": 6, "i": 12, "j": 17, "k": 8, "l": 16, "o": 5}
EQUATIONS = (
    "ij,jk,kl->il",
    "ij,jk,k->i",
    "i,ij,j->",
    "bi,oij,bj->bo",
    "ijk,il,jb->lbk",
    "ijk,jb,kb->ib",
    "ij,kl,bj->ik",
    "ob,lbij,oj->loi",
)
"""A product of three matrices, a vector behind two, bilinear forms, a Tucker form, a product with a Khatri-Rao product,
one with outer products, and linear blend skinning."""


def _name(target: Target) -> str:
    return {"cuda": "cuda_chain", "llvm": "cpu_chain", "amdgpu": "amdgpu_chain"}[target.kind]


def _choices(workload: Workload, target: Target) -> dict[tuple[str, ...], Schedule]:
    """A legal schedule for each path with each choice of sketches, by their names, as far as 4000 schedules have it."""
    space = SKETCHES[_name(target)].space(workload, target, limit=4000, policy=EVERY_LEGAL)
    places = [n for n, knob in enumerate(space.knobs) if knob.name == "contraction_path" or ".sketch" in knob.name]
    _, rows = np.unique(space.codes[:, places], axis=0, return_index=True)
    found = [space.schedule(int(row)) for row in rows]
    return {tuple(str(schedule.knobs[p][1]) for p in places): schedule for schedule in found}


def _as_written(workload: Workload, target: Target) -> Schedule:
    """A schedule that leaves the sum as it is written."""
    chain, loops = SKETCHES[_name(target)], SKETCHES[_name(target).replace("chain", "loops")]
    steps = {k.name: "none" for k in chain.space(workload, target, limit=4).knobs if ".sketch" in k.name}
    own = {f"step_1.{name}": v for name, v in loops.space(workload, target, limit=4).schedule(0).knobs}
    path = path_as_written(workload.stages[0])
    return Schedule.of(
        chain.name, chain.version, {"contraction_path": path, **steps, "step_1.sketch": loops.name, **own}
    )


@pytest.mark.parametrize("target", [HOST, H200], ids=["llvm", "cuda"])
@pytest.mark.parametrize("equation", EQUATIONS)
def test_every_order_with_every_choice_of_sketches_computes_the_sum(equation: str, target: Target) -> None:
    workload = einsum(equation, SIZES, relu=equation.startswith("ij,jk"))
    found = _choices(workload, target)
    assert found
    for schedule in (*found.values(), _as_written(workload, target)):
        assert_kernel_agrees(workload, lower(workload, target, schedule), target)


@pytest.mark.parametrize(
    ("equation", "written"),
    [
        ("ij,jk,kl->il", {"amdgpu_gemm"}),
        ("bi,oij,bj->bo", {"amdgpu_gemm", "amdgpu_rowwise"}),
        ("i,ij,j->", {"amdgpu_rowwise"}),
        ("ij,kl,bj->ik", set()),
    ],
)
def test_classes_for_amd_write_steps_and_there_is_no_sum_as_it_is_written(equation: str, written: set[str]) -> None:
    """No generic sketch writes for AMD, so that a path is left out where a step of it has no class."""
    workload = einsum(equation, {"b": 24, "i": 32, "j": 40, "k": 16, "l": 48, "o": 12})
    assert SKETCHES["amdgpu_chain"].matches(workload, MI300) == bool(written)
    found = _choices(workload, MI300) if written else {}
    assert {sketch for path, *steps in found for sketch in steps} == written
    for schedule in found.values():
        assert_kernel_agrees(workload, lower(workload, MI300, schedule), MI300)


@pytest.mark.parametrize("target", [HOST, H200], ids=["llvm", "cuda"])
def test_random_chains_agree_with_the_reference(target: Target) -> None:
    name, compared = _name(target), 0
    for seed in range(12):
        compared += check_schedules(name, target, random_chain(seed), seed, 1)
        if seed % 6 == 0:
            compared += check_schedules(name, target, random_chain(seed), seed, 1, EVERY_LEGAL)
    assert compared >= 6


@pytest.mark.parametrize(
    ("dtype", "precision", "target", "wanted"),
    [
        ("float32", "ieee", H200, ["cuda_gemm_simt", "cuda_gemm_simt"]),
        ("float32", "tf32", H200, ["cuda_gemm", "cuda_gemm"]),
        ("float16", "tf32", H200, ["cuda_gemm", "cuda_permute", "cuda_gemm"]),  # C is cast and turned along the sum
        ("float16", "ieee", H200, ["cuda_gemm", "cuda_permute", "cuda_gemm_simt"]),
        ("float32", "ieee", AVX512, ["cpu_gemm", "cpu_gemm"]),
        ("bfloat16", "ieee", AVX512, ["cpu_gemm_dot", "cpu_gemm"]),
    ],
)
def test_kernel_classes_write_the_steps(dtype: str, precision: str, target: Target, wanted: list[str]) -> None:
    sizes = {"m": 512, "n": 512, "k": 512, "p": 512, "dtype": dtype, "precision": precision}
    workload = OPERATORS["multi_dot"].workload(sizes)
    assert [s.name for s in sketches_for(workload, target)] == [_name(target)]
    choices = [c for c in _choices(workload, target) if c[0] == "(0*1)*2"]
    assert [s for s in choices if [x for x in s[1:] if x != "none"] == wanted]


def test_a_bilinear_form_is_a_product_and_a_reduction_of_rows() -> None:
    workload = OPERATORS["bilinear"].workload({"rows": 64, "first": 256, "second": 256, "outputs": 128})
    chosen = dict(default_schedule(workload, H200).knobs)
    assert (chosen["step_1.sketch"], chosen["step_2.sketch"]) == ("cuda_gemm_simt", "cuda_rowwise")


def test_a_factor_in_another_order_is_copied_and_an_intermediate_has_rows_and_columns() -> None:
    """Linear blend skinning: bones are summed by one product of all vertices and all transforms of all poses."""
    workload = einsum("vb,nbij,vj->nvi", {"v": 6890, "b": 64, "n": 64, "i": 3, "j": 4})
    chosen = dict(default_schedule(workload, H200).knobs)
    assert chosen["contraction_path"] == "(0*1)*2 as matrices" and chosen["step_2.sketch"] == "cuda_gemm_simt"
    paths = {
        path: [s.tensor.shape for w in steps for s in w.stages] for path, steps in contraction_steps(workload, bool)
    }
    assert paths["(0*1)*2"] == [(64, 6890, 3, 4), (64, 6890, 3)]
    assert paths["(0*1)*2 as matrices"] == [(64, 64, 3, 4), (6890, 64, 3, 4), (64, 6890, 3)]
    in_order = contraction_steps(einsum("ij,jk,kl->il", SIZES), bool)
    assert [path for path, _ in in_order] == ["(0*1)*2", "0*(1*2)", "0*1*2"]


@pytest.mark.parametrize("target", [AVX512, H200], ids=["llvm", "cuda"])
@pytest.mark.parametrize(
    ("sizes", "wanted"),
    [
        ({"m": 64, "n": 2048, "k": 2048, "p": 64}, "(0*1)*2"),
        ({"m": 2048, "n": 64, "k": 64, "p": 2048}, "0*(1*2)"),
        ({"m": 2048, "n": 1, "k": 2048, "p": 2048}, "0*(1*2)"),
    ],
)
def test_the_prior_knows_which_order_is_cheaper(sizes: dict[str, int], wanted: str, target: Target) -> None:
    workload = OPERATORS["multi_dot"].workload(sizes)
    assert default_schedule(workload, target)["contraction_path"] == wanted
    whole = SKETCHES[_name(target)].space(workload, target, limit=20_000, policy=EVERY_LEGAL)
    best = {p: whole.prior_seconds[whole.column("contraction_path") == p].min() for p in ("(0*1)*2", "0*(1*2)")}  # type: ignore[index]
    assert min(best, key=best.__getitem__) == wanted


def test_operations_and_intermediates_of_each_order_are_quantities() -> None:
    workload = OPERATORS["multi_dot"].workload({"m": 512, "n": 512, "k": 512, "p": 512})
    name = _name(H200)
    schedules = {choice[0]: schedule for choice, schedule in _choices(workload, H200).items()}
    schedules["0*1*2"] = _as_written(workload, H200)
    derived = SKETCHES[name].derive(workload, H200, list(schedules.values()))
    operations = dict(zip(schedules, derived["contraction_operations"], strict=True))
    handed = dict(zip(schedules, derived["intermediate_bytes"], strict=True))
    assert operations["(0*1)*2"] == operations["0*(1*2)"] == 4 * 512**3
    assert handed["(0*1)*2"] == 512 * 512 * 4
    assert operations["0*1*2"] == 3 * 512**4 and handed["0*1*2"] == 0  # as it is written


def test_the_prior_of_a_chain_is_the_sum_of_those_of_its_steps() -> None:
    workload = OPERATORS["multi_dot"].workload({"m": 256, "n": 256, "k": 256, "p": 256})
    schedule = next(s for c, s in _choices(workload, AVX512).items() if c[0] == "(0*1)*2")
    product = OPERATORS["matmul"].workload({"m": 256, "n": 256, "k": 256})
    knobs = dict(schedule.knobs)
    seconds = 0.0
    for step in ("step_1.", "step_2."):
        sketch = SKETCHES[str(knobs[f"{step}sketch"])]
        names = [k.name for k in sketch.space(product, AVX512, limit=1).knobs]
        own = Schedule.of(sketch.name, sketch.version, {n: knobs[step + n] for n in names})
        seconds += float(sketch.prior_seconds(product, AVX512, [own])[0])
    chain = SKETCHES["cpu_chain"].prior_seconds(workload, AVX512, [schedule])
    assert chain[0] == pytest.approx(seconds, rel=1e-6)


def test_the_space_is_the_product_of_those_of_its_steps() -> None:
    workload = einsum("ij,jk,kl->il", {"i": 33, "j": 40, "k": 17, "l": 24})
    space = SKETCHES["cuda_chain"].space(workload, H200, limit=500, policy=EVERY_LEGAL)
    a = {"m": 33, "n": 17, "k": 40}, {"m": 33, "n": 24, "k": 17}
    b = {"m": 40, "n": 24, "k": 17}, {"m": 33, "n": 24, "k": 40}
    written = SKETCHES["cuda_loops"].space(workload, H200, policy=EVERY_LEGAL).total
    products = 0
    for pair in (a, b):
        own = [SKETCHES["cuda_gemm_simt"] for _ in pair]
        products += prod(
            s.space(OPERATORS["matmul"].workload(dict(p)), H200, policy=EVERY_LEGAL, limit=50).total
            for s, p in zip(own, pair, strict=True)
        )
    assert len(space) == 500 and space.low == space.high == space.total
    assert 0.5 * products < space.total - written < 2 * products


def test_names_of_the_kernels_never_meet() -> None:
    """Tensors have the names that kernels of products give to loops and buffers; both steps have those, too."""
    a, b, c = (te.placeholder((32, 32), name=n) for n in ("m", "contraction", "lane"))
    j, k = te.reduce_axis(32, "contraction_2"), te.reduce_axis(32, "k")
    workload = te.workload(te.compute((32, 32), lambda i, n: te.sum(a[i, j] * b[j, k] * c[k, n], axis=(j, k)), "n_2"))
    for target in (H200, HOST):
        schedule = default_schedule(workload, target)
        assert_kernel_agrees(workload, lower(workload, target, schedule), target)


def test_what_is_no_chain_is_left_to_others() -> None:
    product = OPERATORS["matmul"].workload({"m": 64, "n": 64, "k": 64})
    x = te.placeholder((32, 32), "float16", "x")
    j, k = te.reduce_axis(32, "j"), te.reduce_axis(32, "k")
    narrow = te.workload(te.compute((32, 32), lambda i, n: te.sum(x[i, j] * x[j, k] * x[k, n], axis=(j, k))))
    rows = te.placeholder((64, 32, 32), name="rows")
    scaled = te.workload(te.compute((64,), lambda i: te.sum(rows[i, j, k] * 0.5, axis=(j, k))))
    for workload in (product, narrow, scaled):
        for target in (H200, AVX512):
            assert not SKETCHES[_name(target)].matches(workload, target)
    with pytest.raises(IllegalSchedule, match="one sum of products over two axes"):
        SKETCHES["cpu_chain"].space(product, AVX512)
    with pytest.raises(IllegalSchedule, match="static shapes alone"):
        SKETCHES["cpu_chain"].space(with_dynamic(einsum("ij,jk,kl->il", SIZES)), AVX512)


def test_wrong_choices_are_refused_with_what_is_allowed() -> None:
    workload = einsum("ij,jk,kl->il", SIZES)
    found = _choices(workload, AVX512)
    written = _as_written(workload, AVX512)
    chain = next(s for c, s in found.items() if c[0] == "(0*1)*2")
    sketch = SKETCHES["cpu_chain"]
    for knobs, message in (
        ({**dict(chain.knobs), "contraction_path": "0*2*1"}, r"allowed here: \(0\*1\)\*2"),
        ({**dict(chain.knobs), "step_2.sketch": "none"}, "no choice of this workload; allowed: "),
        ({**dict(chain.knobs), "step_3.sketch": "cpu_loops"}, "unknown knobs: step_3.sketch"),
    ):
        with pytest.raises(IllegalSchedule, match=message):
            sketch.lower(workload, AVX512, Schedule.of(sketch.name, sketch.version, knobs))
    space = sketch.space(workload, AVX512, limit=100)
    idle = next(k for k in space.knobs if k.name.startswith("step_2.") and "sketch" not in k.name and len(k.values) > 1)
    knobs = {**dict(written.knobs), idle.name: idle.values[1]}
    with pytest.raises(IllegalSchedule, match="which changes nothing with contraction_path"):
        sketch.lower(workload, AVX512, Schedule.of(sketch.name, sketch.version, knobs))


def test_constant_factors_are_multiplied_by_the_prologue_of_a_processor() -> None:
    workload = replace(einsum("ij,jk,kl->il", SIZES), constants=frozenset({"X1", "X2"}))
    schedule = next(s for c, s in _choices(workload, HOST).items() if c[0] == "0*(1*2)")
    kernel = lower(workload, HOST, schedule)
    assert kernel.constants == {"X1", "X2"}
    assert_kernel_agrees(workload, kernel, HOST)
