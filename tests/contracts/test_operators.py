"""What every operator of the table must do. A new one is tested by being in the table."""

import json
from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import numpy as np
import pytest

from tests.golden import check_golden
from tilewright.core.dtypes import INPUT_DTYPES
from tilewright.core.errors import InvalidParameter
from tilewright.core.streams import stream
from tilewright.te.data import random_inputs
from tilewright.te.json import WORKLOAD_SCHEMA, workload_from_json, workload_to_json
from tilewright.te.key import workload_key
from tilewright.te.operators import OPERATORS, Operator
from tilewright.te.reference import reference
from tilewright.te.tolerance import tolerance

_WORKLOADS = jsonschema_rs.Draft202012Validator(WORKLOAD_SCHEMA)


@pytest.fixture(params=list(OPERATORS))
def operator(request: pytest.FixtureRequest) -> Operator:
    return OPERATORS[request.param]


def test_the_schema_is_valid_closed_and_says_everything(operator: Operator) -> None:
    schema = operator.schema()
    jsonschema_rs.meta.validate(schema)
    assert json.loads(json.dumps(schema)) == schema
    assert schema["additionalProperties"] is False
    assert operator.summary and operator.name == operator.name.lower()
    for p in operator.parameters:
        assert p.meaning
        assert p.required or p.domain.holds(p.default)


def test_examples_meet_the_schema_and_reach_the_corners(operator: Operator) -> None:
    validator = jsonschema_rs.Draft202012Validator(operator.schema())
    numbers: set[Any] = set()
    for example in operator.examples:
        validator.validate(example)
        for value in example.values():
            numbers.update(value if isinstance(value, list) else [value])
    assert 1 in numbers
    assert any(n > 3 and all(n % d for d in range(2, n)) for n in numbers if type(n) is int), "no prime extent"
    assert {str(c["dtype"]) for c in operator.cases()} == set(operator.dtypes) and operator.dtypes


def test_workloads_survive_json(operator: Operator) -> None:
    for case in operator.cases():
        w = operator.workload(case)
        data = workload_to_json(w)
        _WORKLOADS.validate(data)
        again = workload_from_json(json.loads(json.dumps(data)))
        assert again == w
        assert workload_key(again) == workload_key(w)


def test_numpy_agrees_with_the_reference(operator: Operator) -> None:
    for number, case in enumerate(operator.cases()):
        w = operator.workload(case)
        inputs = random_inputs(w, number)
        before = {n: a.copy() for n, a in inputs.items()}
        results = operator.numpy(case, inputs)
        wanted, limits = reference(w, inputs), tolerance(w)
        assert len(results) == len(w.outputs)
        for tensor, result in zip(w.output_buffers, results, strict=True):
            assert (result.shape, result.dtype) == (tensor.shape, tensor.dtype.numpy), case
            absolute, relative = limits[tensor.name]
            np.testing.assert_allclose(
                result.astype(np.float64), wanted[tensor.name].astype(np.float64), relative, absolute, err_msg=str(case)
            )
        for name, array in inputs.items():
            np.testing.assert_array_equal(array, before[name], err_msg=f"{name} was overwritten")


def test_the_tolerance_is_tight_enough_to_see_a_mistake(operator: Operator) -> None:
    """A float32 result one part in a hundred off is wrong, and integers are exact."""
    for case in operator.cases():
        w = operator.workload(case)
        wanted = reference(w, random_inputs(w, 0))
        for name, (absolute, relative) in tolerance(w).items():
            dtype = w.stage(name).tensor.dtype
            size = float(np.abs(wanted[name].astype(np.float64)).max())
            if not dtype.is_float:
                assert (absolute, relative) == (0.0, 0.0)
            elif dtype.bits >= 32 and size > 1e-3:
                assert absolute + relative * size < 0.01 * size, case


