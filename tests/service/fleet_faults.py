"""Several services share a PostgreSQL database, the processor of this machine, simulated devices and a Ray cluster,
while processes die, hang, lose their database or have wrong clocks.

After the last fault every job must have ended well, with every trial that was ever shown, each once, and none recorded
by somebody who did not hold its task.
"""

import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from tilewright.core.streams import stream
from tilewright.db.store import RecordStore
from tilewright.tests.db.database_network import DatabaseNetwork, database_network
from tilewright.tests.db.fleets import migrated
from tilewright.tests.db.postgres import PostgresServer
from tilewright.tests.db.postgres import server as postgres_server
from tilewright.tests.service.killing import KillableServer, Observer, free_port
from tilewright.tests.service.late_records import late_records, watch_for_late_records
from tilewright.tests.service.ray_nodes import RayCluster
from tilewright.tests.service.simulated import simulated_unit
from tilewright.tests.service.simulated_host import SimulatedHost
from tilewright.tests.service.wrong_clock import WrongClock
from tilewright.workers.probe import local_unit

LEASE_SECONDS = 3.0
END_SECONDS = 480.0
LOOK_SECONDS = 0.1
HOUR = 3600
FAULTS_AT_ONCE = 2
"""After so many faults without a new trial on a kind of device, the next fault waits for one: a task that was lost five
times in a row without a new record is dead, whoever killed its workers."""
TRIAL_SECONDS = 0.3
DISK_MEBIBYTES = 256
ROLES: Mapping[str, str] = {"task worker": "tilewright.service.task_worker", "child": "tilewright.workers.main"}
"""What a process of a service is called -> the module that it runs."""


@dataclass
class Services:
    """Several services on one database. A request goes to the first one that answers."""

    servers: list[KillableServer]

    def ask(
        self, method: str, path: str, body: object = None, headers: Mapping[str, str] | None = None
    ) -> tuple[int, Any] | None:
        for server in self.servers:
            answer = server.ask(method, path, body, headers)
            if answer is not None and answer[0] < 500:
                return answer
        return None

    def processes(self, role: str) -> list[psutil.Process]:
        """The processes of a role that run now."""
        found = []
        for server in self.servers:
            if server.process is None:
                continue
            try:
                for process in psutil.Process(server.process.pid).children(recursive=True):
                    if ROLES[role] in process.cmdline() and process.status() != psutil.STATUS_ZOMBIE:
                        found.append(process)
            except psutil.NoSuchProcess:
                continue
        return found


@dataclass(frozen=True, slots=True)
class FaultReport:
    """Says what was done and what came of it. ``faults`` is empty when every promise was kept. ``longest_pause`` is the
    longest time in seconds from a fault to the next trial that was seen."""

    done: Mapping[str, int]
    jobs: int
    trials: int
    seen: int
    longest_pause: float
    seconds: float
    faults: tuple[str, ...]


@dataclass
class Fleet:
    """All that a fault may be done to, as far as it is there."""

    postgres: PostgresServer
    services: Services
    network: DatabaseNetwork | None = None
    cluster: RayCluster | None = None
    host: SimulatedHost | None = None
    clocks: Sequence[WrongClock] = ()


