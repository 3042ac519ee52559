"""Every layer of the road of one schedule, and where it lies under the roofline."""

import json

from ..core.schedule import Schedule
from ..core.target import Target
from ..core.trial import Timed
from ..db.store import Store
from ..te.cost import flops, minimum_bytes
from ..te.key import workload_key
from ..te.text import workload_text
from ..te.workload import Workload
from . import wiring
from .roofline import roofline
from .subject import Subject
from .views import Explanation, ExportView, Section


def explain(store: Store, workload: Workload, shown: Subject) -> Explanation:
    """All that can be seen of ``shown``. Raises IllegalSchedule, CompileError, UnsupportedTarget."""
    device, schedule, outcome = shown.device, shown.schedule, shown.outcome
    seconds = outcome.seconds if isinstance(outcome, Timed) else None
    road = wiring.anatomy(workload, device.target, schedule)
    limit = roofline(workload, device, store.measured(device.key), shown.cache)
    operations, traffic = flops(workload), minimum_bytes(workload)
    return Explanation(
        workload_key=workload_key(workload),
        schedule=schedule,
        sections=(
            Section("expression", "text", workload_text(workload)),
            Section("knobs", "text", _knobs(workload, device.target, schedule)),
            Section("schedule", "json", json.dumps(schedule.to_json(), indent=2)),
            *road.sections,
        ),
        instructions=road.instructions,
        target=str(device.target),
        functions=road.functions,
        flops=operations,
        minimum_bytes=traffic,
        accessed_bytes=road.accessed_bytes,
        flops_per_byte=operations / traffic if traffic else 0.0,
        roofline_seconds=None if limit is None else limit.seconds,
        roofline_by=None if limit is None else limit.by,
        seconds=seconds,
        fraction_of_roofline=None if limit is None or seconds is None else limit.seconds / seconds,
    )


def export(workload: Workload, shown: Subject) -> ExportView:
    """``shown`` as files. Raises IllegalSchedule, CompileError, UnsupportedTarget."""
    files = wiring.files_of(workload, shown.device.target, shown.schedule)
    return ExportView(workload_key(workload), shown.schedule, files)


def _knobs(workload: Workload, target: Target, schedule: Schedule) -> str:
    meanings = wiring.knob_meanings(workload, target, schedule)
    width = max((len(f"{name} = {value}") for name, value in schedule.knobs), default=0)
    return "\n".join(
        f"{f'{name} = {value}':<{width}}  {meanings.get(name, '')}".rstrip() for name, value in schedule.knobs
    )
