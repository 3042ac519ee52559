"""Makes the row of a task from a workload."""

from collections.abc import Mapping

from ..core.errors import InvalidWorkload
from ..te.cost import flops, minimum_bytes
from ..te.json import workload_to_json
from ..te.key import workload_key
from ..te.text import workload_text
from ..te.workload import Workload
from .rows import NewTask

MAX_INTEGER = (1 << 63) - 1
"""The largest integer that a column can hold."""


def task_of(
    workload: Workload,
    operator: str | None = None,
    parameters: Mapping[str, object] | None = None,
    *,
    field: str = "",
) -> NewTask:
    """Return the task that tunes ``workload``. Raises InvalidWorkload, naming ``field``, when its operations or bytes
    are too many to count."""
    operations, traffic = flops(workload), minimum_bytes(workload)
    if max(operations, traffic) > MAX_INTEGER:
        raise InvalidWorkload(
            f"{operations:.3g} operations on {traffic:.3g} bytes; allowed: less than 2^63 of each", field=field
        )
    return NewTask(
        workload_key=workload_key(workload),
        workload=workload_to_json(workload),
        expression=workload_text(workload),
        flops=operations,
        minimum_bytes=traffic,
        operator=operator,
        parameters=None if parameters is None else dict(parameters),
    )
