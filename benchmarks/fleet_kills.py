"""Bar: on a host with several GPUs, whatever is killed and although a GPU is taken away, every job ends well, no trial
is lost, and none is there twice.

A service on an embedded database, with leases of 3 s, always has a job for the local executor and one for Ray, on all
GPUs of this host; Ray is a cluster of a head and one node. Each of KINDS is done ``--set rounds=N`` times (default 5),
in a random order, as soon as new trials were seen and there is what it can be done to; faults of Ray wait for new
trials of Ray. ``--trials N``: trials of each task (24).
"""

import os
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks.h200_memory import ROWS
from benchmarks.suite import Options, Result
from tilewright.core.streams import stream
from tilewright.runtime.devices import DEVICES, open_device
from tilewright.tests.ports import free_port
from tilewright.tests.service.fleet_faults import Services
from tilewright.tests.service.killing import KillableServer, Observer
from tilewright.tests.service.ray_nodes import RayCluster

TABLE = (
    "gelu-8192x8192",
    "broadcast-8192x8192",
    "softmax-1024x65536",
    "layer_norm-8192x1024",
    "log_softmax-4096x50257",
    "column_sum-8192x8192-f32",
    "transpose-8192x8192",
    "permute_0231-32x256x56x56",
)
"""Rows of the memory table whose spaces are large."""
LEASE_SECONDS = 3.0
TRIALS = 24
TURN_SECONDS = 60.0
"""A fault waits for so long; then the run goes on without it."""
END_SECONDS = 300.0
LOOK_SECONDS = 0.1
FEW, MANY = 4, 24
"""So many new trials are seen between two faults, at least and at most."""


@dataclass
class Host:
    """What dies: the service with its workers, and the cluster."""

    services: Services
    cluster: RayCluster
    draws: np.random.Generator

    def kill_task_worker(self) -> bool:
        return self._signal(self.services.processes("task worker"))

    def stop_task_worker(self) -> bool:
        """Stop a worker beyond the end of its leases, then let it go on."""
        return self._signal(self.services.processes("task worker"), signal.SIGSTOP)

    def kill_runner(self) -> bool:
        """Kill a child that has a GPU open, of the service or of an actor."""
        return self._signal([child for child in self._children() if _opens_a_gpu(child)])

    def kill_builder(self) -> bool:
        """Kill a child without a GPU."""
        return self._signal([child for child in self._children() if not _opens_a_gpu(child)])

    def kill_actor(self) -> bool:
        """Kill an actor, which carries a runner or a builder."""
        actors = [p for p in self.cluster.processes() if _command(p).startswith("ray::")]
        return self._signal([p for p in actors if "Agent" not in _command(p)])

    def kill_raylet(self) -> bool:
        return self._signal([p for p in self.cluster.processes() if "/raylet/raylet" in _command(p).partition(" ")[0]])

    def take_a_gpu(self) -> bool:
        """Quarantine a GPU that is leased until its holder has given it up, as an administrator does."""
        held = [unit for unit in self._units() if unit["owner"] is not None]
        if not held:
            return False
        path, reason = f"/v1/units/{held[int(self.draws.integers(len(held)))]['uuid']}", {"reason": "taken away"}
        self.services.ask("POST", f"{path}/quarantine", reason)
        end = time.monotonic() + TURN_SECONDS
        while any(u["owner"] for u in self._units() if path.endswith(u["uuid"])) and time.monotonic() < end:
            time.sleep(LOOK_SECONDS)
        self.services.ask("POST", f"{path}/release", reason)
        return time.monotonic() < end

    def _units(self) -> list[dict[str, Any]]:
        answer = self.services.ask("GET", "/v1/units")
        units = [] if answer is None or answer[0] != 200 else answer[1]["units"]
        return [unit for unit in units if "cuda" in unit["classes"]]

    def _children(self) -> list[psutil.Process]:
        """Return the children of the service, or, as often, those of Ray's actors."""
        if self.draws.random() < 0.5:
            return [p for p in self.cluster.processes() if "tilewright.workers.main" in _command(p)]
        return self.services.processes("child")

    def _signal(self, processes: Sequence[psutil.Process], number: signal.Signals = signal.SIGKILL) -> bool:
        """Send one of them a signal; one that was stopped goes on after its lease has run out."""
        if not processes:
            return False
        chosen = processes[int(self.draws.integers(len(processes)))]
        with suppress(psutil.NoSuchProcess):
            chosen.send_signal(number)
            if number is signal.SIGSTOP:
                time.sleep(1.3 * LEASE_SECONDS)
                chosen.send_signal(signal.SIGCONT)
            return True
        return False


