"""Workloads with a dynamic dimension: what one is, how it is written down, and what it is at one extent."""

from collections.abc import Callable

import numpy as np
import pytest

from tilewright.core.errors import InvalidParameter, InvalidWorkload
from tilewright.te import build as te
from tilewright.te.cost import flops, minimum_bytes
from tilewright.te.data import random_inputs
from tilewright.te.dynamic import at_extent, at_representative, dynamic_extents, with_dynamic
from tilewright.te.json import workload_from_json, workload_to_json
from tilewright.te.key import workload_key
from tilewright.te.operators import OPERATORS
from tilewright.te.operators.attention import ATTENTION, attention_of_lengths
from tilewright.te.parse import parse_workload
from tilewright.te.reference import reference
from tilewright.te.rename import renamed
from tilewright.te.text import workload_text
from tilewright.te.workload import DynamicDimension, Workload

MOST, COLUMNS = 40, 6
SOFTMAX = OPERATORS["softmax"].workload({"rows": MOST, "columns": COLUMNS})
LINEAR = OPERATORS["linear"].workload({"rows": MOST, "inputs": 8, "outputs": 4, "bias": True})


def test_an_extent_gives_the_static_workload_of_that_extent() -> None:
    assert at_extent(with_dynamic(SOFTMAX, representative=16), 7) == OPERATORS["softmax"].workload(
        {"rows": 7, "columns": COLUMNS}
    )
    assert at_extent(with_dynamic(LINEAR), 9) == OPERATORS["linear"].workload(
        {"rows": 9, "inputs": 8, "outputs": 4, "bias": True}
    )
    assert at_extent(SOFTMAX, 7) is SOFTMAX


def test_rows_of_a_call_are_the_first_rows_of_the_largest() -> None:
    dynamic = with_dynamic(LINEAR)
    whole = random_inputs(LINEAR, 3)
    some = {t.name: whole[t.name][: t.shape[0]] for t in at_extent(dynamic, 11).inputs}
    given, all_rows = reference(at_extent(dynamic, 11), some), reference(LINEAR, whole)
    for name, array in given.items():
        np.testing.assert_array_equal(array, all_rows[name][:11])


def test_the_dynamic_dimension_is_found_by_the_first_axis_of_the_output() -> None:
    dynamic = with_dynamic(LINEAR, representative=12)
    assert dynamic.dynamic == (DynamicDimension(frozenset({(LINEAR.inputs[0].name, 0)}), 12),)
    (extent,) = dynamic_extents(dynamic)
    assert extent.most == MOST
    assert extent.parameters == {LINEAR.inputs[0].name, LINEAR.outputs[0]}


def test_costs_are_those_of_the_representative_extent() -> None:
    dynamic = with_dynamic(SOFTMAX, representative=16)
    static = at_representative(dynamic)
    assert not static.dynamic
    assert (flops(dynamic), minimum_bytes(dynamic)) == (flops(static), minimum_bytes(static))


def test_json_and_text_carry_it_and_those_of_static_workloads_stay() -> None:
    dynamic = with_dynamic(SOFTMAX, representative=16)
    data = workload_to_json(dynamic)
    assert data["dynamic"] == {"inputs": [SOFTMAX.inputs[0].name], "representative": 16}
    assert workload_from_json(data) == dynamic
    assert {k: v for k, v in data.items() if k != "dynamic"} == workload_to_json(SOFTMAX)
    assert parse_workload(workload_text(dynamic)) == dynamic
    assert "dynamic, measured at 16" in workload_text(dynamic)


def test_the_key_knows_the_extents_and_forgets_the_names() -> None:
    dynamic = with_dynamic(SOFTMAX, representative=16)
    others = [SOFTMAX, with_dynamic(SOFTMAX, representative=17), at_representative(dynamic)]
    assert workload_key(dynamic) not in map(workload_key, others)
    assert workload_key(renamed(dynamic, {SOFTMAX.inputs[0].name: "other"})) == workload_key(dynamic)


def test_the_variable_differs_from_all_names() -> None:
    x = te.placeholder((MOST, 4), name="dynamic_extent")
    workload = with_dynamic(te.workload(te.compute((MOST, 4), lambda i, j: x[i, j] * 2, "Y")))
    (extent,) = dynamic_extents(workload)
    assert extent.var == "dynamic_extent_2"


@pytest.mark.parametrize("extent", [0, -1, MOST + 1, True])
def test_extents_beyond_the_range_are_refused(extent: int) -> None:
    with pytest.raises(InvalidParameter, match=f"allowed: 1 to {MOST}"):
        at_extent(with_dynamic(SOFTMAX), extent)


