"""The form with which people submit a job: its fields, and the job that a filled form means.

The fields come from the JSON schema of the operator. A filled form is what a browser sends: names and texts. The name
of an operator's parameter has the prefix ``p.``, so that it meets no field of the job. The same names fill the form
from the query string: ``/submit?operator=softmax&p.rows=4096&p.columns=1024&trials=64``.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from ..core.errors import InvalidParameter
from ..service.views import JobView, OperatorView, TaskView
from .requests import JobIn

PREFIX = "p."
TE = "te"
"""What stands in the place of an operator's name where the expression is written by hand."""
STARTING_TEXT = """A: float32[512, 512]
B: float32[512, 512]
C[i, j] = sum over k < 512 of A[i, k] * B[k, j]
Y[i, j] = max(C[i, j], 0)
"""
STARTS: dict[str, dict[str, object]] = {
    "matmul": {"m": 512, "n": 512, "k": 512},
    "batch_matmul": {"batch": 8, "m": 256, "n": 256, "k": 64},
    "linear": {"rows": 256, "inputs": 1024, "outputs": 1024},
    "softmax": {"rows": 1024, "columns": 1024},
    "layer_norm": {"rows": 1024, "columns": 1024},
    "rms_norm": {"rows": 1024, "columns": 1024},
    "attention": {"heads": 8, "queries": 256, "keys": 256, "depth": 64},
    "transpose": {"shape": [1024, 1024], "axes": [1, 0]},
    "reduce": {"shape": [1024, 1024], "axes": [1]},
    "elementwise": {"shape": [1024, 1024], "functions": ["relu"]},
}
"""Sizes of a usual problem. An operator that is not here starts with its first example, which is small."""
JOB_FIELDS: tuple[str, ...] = (
    *("target", "trials", "seconds", "stall", "strategy", "seed", "executor", "cache", "tenant", "priority"),
    *("deadline_seconds", "units", "all_settings", "no_prior", "fresh"),
)
_FLAG = ("false", "true")
_FLAGS = {"all_settings": ("prune", False), "no_prior": ("prior", False), "fresh": ("fresh", True)}
_WHOLE = ("trials", "stall", "seed", "priority", "units")
_DECIMAL = ("seconds", "deadline_seconds")
_POINTER = re.compile(r"/tasks/\d+/parameters/([^/]+)")