@dataclass
class Disturber:
    """Does one fault at a time, drawn from ``draws``."""

    fleet: Fleet
    draws: np.random.Generator
    done: Counter[str] = field(default_factory=Counter)

    def fault(self, kind: str) -> None:
        """Do a fault of this kind, one of KINDS or FURTHER_KINDS. Where nothing is there that it could be done to, it
        is not counted."""
        self.done[kind] += {**KINDS, **FURTHER_KINDS}[kind](self)

    def kill_service(self) -> bool:
        server = self._one(self.fleet.services.servers)
        server.kill()
        server.start()
        return True

    def kill_task_worker(self) -> bool:
        return self._signal(self.fleet.services.processes("task worker")) is not None

    def kill_child(self) -> bool:
        return self._signal(self.fleet.services.processes("child")) is not None

    def kill_simulated_worker(self) -> bool:
        assert self.fleet.host is not None
        return self._signal(self.fleet.host.processes()) is not None

    def kill_ray_process(self) -> bool:
        """Kill a process of a node: a raylet, an agent, or an actor with what it carries."""
        assert self.fleet.cluster is not None
        return self._signal(self.fleet.cluster.processes()) is not None

    def kill_database_process(self) -> bool:
        """Kill a process of PostgreSQL, which ends all others then and recovers."""
        return self._signal(self.fleet.postgres.processes()[1:]) is not None

    def stop_task_worker(self) -> bool:
        """Stop a worker beyond the end of its lease, then let it go on."""
        simulated = [] if self.fleet.host is None else self.fleet.host.processes()
        stopped = self._signal([*self.fleet.services.processes("task worker"), *simulated], signal.SIGSTOP)
        if stopped is None:
            return False
        time.sleep(1.3 * LEASE_SECONDS)
        if stopped.is_running():
            stopped.send_signal(signal.SIGCONT)
        return True

    def restart_database(self) -> bool:
        self.fleet.postgres.stop()
        self.fleet.postgres.start()
        return True

    def stall_database(self) -> bool:
        processes = self.fleet.postgres.processes()
        for process in processes:
            process.send_signal(signal.SIGSTOP)
        time.sleep(float(self.draws.uniform(0.5, 2 * LEASE_SECONDS)))
        for process in reversed(processes):
            process.send_signal(signal.SIGCONT)
        return True

    def fill_disk(self) -> bool:
        """Leave the database no room for a while."""
        self.fleet.postgres.fill_disk(float(self.draws.uniform(0.5, 2 * LEASE_SECONDS)))
        return True

    def cut_network(self) -> bool:
        """Cut one service, with its workers, off the database for a while, up to beyond the end of its leases."""
        assert self.fleet.network is not None
        link = int(self.draws.integers(len(self.fleet.services.servers)))
        self.fleet.network.cut(link)
        time.sleep(float(self.draws.uniform(0.5, 3 * LEASE_SECONDS)))
        self.fleet.network.heal(link)
        return True

    def lose_head(self) -> bool:
        """Kill the head of the Ray cluster, and start another one at its address."""
        assert self.fleet.cluster is not None
        self.fleet.cluster.lose_head(float(self.draws.uniform(0.0, 2 * LEASE_SECONDS)))
        return True

    def jump_clock(self) -> bool:
        """Set the clock of a service, or of the simulated devices' workers, an hour ahead, behind or right."""
        self._one(self.fleet.clocks).set(int(self.draws.integers(-1, 2)) * HOUR)
        return True

    def _one(self, things: Sequence[Any]) -> Any:
        return things[int(self.draws.integers(len(things)))]

    def _signal(
        self, processes: Sequence[psutil.Process], number: signal.Signals = signal.SIGKILL
    ) -> psutil.Process | None:
        """Send one of them a signal, and return it; None where there was none."""
        if not processes:
            return None
        chosen: psutil.Process = self._one(processes)
        try:
            chosen.send_signal(number)
        except psutil.NoSuchProcess:
            return None
        return chosen


KINDS: Mapping[str, Callable[[Disturber], bool]] = {
    "kill service": Disturber.kill_service,
    "kill task worker": Disturber.kill_task_worker,
    "kill child": Disturber.kill_child,
    "stop task worker": Disturber.stop_task_worker,
    "restart database": Disturber.restart_database,
    "stall database": Disturber.stall_database,
}
"""What needs nothing but the services and their database."""
FURTHER_KINDS: Mapping[str, Callable[[Disturber], bool]] = {
    "kill simulated worker": Disturber.kill_simulated_worker,
    "kill Ray process": Disturber.kill_ray_process,
    "kill database process": Disturber.kill_database_process,
    "fill disk": Disturber.fill_disk,
    "cut network": Disturber.cut_network,
    "lose head": Disturber.lose_head,
    "jump clock": Disturber.jump_clock,
}
"""What needs more: simulated devices, a Ray cluster, a small disk, a network namespace, libfaketime."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do. ``kinds`` are done in this order, for ``seconds`` at most. Besides the processor the fleet has so
    many ``simulated`` devices, and with ``ray`` a Ray cluster of three nodes. ``unfenced`` plants a bug in the workers
    of simulated devices: they check no fence."""

    kinds: Sequence[str]
    seed: int
    trials: int = 60
    services: int = 3
    seconds: float = float("inf")
    simulated: int = 0
    ray: bool = False
    unfenced: bool = False


def disturb(folder: Path, plan: Plan) -> FaultReport:
    """Run a fleet, and do faults while jobs run; then judge."""
    began = time.monotonic()
    with ExitStack() as stack:
        fleet, url, ways = _fleet(stack, folder, plan)
        for server in fleet.services.servers:
            server.wait_until_ready()
        _wait_for_devices(fleet.services, {str(way["target"]) for way in ways})
        observer = Observer(fleet.services, plan.trials, plan.seed, ways)
        disturber = Disturber(fleet, stream(plan.seed, "fleet faults"))
        longest = _run(observer, disturber, plan.kinds, began + plan.seconds)
        faults = observer.verdict()
        with RecordStore(url) as store:
            faults += late_records(store)
    orphans = sum(len(server.orphans(10.0)) for server in fleet.services.servers)
    if orphans:
        faults.append(f"{orphans} processes outlived their service")
    return FaultReport(
        dict(disturber.done),
        len(observer.jobs),
        len(observer.jobs) * 2 * plan.trials,
        len(observer.seen),
        longest,
        time.monotonic() - began,
        tuple(faults),
    )


