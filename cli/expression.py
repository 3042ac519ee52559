"""Reads an expression from the command line: an operator with NAME=VALUE parameters, or a file with a workload."""

import json
from pathlib import Path

from ..api.client import operator_task
from ..api.client_lookups import Task
from ..core.errors import InvalidParameter, InvalidWorkload
from ..te.json import workload_from_json

_MAX_FILE_BYTES = 1 << 20


def read_task(operator: str | None, parameters: list[str], file: Path | None) -> Task:
    """Return the task that the user means. Raises InvalidParameter or InvalidWorkload that says what to write."""
    if (operator is None) == (file is None):
        raise InvalidParameter(
            "give an operator with its parameters (matmul m=512 n=512 k=512), or --workload FILE", field="operator"
        )
    if operator is not None:
        return operator_task(operator, dict(map(parameter, parameters)))
    assert file is not None
    try:
        if file.stat().st_size > _MAX_FILE_BYTES:
            raise InvalidWorkload(f"{file} is over {_MAX_FILE_BYTES} bytes", field="workload")
        data = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidWorkload(f"cannot read {file}: {error.strerror}", field="workload") from error
    except (ValueError, RecursionError) as error:
        raise InvalidWorkload(f"{file} is no workload: it is not JSON ({error})", field="workload") from error
    return workload_from_json(data)


def parameter(text: str) -> tuple[str, object]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise InvalidParameter(f"{text!r} is no parameter; write NAME=VALUE, like m=512 or shape=[64,64]", field=text)
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value