@dataclass(frozen=True, slots=True)
class FormField:
    """One field of the form. ``kind`` is ``integer``, ``number``, ``choice`` or ``list``."""

    name: str
    label: str
    kind: str
    value: str
    meaning: str
    required: bool = False
    choices: tuple[str, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    default: str = ""


def known_names(operator: OperatorView | None) -> set[str]:
    """Return the names of all fields that a form for ``operator`` may have; None: for an expression."""
    own = {PREFIX + name for name in _properties(operator)} if operator else {"text"}
    return {"operator", "job", "task", *JOB_FIELDS, *own}


def operator_fields(operator: OperatorView, given: Mapping[str, str]) -> tuple[FormField, ...]:
    """Return the fields of an operator's parameters. Those that are not ``given`` have a usual problem's sizes where
    nothing is given, and their defaults."""
    required = operator.schema.get("required", [])
    assert isinstance(required, list)
    is_fresh = not any(name.startswith(PREFIX) for name in given)
    start = STARTS.get(operator.name) or _first_example(operator)
    fields = []
    for name, schema in _properties(operator).items():
        default = schema.get("default", start.get(name, "") if is_fresh else "")
        value = given.get(PREFIX + name, _text(default))
        fields.append(
            FormField(
                name=PREFIX + name,
                label=name,
                kind=_kind(schema),
                value=value,
                meaning=schema.get("description", ""),
                required=name in required,
                choices=tuple(_FLAG if schema["type"] == "boolean" else schema.get("enum", ())),
                minimum=schema.get("minimum"),
                maximum=schema.get("maximum"),
                default="" if name in required else _text(default),
            )
        )
    return tuple(fields)


def _first_example(operator: OperatorView) -> Mapping[str, object]:
    examples = operator.schema.get("examples")
    return examples[0] if isinstance(examples, list) and examples else {}


def job_of(operator: OperatorView | None, given: Mapping[str, str]) -> JobIn:
    """Return the job that a filled form means. Raises InvalidParameter whose ``field`` is the name of the field."""
    body: dict[str, Any] = {}
    if operator is None:
        body["tasks"] = [{"text": given.get("text", "").replace("\r\n", "\n")}]
    else:
        schemas = _properties(operator)
        parameters = {
            name: _value(PREFIX + name, schema, given.get(PREFIX + name, "").strip())
            for name, schema in schemas.items()
            if given.get(PREFIX + name, "").strip()
        }
        body["tasks"] = [{"operator": operator.name, "parameters": parameters}]
    budget = {
        name: _number(name, given[name]) for name in ("trials", "seconds", "stall") if given.get(name, "").strip()
    }
    body["budget"] = budget
    for name in ("target", "strategy", "executor", "cache", "tenant", "seed", "priority", "deadline_seconds", "units"):
        text = given.get(name, "").strip()
        if text:
            body[name] = _number(name, text) if name in (*_WHOLE, *_DECIMAL) else text
    body.update({name: value for flag, (name, value) in _FLAGS.items() if given.get(flag)})
    try:
        return JobIn.model_validate(body)
    except ValidationError as error:
        first = error.errors()[0]
        raise InvalidParameter(first["msg"].removeprefix("Value error, "), field=str(first["loc"][-1])) from None


def field_of(pointer: str) -> str:
    """Return the field of the form that an error's ``field`` (a JSON pointer into the job) is about."""
    parameter = _POINTER.match(pointer)
    if parameter:
        return PREFIX + parameter[1]
    return "text" if pointer.endswith("/text") else pointer.removeprefix("/").rpartition("/")[2] or pointer


def filled_from(job: JobView, task: TaskView) -> dict[str, str]:
    """Return the fields that submit the same task again."""
    found = {"text": task.expression} if task.operator is None else {}
    found |= {PREFIX + name: _text(value) for name, value in (task.parameters or {}).items()}
    found |= {
        "operator": task.operator or TE,
        "trials": str(job.budget.trials),
        "seconds": _text(job.budget.seconds),
        "stall": _text(job.budget.stall),
        "strategy": job.strategy,
        "seed": str(job.seed),
        "target": job.target,
        "executor": job.executor,
        "cache": job.cache,
        "tenant": job.tenant,
        "priority": str(job.priority),
        "units": str(job.units),
    }
    flags = {"all_settings": not job.prune, "no_prior": not job.prior, "fresh": job.fresh}
    return {name: text for name, text in found.items() if text} | {name: "on" for name, yes in flags.items() if yes}


def _properties(operator: OperatorView) -> dict[str, dict[str, Any]]:
    found = operator.schema["properties"]
    assert isinstance(found, dict)
    return found


def _kind(schema: Mapping[str, Any]) -> str:
    kinds = {"integer": "integer", "number": "number", "boolean": "choice", "array": "list", "string": "choice"}
    return kinds[schema["type"]]


def _text(value: object) -> str:
    """Write a value as a field shows it: lists with commas."""
    match value:
        case None:
            return ""
        case bool():
            return str(value).lower()
        case list() | tuple():
            return ", ".join(map(_text, value))
        case float():
            return f"{value:g}"
    return str(value)


def _value(name: str, schema: Mapping[str, Any], text: str) -> object:
    match _kind(schema):
        case "choice" if text in _FLAG:
            return text == "true"
        case "integer" | "number":
            return _number(name, text)
        case "list":
            items: Iterable[str] = filter(None, re.split(r"[\s,×]+", text.strip("[]() ")))
            numeric = schema["items"].get("type") in ("integer", "number")
            return [_number(name, item) for item in items] if numeric else [item.strip("\"'") for item in items]
    return text


def _number(name: str, text: str) -> int | float:
    try:
        found = json.loads(text.strip())
    except ValueError:
        found = None
    if not isinstance(found, int | float) or isinstance(found, bool):
        raise InvalidParameter(f"{text[:40]!r} is no number", field=name)
    return found