def _run(observer: Observer, disturber: Disturber, kinds: Sequence[str], until: float) -> float:
    """Do the faults, and wait for the end of all jobs; return the longest pause."""
    longest, before = 0.0, observer.seen_by_way()
    waited = dict.fromkeys(range(len(observer.ways)), 0)
    for kind in kinds:
        _watch(observer, until_more=int(disturber.draws.integers(1, 8)), of=())
        _watch(observer, until_more=1, of=[way for way, faults in waited.items() if faults >= FAULTS_AT_ONCE])
        seen = observer.seen_by_way()
        waited = {way: faults + 1 if seen[way] == before[way] else 0 for way, faults in waited.items()}
        before = seen
        if observer.faults or time.monotonic() > until:
            break
        disturber.fault(kind)
        since = time.monotonic()
        _watch(observer, until_more=1, of=())
        if not observer.faults:
            longest = max(longest, time.monotonic() - since)
    end = time.monotonic() + END_SECONDS
    while observer.unfinished() and time.monotonic() < end:
        observer.look()
        time.sleep(LOOK_SECONDS)
    return longest


def _watch(observer: Observer, *, until_more: int, of: Sequence[int]) -> None:
    """Look on until so many more trials were seen of each of these ways to run jobs, or in all where none is given;
    submit further jobs when some have ended."""
    before, end = observer.seen_by_way(), time.monotonic() + END_SECONDS
    while True:
        more = observer.seen_by_way() - before
        if all(more[way] >= until_more for way in of) if of else more.total() >= until_more:
            return
        observer.keep_busy()
        observer.look()
        if time.monotonic() > end:
            observer.faults.append(f"no trial in {END_SECONDS:g} s")
            return
        time.sleep(LOOK_SECONDS)


def _fleet(stack: ExitStack, folder: Path, plan: Plan) -> tuple[Fleet, str, list[dict[str, object]]]:
    """Start what a plan needs. Return it with the address of the database, and the ways in which jobs are run."""
    network = stack.enter_context(database_network(plan.services)) if "cut network" in plan.kinds else None
    room = DISK_MEBIBYTES if "fill disk" in plan.kinds else None
    space = "" if network is None else network.namespace
    postgres = stack.enter_context(postgres_server(mebibytes=room, namespace=space))
    url = postgres.url()
    with migrated(url) as store:
        watch_for_late_records(store)
    urls = [url if network is None else postgres.url_at(network.address(n), url) for n in range(plan.services)]
    ways: list[dict[str, object]] = [{"executor": "local", "target": local_unit().device.key}]
    fleet = Fleet(postgres, Services([]), network)
    if "jump clock" in plan.kinds:
        fleet.clocks = [WrongClock(folder / f"clock-{n}") for n in range(plan.services + 1)]
    if plan.ray:
        fleet.cluster = stack.enter_context(RayCluster(free_port()))
        ways.append({"executor": "ray", "target": local_unit().device.key})
    if plan.simulated:
        addresses = [urls[n % plan.services] for n in range(plan.simulated)]
        environment = _environment(fleet, plan.services)
        host = SimulatedHost(addresses, TRIAL_SECONDS, LEASE_SECONDS, environment, unfenced=plan.unfenced)
        fleet.host = stack.enter_context(host)
        ways.append({"executor": "local", "target": simulated_unit(0).device.key})
    for number, address in enumerate(urls):
        log = folder / f"log-{number}"
        server = KillableServer(address, log, LEASE_SECONDS, environment=_environment(fleet, number))
        fleet.services.servers.append(server)
        server.start()
        stack.callback(server.kill)
    return fleet, url, ways


def _environment(fleet: Fleet, number: int) -> dict[str, str]:
    """What a process has that knows the cluster, and whose clock is this one."""
    found = {} if fleet.cluster is None else {"TILEWRIGHT_RAY_ADDRESS": fleet.cluster.address}
    if fleet.clocks:
        clock = fleet.clocks[number]
        path = os.pathsep.join([clock.path, *(p for p in sys.path if p)])
        found |= {**clock.environment, "PYTHONPATH": path}
    return found


def _wait_for_devices(services: Services, wanted: set[str]) -> None:
    """Wait until there are units of these devices: a job for any other is refused."""
    end = time.monotonic() + END_SECONDS
    while True:
        answer = services.ask("GET", "/v1/units")
        if answer is not None and wanted <= {unit["device_key"] for unit in answer[1].get("units", ())}:
            return
        assert time.monotonic() < end, f"not all devices have joined: {answer}"
        time.sleep(LOOK_SECONDS)
