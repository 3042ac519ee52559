"""The probe of a Ray cluster: a child of ``probe``, which starts it by ``core.child_program``.

It reads ``{address}`` from its input, and prints the reports on all units of all nodes as JSON; or
``{address, unit, lock_folder}``, and prints the report on one unit that was opened. Each node is asked by one
short task there.
"""

import json
import logging
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray

from ..core.errors import WorkerLost
from ..core.fleet import Unit
from ..runtime.hardware import host_uuid
from .child_environment import VISIBLE
from .probe import ProbeReport, local_units, look_at, probe_unit, report_to_json, unit_from_json
from .ray import connect
from .ray_actor import alive_nodes, host_of, node_of, on_node
from .settings import HOST_KINDS, ExecutorSettings

NODE_SECONDS = 120.0
_log = logging.getLogger(__name__)


def probe_node(node: dict[str, Any]) -> list[ProbeReport]:
    """On a node: its units, as units of the Ray executor. A node that gives Ray no processor, such as a head that only
    manages, offers none to time on either."""
    _see_what_the_node_sees()
    host = host_of(node)
    units = [replace(unit, executor="ray", host=host) for unit in local_units()]
    processors = [replace(u, uuid=host_uuid(host)) for u in units if u.device.target.kind in HOST_KINDS]
    others = [u for u in units if u.device.target.kind not in HOST_KINDS]
    return [look_at(unit) for unit in (*(processors if node["Resources"].get("CPU") else ()), *others)]


def open_unit(unit: Unit, lock_folder: str) -> list[ProbeReport]:
    """On the node of a unit: the unit, opened."""
    report = probe_unit(replace(unit, executor="local"), ExecutorSettings(lock_folder=lock_folder))
    return [replace(report, unit=unit)]


def main() -> None:
    """Raises SystemExit with the reason where the cluster does not answer."""
    question = json.load(sys.stdin)
    try:
        connect(question["address"])
        if "unit" in question:
            unit = unit_from_json(question["unit"])
            asked = [_ask(node_of(unit), open_unit, unit, question["lock_folder"])]
        else:
            asked = [_ask(node["NodeID"], probe_node, node) for node in alive_nodes()]
        reports = [report for answer in asked for report in _answer(answer)]
    except WorkerLost as lost:
        sys.exit(lost.message)
    print(json.dumps([report_to_json(report) for report in reports]))


def _ask(node: str, what: Any, *arguments: object) -> Any:
    remote: Any = ray.remote(what)
    return remote.options(num_cpus=0, num_gpus=0, max_retries=0, scheduling_strategy=on_node(node)).remote(*arguments)


def _answer(answer: Any) -> list[ProbeReport]:
    try:
        reports: list[ProbeReport] = ray.get(answer, timeout=NODE_SECONDS)
    except ray.exceptions.RayError as error:
        _log.warning("a node was not probed: %s", error)
        return []
    return reports


def _see_what_the_node_sees() -> None:
    """Ray hides all GPUs from what asks for none, or shows all. Show those that the node itself was started with: its
    raylet is our parent."""
    os.environ.pop(VISIBLE, None)
    entries = Path(f"/proc/{os.getppid()}/environ").read_bytes().decode(errors="replace").split("\0")
    found = [entry.partition("=")[2] for entry in entries if entry.startswith(f"{VISIBLE}=")]
    if found:
        os.environ[VISIBLE] = found[0]
