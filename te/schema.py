"""The structure of a workload's JSON as a JSON Schema (2020-12), closed and bounded."""

from ..core.dtypes import DTYPES, INPUT_DTYPES
from ..core.precision import PRECISIONS
from ..ir.expr import BinaryOp, CompareOp, LogicOp, UnaryOp
from .groups import MAX_SKEW
from .limits import MAX_COEFFICIENT, MAX_EXTENT, MAX_RANK, MAX_TENSORS, NAME_PATTERN
from .workload import Reducer

Schema = dict[str, object]

_NAME: Schema = {"type": "string", "pattern": NAME_PATTERN}
_DTYPE: Schema = {"type": "string", "enum": list(DTYPES)}
_EXTENT: Schema = {"type": "integer", "minimum": 1, "maximum": MAX_EXTENT}
_COEFFICIENT: Schema = {"type": "integer", "minimum": -MAX_COEFFICIENT, "maximum": MAX_COEFFICIENT}


def workload_schema(definitions: str = "#/$defs") -> Schema:
    """Return the schema of a workload.

    Its references point below ``definitions``, where ``workload_definitions`` has to stand. The default fits the schema
    alone, and ``#/components/schemas`` an OpenAPI document.
    """
    axes = _list({"$ref": f"{definitions}/Axis"}, 0, MAX_RANK)
    stage = _object(
        {
            "name": _NAME,
            "dtype": _DTYPE,
            "axes": axes,
            "reducer": {"type": "string", "enum": [str(r) for r in Reducer]},
            "reduce_axes": axes,
            "body": {"$ref": f"{definitions}/Expression"},
        },
        optional=("reducer", "reduce_axes"),
    )
    tensor = _object(
        {
            "name": _NAME,
            "dtype": {"type": "string", "enum": list(INPUT_DTYPES)},
            "shape": _list(_EXTENT, 0, MAX_RANK),
            "constant": {"type": "boolean"},
            "skew": {"type": "number", "exclusiveMinimum": 0, "maximum": MAX_SKEW},
        },
        optional=("constant", "skew"),
    )
    place: Schema = {
        "type": "array",
        "prefixItems": [_NAME, {"type": "integer", "minimum": 0, "maximum": MAX_RANK - 1}],
        "minItems": 2,
        "maxItems": 2,
    }
    places: Schema = {**_list({"anyOf": [_NAME, place]}, 1, MAX_TENSORS), "uniqueItems": True}
    dynamic = _object({"name": _NAME, "inputs": places, "representative": _EXTENT}, optional=("name",))
    return _object(
        {
            "inputs": _list(tensor, 0, MAX_TENSORS),
            "stages": _list(stage, 1, MAX_TENSORS),
            "outputs": {**_list(_NAME, 1, MAX_TENSORS), "uniqueItems": True},
            "precision": {"type": "string", "enum": list(PRECISIONS)},
            "dynamic": {"anyOf": [dynamic, _list(dynamic, 1, MAX_RANK)]},
        },
        optional=("precision", "dynamic"),
    )


def workload_definitions(definitions: str = "#/$defs") -> dict[str, Schema]:
    """Return the definitions that ``workload_schema`` refers to: ``Axis``, ``Index`` and ``Expression``."""
    expression: Schema = {"$ref": f"{definitions}/Expression"}
    binary = [str(op) for table in (BinaryOp, CompareOp, LogicOp) for op in table]

    def operation(names: list[str], operands: int) -> Schema:
        return _object({"op": {"type": "string", "enum": names}, "args": _list(expression, operands, operands)})

    cast = _object({"op": {"const": "cast"}, "args": _list(expression, 1, 1), "dtype": _DTYPE})
    number: Schema = {"anyOf": [{"type": "number"}, {"type": "boolean"}, {"enum": ["inf", "-inf"]}]}
    terms: Schema = {
        "type": "object",
        "propertyNames": _NAME,
        "additionalProperties": _COEFFICIENT,
        "maxProperties": 2 * MAX_RANK,
    }
    index: Schema = {"$ref": f"{definitions}/Index"}
    loaded: Schema = _object({"within": expression})
    divisor: Schema = {"type": "integer", "minimum": 1, "maximum": MAX_COEFFICIENT}
    operation_of_part: Schema = {"type": "string", "enum": [str(BinaryOp.FLOORDIV), str(BinaryOp.MOD)]}
    part = _object({"op": operation_of_part, "of": index, "by": divisor, "times": _COEFFICIENT})
    sum_: Schema = {"terms": terms, "constant": _COEFFICIENT, "parts": _list(part, 0, MAX_RANK)}
    return {
        "Axis": _object({"name": _NAME, "extent": _EXTENT}),
        "Index": {"anyOf": [_NAME, _COEFFICIENT, _object(sum_, optional=("parts",))]},
        "Expression": {
            "anyOf": [
                operation(binary, 2),
                operation([str(op) for op in UnaryOp], 1),
                operation(["select"], 3),
                cast,
                _object({"load": _NAME, "at": _list({"anyOf": [index, loaded]}, 0, MAX_RANK)}),
                _object({"axis": _NAME}),
                _object({"const": number, "dtype": _DTYPE}),
            ]
        },
    }


def _object(properties: Schema, optional: tuple[str, ...] = ()) -> Schema:
    required = [name for name in properties if name not in optional]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _list(items: Schema, shortest: int, longest: int) -> Schema:
    return {"type": "array", "items": items, "minItems": shortest, "maxItems": longest}


WORKLOAD_SCHEMA: Schema = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": "Workload",
    **workload_schema(),
    "$defs": workload_definitions(),
}
"""The schema of a workload, complete in itself. ``workload_from_json`` checks all of it and what it cannot say."""
