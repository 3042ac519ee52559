"""What every sketch owes: legal spaces, and kernels that compute what the expression says, interpreted and compiled.

Each case (an operator's example, or a random expression) is worked through by a pool of processes while the tests
wait for their own case, so that interpreter and compiler keep all cores busy.
"""

import json
import os
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import numpy as np
import pytest

from tests.random_expressions import random_workload
from tests.sketch_agreement import check_operator, check_random
from tilewright.core.errors import IllegalSchedule
from tilewright.core.schedule import Schedule
from tilewright.core.target import Target
from tilewright.runtime.devices import host_target
from tilewright.schedule.sketches import SKETCHES, sketches_for
from tilewright.te.operators import OPERATORS

RANDOM_EXPRESSIONS = 100
RANDOM_SCHEDULES = 10
OPERATOR_SCHEDULES = 4
"""For each of an operator's cases, of which there are ten or so."""
GROUP = 10
"""Random expressions that one test works through."""

Answers = dict[tuple[str, str], list["Future[int]"]]


def _target() -> Target:
    return host_target("llvm")


@pytest.fixture(scope="module")
def answers() -> Iterator[Answers]:
    """All cases, under way: (sketch, operator or group of seeds) -> how many kernels agreed."""
    target = _target()
    with ProcessPoolExecutor(os.cpu_count() or 1, mp_context=get_context("spawn")) as pool:
        found: Answers = {}
        for sketch in SKETCHES:
            for name, operator in OPERATORS.items():
                found[sketch, name] = [
                    pool.submit(check_operator, sketch, target, name, case, OPERATOR_SCHEDULES)
                    for case in operator.few_cases()
                ]
            for seed in range(RANDOM_EXPRESSIONS):
                group = found.setdefault((sketch, _group(seed)), [])
                group.append(pool.submit(check_random, sketch, target, seed, RANDOM_SCHEDULES))
        yield found
        pool.shutdown(cancel_futures=True)


def _group(seed: int) -> str:
    return f"seeds {seed // GROUP * GROUP} to {seed // GROUP * GROUP + GROUP - 1}"


@pytest.mark.slow
@pytest.mark.parametrize("case", [*OPERATORS, *dict.fromkeys(_group(s) for s in range(RANDOM_EXPRESSIONS))])
@pytest.mark.parametrize("sketch", SKETCHES)
def test_reference_interpreter_and_compiled_kernel_agree(answers: Answers, sketch: str, case: str) -> None:
    compared = [answer.result(timeout=280) for answer in answers[sketch, case]]
    assert all(n >= 1 for n in compared)


@pytest.mark.parametrize("seed", range(0, RANDOM_EXPRESSIONS, 5))
@pytest.mark.parametrize("sketch", SKETCHES)
def test_spaces_are_unique_legal_and_described(sketch: str, seed: int) -> None:
    workload, target = random_workload(seed), _target()
    space = SKETCHES[sketch].space(workload, target, seed=seed, limit=500)
    assert 1 <= len(space) <= 500 and space.total >= len(space)
    assert len(np.unique(space.codes, axis=0)) == len(space)
    assert set(space.quantities) == {q.name for q in SKETCHES[sketch].quantities}
    for name, column in space.quantities.items():
        assert column.shape == (len(space),) and column.dtype == np.float32 and np.isfinite(column).all(), name
    for knob in space.knobs:
        assert knob.meaning and len(set(knob.values)) == len(knob.values)
    again = SKETCHES[sketch].space(workload, target, seed=seed, limit=500)
    assert np.array_equal(space.codes, again.codes)


@pytest.mark.parametrize("sketch", SKETCHES)
def test_columns_of_given_schedules_are_those_of_the_space(sketch: str) -> None:
    target = _target()
    for name, parameters in _large_cases().items():
        workload = OPERATORS[name].workload(parameters)
        space = SKETCHES[sketch].space(workload, target, limit=2000)
        rows = np.linspace(0, len(space) - 1, 20).astype(int)
        derived = SKETCHES[sketch].derive(workload, target, [space.schedule(int(r)) for r in rows])
        for quantity, column in space.quantities.items():
            np.testing.assert_array_equal(derived[quantity], column[rows], err_msg=f"{name}: {quantity}")


@pytest.mark.parametrize("sketch", SKETCHES)
def test_a_limit_gives_a_seeded_sample(sketch: str) -> None:
    workload = OPERATORS["matmul"].workload({"m": 1024, "n": 1024, "k": 1024})
    whole = SKETCHES[sketch].space(workload, _target())
    samples = [SKETCHES[sketch].space(workload, _target(), seed=seed, limit=300) for seed in (1, 1, 2)]
    assert [len(s) for s in samples] == [300, 300, 300]
    assert all(s.total == len(whole) > 1000 for s in samples)
    assert np.array_equal(samples[0].codes, samples[1].codes)
    assert not np.array_equal(samples[0].codes, samples[2].codes)
    assert all(whole.row_of(samples[2].schedule(r)) is not None for r in range(0, 300, 50))


@pytest.mark.parametrize("sketch", SKETCHES)
def test_schedules_survive_json_and_wrong_ones_are_refused_by_name(sketch: str) -> None:
    workload, target = OPERATORS["matmul"].workload({"m": 64, "n": 64, "k": 64}), _target()
    space = SKETCHES[sketch].space(workload, target)
    schedule = space.schedule(len(space) // 2)
    assert Schedule.from_json(json.loads(json.dumps(schedule.to_json()))) == schedule
    knobs = dict(schedule.knobs)
    first = next(iter(knobs))
    wrong: list[dict[str, Any]] = [
        {**knobs, first: 12345},
        {**knobs, first: "many"},
        {**knobs, "no_such_knob": 1},
        {k: v for k, v in knobs.items() if k != first},
    ]
    for values in wrong:
        with pytest.raises(IllegalSchedule) as caught:
            SKETCHES[sketch].lower(workload, target, Schedule.of(sketch, SKETCHES[sketch].version, values))
        assert caught.value.field.startswith("/schedule")
    with pytest.raises(IllegalSchedule):
        SKETCHES[sketch].lower(workload, target, Schedule.of(sketch, SKETCHES[sketch].version + 1, knobs))


@pytest.mark.parametrize("name", list(OPERATORS))
def test_some_sketch_takes_every_operator(name: str) -> None:
    for case in OPERATORS[name].cases():
        assert sketches_for(OPERATORS[name].workload(case), _target())


def _large_cases() -> dict[str, dict[str, Any]]:
    return {
        "matmul": {"m": 512, "n": 768, "k": 1024},
        "softmax": {"rows": 4096, "columns": 1024},
        "reduce": {"shape": [4096, 4096], "axes": [0, 1]},
        "conv2d": {
            "batch": 1, "channels": 64, "height": 56, "width": 56, "filters": 64,
            "kernel_h": 3, "kernel_w": 3, "padding": 1,
        },
    }  # fmt: skip