def _diagonal() -> Workload:
    x = te.placeholder((MOST, MOST), name="X")
    return te.workload(te.compute((MOST,), lambda i: x[i // 2, i], "Y"))


def _reversed() -> Workload:
    x = te.placeholder((MOST, 4), name="X")
    return te.workload(te.compute((MOST, 4), lambda i, j: x[MOST - 1 - i, j], "Y"))


def _with_static_output() -> Workload:
    x, z = te.placeholder((MOST, 4), name="X"), te.placeholder((MOST, 4), name="Z")
    double = te.compute((MOST, 4), lambda i, j: x[i, j] * 2, "Y")
    return te.workload([double, te.compute((MOST, 4), lambda i, j: z[i, j] * 2, "W")])


@pytest.mark.parametrize(
    ("made", "inputs", "representative", "message"),
    [
        (_diagonal, {"X"}, 8, "not moved, split, joined"),
        (_reversed, {"X"}, 8, "not moved, split, joined"),
        (_with_static_output, {"X"}, 8, "output W reads no dynamic dimension"),
        (lambda: SOFTMAX, {"nothing"}, 8, "dynamic inputs nothing; allowed: X"),
        (lambda: SOFTMAX, set(), 8, "dynamic inputs none"),
        (lambda: SOFTMAX, {"X"}, MOST + 1, f"allowed: 1 to {MOST}"),
        (lambda: LINEAR, {t.name for t in LINEAR.inputs}, 8, "the same largest extent in all of them"),
    ],
)
def test_what_cannot_be_dynamic_is_refused_by_name(
    made: Callable[[], Workload], inputs: set[str], representative: int, message: str
) -> None:
    with pytest.raises(InvalidWorkload, match=message):
        with_dynamic(made(), frozenset(inputs), representative)
    if inputs:
        data = workload_to_json(made()) | {"dynamic": {"inputs": sorted(inputs), "representative": representative}}
        with pytest.raises(InvalidWorkload):
            workload_from_json(data)


@pytest.mark.parametrize(
    "dynamic",
    [7, {}, {"inputs": ["X"]}, {"inputs": "X", "representative": 2}, {"inputs": ["X"], "representative": "2"}],
)
def test_malformed_json_is_refused_with_a_pointer(dynamic: object) -> None:
    with pytest.raises(InvalidWorkload) as caught:
        workload_from_json(workload_to_json(SOFTMAX) | {"dynamic": dynamic})
    assert caught.value.field.startswith("/dynamic")


LENGTHS = attention_of_lengths({"heads": 2, "queries": 6, "keys": 9, "depth": 4, "causal": True}, queries=2, keys=5)


def test_lengths_are_other_dimensions_whose_extents_bodies_may_read() -> None:
    """A causal mask hides what is behind the keys of a call, and rows of K are summed up to there."""
    for queries, keys in ((1, 1), (3, 8), (6, 9)):
        static = at_extent(LENGTHS, queries, keys)
        assert not static.dynamic
        given = {"heads": 2, "queries": queries, "keys": keys, "depth": 4, "causal": True}
        written = ATTENTION.workload(given)
        assert [t.shape for t in static.inputs] == [t.shape for t in written.inputs]
        inputs = random_inputs(written, 3)
        for name, array in reference(static, inputs).items():
            np.testing.assert_array_equal(array, reference(written, inputs)[name])
    with pytest.raises(InvalidParameter, match="1 extents; allowed: 2"):
        at_extent(LENGTHS, 3)


def test_lengths_are_written_down() -> None:
    data = workload_to_json(LENGTHS)
    assert data["dynamic"] == [
        {"name": "queries_extent", "inputs": [["Q", 2]], "representative": 2},
        {"name": "keys_extent", "inputs": [["K", 1], ["V", 1]], "representative": 5},
    ]
    assert workload_from_json(data) == LENGTHS
    text = workload_text(LENGTHS)
    assert "K: float32[2, 9, 4]    # dynamic keys_extent in dimension 1, measured at 5" in text
    assert parse_workload(text) == LENGTHS
    other = renamed(LENGTHS, {"keys_extent": "other_extent", "K": "cache"})
    assert workload_from_json(workload_to_json(other)) == other
    assert workload_key(other) == workload_key(LENGTHS)
    fewer = attention_of_lengths({"heads": 2, "queries": 6, "keys": 9, "depth": 4, "causal": True}, queries=2)
    assert workload_key(fewer) != workload_key(LENGTHS)


@pytest.mark.parametrize(
    ("dynamic", "field", "message"),
    [
        ([], "/dynamic", "expected an object"),
        ([{"inputs": [["K", 1]], "representative": 1, "name": "n"}], "/dynamic/name", "it ends in _extent"),
        ([{"inputs": [["K", 7]], "representative": 1}], "/dynamic/inputs", r"dimension 7 of K\[2, 9, 4\]"),
        ([{"inputs": [["K", 1, 2]], "representative": 1}], "/dynamic/0/inputs/0", "an input and a dimension"),
        ([{"inputs": [["K", 1]], "representative": 1}] * 2, "/dynamic/1/inputs", "dynamic twice"),
        ({"inputs": [["K", 1]], "representative": 10}, "/dynamic/representative", "allowed: 1 to 9"),
    ],
)
def test_lengths_that_cannot_be_are_refused(dynamic: object, field: str, message: str) -> None:
    static = ATTENTION.workload({"heads": 2, "queries": 6, "keys": 9, "depth": 4})
    with pytest.raises(InvalidWorkload, match=message) as caught:
        workload_from_json(workload_to_json(static) | {"dynamic": dynamic})
    assert caught.value.field == field


def test_inputs_of_a_text_are_measured_at_one_extent() -> None:
    inputs = [f"{name}: float32[8, 4]  # dynamic, measured at {extent}" for name, extent in (("X", 2), ("Z", 3))]
    text = "\n".join([*inputs, "Y[i, j] = X[i, j] + Z[i, j]"])
    with pytest.raises(InvalidWorkload, match="measured at one extent"):
        parse_workload(text)
    assert parse_workload(text.replace("at 3", "at 2")).dynamic == (
        DynamicDimension(frozenset({("X", 0), ("Z", 0)}), 2),
    )
