"""Reads an expression from the command line: an operator with NAME=VALUE parameters, or a file with a workload."""

import json
from collections.abc import Iterable
from pathlib import Path

from ..api.client import operator_task
from ..api.client_lookups import Task
from ..core.errors import InvalidParameter, InvalidWorkload
from ..te.json import workload_from_json
from ..te.parse import parse_workload
from ..te.workload import Workload

_MAX_FILE_BYTES = 1 << 20


def read_task(operator: str | None, parameters: list[str], file: Path | None) -> Task:
    """Return the task that the user means. Raises InvalidParameter or InvalidWorkload that says what to write."""
    if operator is None and file is None:
        raise InvalidParameter(
            "give an operator with its parameters (matmul m=512 n=512 k=512), or --workload FILE", field="operator"
        )
    if file is None:
        assert operator is not None
        return operator_task(operator, read_parameters(parameters))
    if operator is not None:
        raise InvalidParameter(
            f"operator {operator!r} and --workload {file} are given; allowed: one of them", field="operator"
        )
    return _read_workload(file)


def _read_workload(file: Path) -> Workload:
    """Return the workload of a file, which is its JSON, or its text form."""
    try:
        if file.stat().st_size > _MAX_FILE_BYTES:
            raise InvalidWorkload(f"{file} is over {_MAX_FILE_BYTES} bytes", field="workload")
        content = file.read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidWorkload(f"cannot read {file}: {error.strerror}", field="workload") from error
    except UnicodeDecodeError as error:
        raise InvalidWorkload(f"{file} is no workload: it is no text ({error})", field="workload") from error
    if not content.lstrip().startswith("{"):
        try:
            return parse_workload(content)
        except InvalidWorkload as error:
            raise InvalidWorkload(f"{file} is no workload: {error.message}", field="workload") from error
    try:
        data = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise InvalidWorkload(f"{file} is no workload: it is not JSON ({error})", field="workload") from error
    return workload_from_json(data)


def read_parameters(words: Iterable[str]) -> dict[str, object]:
    """Return the parameters that words like m=512 name. Raises InvalidParameter for what is none, or is given
    twice."""
    found: dict[str, object] = {}
    for name, value in map(_parameter, words):
        if name in found:
            raise InvalidParameter(f"{name} is given twice; allowed: once", field=name)
        found[name] = value
    return found


def _parameter(text: str) -> tuple[str, object]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise InvalidParameter(f"{text!r} is no parameter; write NAME=VALUE, like m=512 or shape=[64,64]", field=text)
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value
