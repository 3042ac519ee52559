"""JSON both ways, and every way it can be wrong."""

import copy
import json
import sys
import threading
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.malformed import malformed_workloads
from tests.random_expressions import random_workload
from tilewright.core.errors import InvalidWorkload
from tilewright.te import build as te
from tilewright.te.json import WORKLOAD_SCHEMA, workload_from_json, workload_to_json
from tilewright.te.limits import MAX_DEPTH
from tilewright.te.schema import workload_definitions, workload_schema

_VALIDATOR = jsonschema_rs.Draft202012Validator(WORKLOAD_SCHEMA)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 1 << 30))
def test_workloads_come_back_equal(seed: int) -> None:
    w = random_workload(seed)
    data = workload_to_json(w)
    text = json.dumps(data, allow_nan=False)
    assert workload_from_json(json.loads(text)) == w
    assert workload_to_json(workload_from_json(json.loads(text))) == data
    _VALIDATOR.validate(data)


def test_a_thousand_malformed_descriptions_name_their_field() -> None:
    for data in malformed_workloads(0, 1000):
        before = copy.deepcopy(data)
        with pytest.raises(InvalidWorkload) as caught:
            workload_from_json(data)
        assert caught.value.field.startswith("/") and caught.value.message
        caught.value.field.encode(), caught.value.message.encode()
        assert len(caught.value.message) < 600 and len(caught.value.field) < 4000
        assert repr(data) == repr(before)


_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.sampled_from(["float32", "i", "sum", "inf"]),
    lambda below: (
        st.lists(below, max_size=4)
        | st.dictionaries(st.text() | st.sampled_from(["op", "args", "load", "at", "const", "dtype", "axis"]), below)
    ),
    max_leaves=12,
)


@settings(max_examples=120, deadline=None)
@given(_JSON, st.sampled_from(["top", "input", "stage", "axes", "body", "index", "outputs"]))
def test_junk_anywhere_raises_nothing_else(junk: Any, place: str) -> None:
    data: dict[str, Any] = {
        "inputs": [{"name": "x", "dtype": "float32", "shape": [4]}],
        "stages": [
            {"name": "y", "dtype": "float32", "axes": [{"name": "i", "extent": 4}], "body": {"load": "x", "at": ["i"]}}
        ],
        "outputs": ["y"],
    }
    workload_from_json(data)
    if place == "top":
        data = junk
    elif place == "input":
        data["inputs"] = [junk]
    elif place == "stage":
        data["stages"].append(junk)
    elif place == "axes":
        data["stages"][0]["axes"] = junk
    elif place == "body":
        data["stages"][0]["body"] = junk
    elif place == "index":
        data["stages"][0]["body"]["at"] = [junk]
    else:
        data["outputs"] = junk
    try:
        workload_from_json(data)
    except InvalidWorkload as refused:
        assert refused.field and refused.message


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), -0.0, 0.1, 5e-324, 1.7976931348623157e308])
def test_constants_come_back_exactly(value: float) -> None:
    w = te.workload(te.compute((2,), lambda i: te.constant(value, "float64")))
    text = json.dumps(workload_to_json(w), allow_nan=False)
    again = workload_from_json(json.loads(text))
    assert repr(again) == repr(w)


def test_constants_may_lose_their_fraction_on_the_way() -> None:
    """Databases and JavaScript write 1.0 as 1."""
    w = te.workload(te.compute((2,), lambda i: te.constant(1.0, "float32")))
    text = json.dumps(workload_to_json(w)).replace("1.0", "1")
    assert workload_from_json(json.loads(text)) == w


def test_cyclic_values_are_refused() -> None:
    body: dict[str, Any] = {"op": "neg"}
    body["args"] = [body]
    data = {"inputs": [], "stages": [{"name": "y", "dtype": "float32", "axes": [], "body": body}], "outputs": ["y"]}
    with pytest.raises(InvalidWorkload, match="nested deeper"):
        workload_from_json(data)


def test_the_deepest_expression_passes_from_a_deep_stack() -> None:
    """A server calls from under many frames: full depth must fit into what they leave."""
    x = te.placeholder((1,), name="x")
    e = x[0]
    body: Any = e
    for _ in range(MAX_DEPTH - 2):  # the load and its index are two more
        body = -body
    w = te.workload(te.compute((1,), lambda i: body))
    failures: list[BaseException] = []

    def deep(frames: int) -> None:
        if frames:
            deep(frames - 1)
            return
        try:
            assert workload_from_json(workload_to_json(w)) == w
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=deep, args=(sys.getrecursionlimit() - 500,))
    thread.start()
    thread.join()
    assert not failures


def test_unknown_and_missing_members_are_pointed_at() -> None:
    data: dict[str, Any] = workload_to_json(random_workload(1))
    data["stages"][0]["a/b~c"] = 1
    with pytest.raises(InvalidWorkload) as caught:
        workload_from_json(data)
    assert caught.value.field == "/stages/0/a~1b~0c"
    del data["stages"][0]["a/b~c"], data["stages"][0]["body"]
    with pytest.raises(InvalidWorkload, match="body is missing") as caught:
        workload_from_json(data)
    assert caught.value.field == "/stages/0/body"


def test_whether_an_input_is_constant_is_true_or_false() -> None:
    x = te.placeholder((2,))
    data: dict[str, Any] = workload_to_json(te.workload(te.compute((2,), lambda i: x[i]), constants=[x]))
    assert data["inputs"][0]["constant"] is True
    data["inputs"][0]["constant"] = False
    assert not workload_from_json(data).constants
    data["inputs"][0]["constant"] = 1
    with pytest.raises(InvalidWorkload, match="expected true or false") as caught:
        workload_from_json(data)
    assert caught.value.field == "/inputs/0/constant"


def test_the_schema_is_valid_and_can_stand_in_another_document() -> None:
    jsonschema_rs.meta.validate(WORKLOAD_SCHEMA)
    place = "#/components/schemas"
    document = {**workload_schema(place), "components": {"schemas": workload_definitions(place)}}
    data = workload_to_json(random_workload(2))
    jsonschema_rs.validate(document, data)
    with pytest.raises(jsonschema_rs.ValidationError):
        jsonschema_rs.validate(document, {**data, "more": 1})