KINDS: Mapping[str, Callable[[Host], bool]] = {
    "kill task worker": Host.kill_task_worker,
    "stop task worker": Host.stop_task_worker,
    "kill runner": Host.kill_runner,
    "kill builder": Host.kill_builder,
    "kill actor": Host.kill_actor,
    "kill raylet": Host.kill_raylet,
    "take a GPU": Host.take_a_gpu,
}
OF_RAY = ("kill actor", "kill raylet")
EXECUTORS = ("local", "ray")


def run(options: Options) -> Result:
    rounds, trials = int(options.extra.get("rounds", "5")), options.trials or TRIALS
    tasks = [{"operator": ROWS[name].operator, "parameters": dict(ROWS[name].parameters)} for name in TABLE]
    ways = tuple({"target": "cuda", "executor": executor, "cache": "cold"} for executor in EXECUTORS)
    began, done, draws = time.monotonic(), Counter[str](), stream(options.seed, "kills")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        cluster = stack.enter_context(
            RayCluster(free_port(), hosts=("",), processors=len(os.sched_getaffinity(0)) // 2)
        )
        environment = {"TILEWRIGHT_RAY_ADDRESS": cluster.address}
        url = f"sqlite:///{folder}/db.sqlite3"
        server = KillableServer(url, folder / "log", LEASE_SECONDS, environment=environment)
        server.start()
        stack.callback(server.kill)
        server.wait_until_ready()
        observer = Observer(server, trials, options.seed, ways, tasks)
        host = Host(Services([server]), cluster, draws)
        kinds = [kind for kind in KINDS for _ in range(rounds)]
        for n in draws.permutation(len(kinds)):
            done[kinds[n]] += _do(kinds[n], host, observer)
            print(f"{time.monotonic() - began:.0f} s: {kinds[n]}, {len(observer.seen)} trials seen", flush=True)
        end = time.monotonic() + END_SECONDS
        while observer.unfinished() and time.monotonic() < end:
            observer.look()
            time.sleep(LOOK_SECONDS)
        faults = observer.verdict()
        ways_seen = observer.seen_by_way()
        ends = _ends(server, observer)
        if faults:
            print(server.log.read_text()[-4000:])
    summary = {
        "gpus": DEVICES["cuda"].count(),
        "done": dict(done),
        "jobs": len(observer.jobs),
        "trials": len(observer.jobs) * len(tasks) * trials,
        "seen": {executor: ways_seen[n] for n, executor in enumerate(EXECUTORS)},
        "attempts": dict(ends),
        "seconds": time.monotonic() - began,
        "faults": faults,
    }
    device = open_device("cuda").info
    settings = {"rounds": rounds, "trials": trials, "lease_seconds": LEASE_SECONDS}
    passed = not faults and all(done[kind] for kind in KINDS)
    return Result((), summary, passed, settings, {"name": device.name, **device.hardware})


def _do(kind: str, host: Host, observer: Observer) -> bool:
    """Look on until some more trials were seen, with a job of each executor under way; then do it, as soon as there is
    what it can be done to."""
    end, way = time.monotonic() + TURN_SECONDS, EXECUTORS.index("ray")
    wanted = len(observer.seen) + int(host.draws.integers(FEW, MANY))
    of_ray = observer.seen_by_way()[way] + (kind in OF_RAY)
    while time.monotonic() < end:
        observer.keep_busy()
        observer.look()
        ready = len(observer.seen) >= wanted and observer.seen_by_way()[way] >= of_ray
        if ready and KINDS[kind](host):
            return True
        time.sleep(LOOK_SECONDS)
    return False


def _ends(server: KillableServer, observer: Observer) -> Counter[str]:
    """Return how the attempts at all tasks ended, and how often so."""
    found = Counter[str]()
    for job in observer.jobs.values():
        for task in range(len(observer.tasks)):
            answer = server.ask("GET", f"/v1/jobs/{job}/tasks/{task}/attempts")
            found.update(str(a["how"]) for a in ([] if answer is None else answer[1]["attempts"]))
    return found


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def _opens_a_gpu(process: psutil.Process) -> bool:
    """Return whether the process has a device file of a GPU open."""
    try:
        names = [os.readlink(entry) for entry in Path(f"/proc/{process.pid}/fd").iterdir()]
    except OSError:
        return False
    return any(name.startswith("/dev/nvidia") for name in names)
