"""Groups the records of earlier tasks into experiences, which a cost model learns from."""

from collections.abc import Sequence

from ..core.errors import InvalidWorkload
from ..core.record import Record
from ..core.schedule import Schedule
from ..core.trial import Outcome
from ..cost_model.dataset import Experience
from ..db.store import RecordStore
from ..te.json import workload_from_json


def experiences(store: RecordStore, records: Sequence[Record]) -> tuple[Experience, ...]:
    """Return one experience for each workload and device, in the order of their first record."""
    groups: dict[tuple[str, str], list[tuple[Schedule, Outcome]]] = {}
    for record in records:
        group = (record.identity.workload_key, record.identity.device_key)
        groups.setdefault(group, []).append((record.trial.schedule, record.trial.outcome))
    devices = {info.key: info for info in store.devices()}
    found = []
    for (workload_key, device_key), results in groups.items():
        data = store.workload(workload_key)
        if data is None:
            continue
        try:
            workload = workload_from_json(data)
        except InvalidWorkload:
            continue  # a version that allowed more wrote it: there is nothing to learn from it here
        found.append(Experience(workload, devices[device_key], tuple(results)))
    return tuple(found)
