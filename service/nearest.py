"""Names the workloads that are nearest to one without an answer."""

from collections.abc import Mapping

from ..core.errors import NotFound
from ..db.store import RecordStore
from .lookup import Miss
from .near_shapes import distance

MAX_NEAREST = 3
"""How many near workloads the error of a miss names."""
NEWEST_TASKS = 400
"""Among so many of the newest tasks of the operator the nearest are looked for."""


def miss_error(
    store: RecordStore,
    workload_key: str,
    miss: Miss,
    operator: str | None,
    parameters: Mapping[str, object] | None,
) -> NotFound:
    """Return the error for a workload without an answer. It names the nearest workloads of the same operator."""
    if operator is None:
        origin = store.origin(workload_key)
        if origin is not None:
            operator, parameters = origin
    message = miss_message(workload_key, miss)
    if operator is None:
        return NotFound(message, field="workload_key")
    others = [row for row in store.near(operator, limit=NEWEST_TASKS) if row.workload_key != workload_key]
    near = sorted(others, key=lambda row: distance(parameters or {}, row.parameters))
    if not near:
        return NotFound(f"{message}, nor of any other {operator}", field="workload_key")
    listed = "; ".join(f"{row.workload_key} ({_text(row.parameters)})" for row in near[:MAX_NEAREST])
    return NotFound(f"{message}; nearest known {operator}: {listed}", field="workload_key")


def miss_message(workload_key: str, miss: Miss) -> str:
    """Return what is answered for a workload without an answer."""
    return f"no schedule of workload {workload_key}: {miss.reason}"


def _text(parameters: Mapping[str, object]) -> str:
    return ", ".join(f"{name}={value}" for name, value in parameters.items())