def test_keys_are_pinned(operator: Operator) -> None:
    """A change here makes every record of the operator unreachable: bump knowingly."""
    case = {**operator.examples[0], "dtype": operator.dtypes[0]}
    check_golden(
        f"contracts/golden/key_{operator.name}.txt", f"{json.dumps(case)}\n{workload_key(operator.workload(case))}"
    )


def test_dtypes_and_examples_have_different_keys(operator: Operator) -> None:
    cases = list(operator.cases())
    assert len({workload_key(operator.workload(c)) for c in cases}) == len(cases)


def _wrong_values(schema: dict[str, Any]) -> Iterator[object]:
    """Values outside a parameter's schema."""
    yield from (None, float("nan"), {}, "no such thing", b"bytes", [None], [[]])
    if schema["type"] != "boolean":
        yield True
    if schema["type"] in ("integer", "number"):
        yield from (schema["minimum"] - 1, schema["maximum"] + 1, -(10**40), 10**400, float("inf"), "7", [7])
    if schema["type"] == "integer":
        yield 1.5
    if schema["type"] == "array":
        inner = next(iter(_wrong_values(schema["items"])))
        yield from ([], [inner], [1] * (schema["maxItems"] + 1), 3, "abc")
    if schema["type"] in ("string", "boolean"):
        yield from (0, "", ["float32"])


def test_bad_parameters_are_named(operator: Operator) -> None:
    good = {**operator.examples[0], "dtype": operator.dtypes[0]}
    validator = jsonschema_rs.Draft202012Validator(operator.schema())
    for p in operator.parameters:
        for wrong in _wrong_values(p.schema()):
            with pytest.raises(InvalidParameter) as caught:
                operator.workload({**good, p.name: wrong})
            assert caught.value.field == p.name
            assert p.name in caught.value.message and "allowed" in caught.value.message
            assert len(caught.value.message) < 1000
            if isinstance(wrong, str | bool | list | None) and wrong != [None]:
                assert not validator.is_valid({**good, p.name: wrong}), wrong
        if p.required:
            with pytest.raises(InvalidParameter, match="missing") as caught:
                operator.workload({n: v for n, v in good.items() if n != p.name})
            assert caught.value.field == p.name
    with pytest.raises(InvalidParameter) as caught:
        operator.workload({**good, "no_such\ud800": 1})
    assert caught.value.field and caught.value.message.encode()


def test_any_parameters_of_the_schema_are_built_or_refused_by_name(operator: Operator) -> None:
    """Values each inside its domain, together arbitrary: huge, beyond the limits, or contradicting each other."""
    draw = stream(0, "parameters", operator.name)
    names = {p.name for p in operator.parameters}
    built = 0
    for _ in range(150):
        given = {p.name: _drawn(p.schema(), draw) for p in operator.parameters if p.required or draw.random() < 0.5}
        try:
            w = operator.workload(given)
        except InvalidParameter as refused:
            assert refused.field in names and refused.message
        else:
            built += 1
            assert workload_from_json(workload_to_json(w)) == w
    assert built


def _drawn(schema: dict[str, Any], draw: np.random.Generator) -> Any:
    if "enum" in schema:
        return schema["enum"][int(draw.integers(0, len(schema["enum"])))]
    if schema["type"] == "boolean":
        return bool(draw.integers(0, 2))
    if schema["type"] == "array":
        length = int(draw.integers(schema["minItems"], min(schema["maxItems"], 3) + 1))
        items = [_drawn(schema["items"], draw) for _ in range(length)]
        return list(dict.fromkeys(items)) if schema.get("uniqueItems") else items
    low, high = schema["minimum"], schema["maximum"]
    if schema["type"] == "number":
        return float(draw.uniform(low, high))
    near = min(high, low + 40)
    return int(draw.integers(low, near + 1)) if draw.random() < 0.9 else int(draw.integers(low, high + 1))


def test_all_dtypes_are_taken_by_some_operator() -> None:
    assert {d for o in OPERATORS.values() for d in o.dtypes} == set(INPUT_DTYPES)
