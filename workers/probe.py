"""Which units there are, and how they are.

    local_units      the devices of this host
    cluster_units    the devices of all hosts of a Ray cluster, with what NVML says of each
    probe_unit       one device, here or in a cluster: it is opened, and its anchors are timed

What needs Ray runs in a child process (``cluster_probe``), because losing its head ends a process that uses Ray.
``health.verdict`` judges what is found.
"""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from ..core.child_program import command
from ..core.errors import UnsupportedTarget, WorkerLost
from ..core.fleet import Unit
from ..core.target import Profile
from ..runtime.cuda import health
from ..runtime.cuda.health import HealthReadings
from ..runtime.devices import DEVICES, device_info, device_uuid
from .child_environment import ray_variables, scrubbed
from .child_supervisor import WorkerSpec
from .runner_supervisor import ProbeSupervisor
from .settings import Deadlines, ExecutorSettings
from .wire import Json, device_from_json, device_to_json

CLUSTER_PROGRAM = "tilewright.workers.cluster_probe"
CLUSTER_SECONDS = 180.0
"""How long the probe of a whole cluster may take. Each node starts a process for it, which takes long on a busy one."""
PROBE_DEADLINES = Deadlines(start=30.0, probe=30.0, wait=30.0)


@dataclass(frozen=True, slots=True)
class ProbeReport:
    """Says what a probe found. Anchors are in seconds, and None where they were not timed; ``error`` says why the
    device did not open. ``readings`` of a processor are those of a healthy device."""

    unit: Unit
    readings: HealthReadings = field(default_factory=HealthReadings)
    anchor_seconds: float | None = None
    power_anchor_seconds: float | None = None
    error: str = ""


def local_unit(kind: str = "llvm", ordinal: int = 0) -> Unit:
    """Return the ``ordinal``-th device of ``kind`` of this host. Raises UnsupportedTarget."""
    return Unit(device_uuid(kind, ordinal), device_info(kind, ordinal), socket.gethostname(), ordinal=ordinal)


def local_units() -> tuple[Unit, ...]:
    """Return the devices of this host that code can be made for, in the order of kinds and ordinals. None is opened."""
    units = []
    for kind, row in DEVICES.items():
        for ordinal in range(row.count()):
            try:
                units.append(local_unit(kind, ordinal))
            except UnsupportedTarget:  # nothing can be compiled for it
                continue
    return tuple(units)


def look_at(unit: Unit, xids: Sequence[int] = ()) -> ProbeReport:
    """Return what NVML says of a unit of this host. The device is not opened, so that nobody who times on it is
    disturbed."""
    return ProbeReport(unit, health.read(unit.uuid, xids) if unit.device.target.kind == "cuda" else HealthReadings())


def probe_unit(unit: Unit, settings: ExecutorSettings | None = None, fence: int = 0) -> ProbeReport:
    """Look at a unit, open it in a short child, which holds the lock of the device, and time its anchors.

    NVML's utilisation is that of the last second: of a unit that we used just now, judge with ``idle=False``. A unit of
    the Ray executor is probed on its host, in the cluster at ``settings.ray_address``. Raises WorkerLost where that
    cluster does not answer.
    """
    settings = settings or ExecutorSettings()
    if unit.executor == "ray" and settings.ray_address:
        (report,) = _ask_cluster(
            {"address": settings.ray_address, "unit": unit_to_json(unit), "lock_folder": settings.lock_folder},
        )
        return report
    settings = replace(settings, deadlines=PROBE_DEADLINES)
    before = look_at(unit)  # afterwards it has worked for us
    supervisor = ProbeSupervisor(WorkerSpec(unit.device.target, Profile(), 0, settings, unit, fence))
    try:
        anchors = supervisor.anchors()
    except WorkerLost as lost:
        return ProbeReport(unit, look_at(unit).readings, error=lost.message)
    finally:
        supervisor.close()
    return ProbeReport(unit, before.readings, anchors["anchor_seconds"], anchors.get("power_anchor_seconds"))


def cluster_units(address: str) -> tuple[ProbeReport, ...]:
    """Return the units of every node of a Ray cluster that is alive, with what NVML says of them. Nodes that do not
    answer in time are left out. Raises WorkerLost where the cluster does not answer, or Ray is not installed."""
    return _ask_cluster({"address": address})


def _ask_cluster(question: Json) -> tuple[ProbeReport, ...]:
    """Return what the child process says."""
    path = os.pathsep.join(p for p in sys.path if p)
    where = f"the Ray cluster at {question['address']}"
    try:
        done = subprocess.run(
            command(CLUSTER_PROGRAM),
            input=json.dumps(question),
            env={**scrubbed(os.environ), **ray_variables(os.environ), "PYTHONPATH": path},
            capture_output=True,
            text=True,
            timeout=CLUSTER_SECONDS,
            check=True,
        )
    except subprocess.TimeoutExpired as error:
        raise WorkerLost(f"{where} did not answer in {CLUSTER_SECONDS:g} s") from error
    except subprocess.CalledProcessError as error:
        raise WorkerLost(f"{where} was not probed: {_last_line(error.stderr)}") from error
    return tuple(report_from_json(row) for row in json.loads(_last_line(done.stdout)))


def _last_line(text: str) -> str:
    return text.strip().rpartition("\n")[2]


def unit_to_json(unit: Unit) -> Json:
    return {
        "uuid": unit.uuid,
        "device": device_to_json(unit.device),
        "host": unit.host,
        "executor": unit.executor,
        "ordinal": unit.ordinal,
    }


def unit_from_json(data: Any) -> Unit:
    """Return the inverse of ``unit_to_json``."""
    return Unit(**{**data, "device": device_from_json(data["device"])})


def report_to_json(report: ProbeReport) -> Json:
    fields: Json = {name: getattr(report, name) for name in ProbeReport.__slots__}
    return {**fields, "unit": unit_to_json(report.unit), "readings": asdict(report.readings)}


def report_from_json(data: Any) -> ProbeReport:
    """Return the inverse of ``report_to_json``."""
    told: dict[str, Any] = data["readings"]
    readings = HealthReadings(**{**told, "xids": tuple(told["xids"]), "throttled": tuple(told["throttled"])})
    return ProbeReport(**{**data, "unit": unit_from_json(data["unit"]), "readings": readings})
