"""Several services share a PostgreSQL database, the processor of this machine, simulated devices and a Ray cluster,
while processes die, hang, lose their database or have wrong clocks.

Several faults happen at once: each lane of LANES does one after the other to what it is about, on a thread of its own.
After the last fault every job must have ended well, with every trial that was ever shown, each once, and none recorded
by somebody who did not hold its task.
"""

import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
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
from tilewright.tests.ports import free_port
from tilewright.tests.service.fork_server import ForkServer
from tilewright.tests.service.killing import SERVICE_MODULES, KillableServer, Observer
from tilewright.tests.service.late_records import late_records, watch_for_late_records
from tilewright.tests.service.ray_nodes import RayCluster
from tilewright.tests.service.simulated import simulated_unit
from tilewright.tests.service.simulated_host import MODULE as SIMULATED
from tilewright.tests.service.simulated_host import SimulatedHost
from tilewright.tests.service.wrong_clock import WrongClock
from tilewright.workers.probe import local_unit

LEASE_SECONDS = 3.0
END_SECONDS = 480.0
LOOK_SECONDS = 0.5
"""So often the services are asked for trials: a look costs them a tenth of a second of a processor."""
HOUR = 3600
FAULTS_AT_ONCE = 3
"""After so many faults of COUNTED without a new trial of an executor, the next one of these waits for one: a task that
was lost five times in a row without a new record is dead."""
MOST_TRIALS = 4
"""A lane waits for so many new trials at most between two of its faults, and for one at least."""
TRIAL_SECONDS = 0.4
DRIVERS = 2
"""So many services drive the Ray cluster: each looks at it again and again, which takes seconds of a processor."""
JOBS_OF_SIMULATED = 3
"""So many jobs at once are for simulated devices: with few tasks at once, all faults would come to the same ones."""
DISK_MEBIBYTES = 256
ROLES: Mapping[str, str] = {"task worker": "tilewright.service.task_worker", "child": "tilewright.workers.main"}
"""What a process of a service is called -> the module that it runs."""


@dataclass
class Services:
    """Several services on one database. A request goes to the first one that answers."""

    servers: list[KillableServer]
    changing: threading.Lock = field(default_factory=threading.Lock)
    """Held by whoever ends a service or starts it."""

    def ask(
        self, method: str, path: str, body: object = None, headers: Mapping[str, str] | None = None
    ) -> tuple[int, Any] | None:
        for server in self.servers:
            answer = server.ask(method, path, body, headers)
            if answer is not None and answer[0] < 500:
                return answer
        return None

    def revive(self) -> None:
        """Start those again that ended by themselves, as ``Restart=always`` of systemd does: a service that finds no
        database when it starts ends."""
        with self.changing:
            for server in self.servers:
                if server.process is not None and server.process.poll() is not None:
                    server.start()

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
    longest time in seconds in which no new trial was seen. ``ends``: how attempts ended, and how often so. ``times``:
    for each kind of fault, the mean seconds for which its turn was waited for, and which it took to be done."""

    done: Mapping[str, int]
    ends: Mapping[str, int]
    times: Mapping[str, tuple[float, float]]
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
    locks: Path
    """The folder of the locks of its devices: nobody else is to be waited for."""
    network: DatabaseNetwork | None = None
    cluster: RayCluster | None = None
    host: SimulatedHost | None = None
    clocks: Sequence[WrongClock] = ()


@dataclass
class Disturber:
    """Does the faults of one lane, drawn from ``draws``."""

    fleet: Fleet
    draws: np.random.Generator
    done: Counter[str] = field(default_factory=Counter)
    times: list[tuple[str, float, float]] = field(default_factory=list)
    """For each fault: its kind, for how long its turn was waited for, and how long it took to be done, in seconds."""

    def fault(self, kind: str) -> bool:
        """Do a fault of this kind, one of KINDS or FURTHER_KINDS. Return whether there was what it could be done to; it
        is not counted otherwise."""
        done = {**KINDS, **FURTHER_KINDS}[kind](self)
        self.done[kind] += done
        return done

    def kill_service(self) -> bool:
        server = self._one(self.fleet.services.servers)
        with self.fleet.services.changing:
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
            with suppress(psutil.NoSuchProcess):  # one may end meanwhile; the others must go on all the same
                process.send_signal(signal.SIGSTOP)
        time.sleep(float(self.draws.uniform(0.5, 2 * LEASE_SECONDS)))
        for process in reversed(processes):
            with suppress(psutil.NoSuchProcess):
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


LANES: Mapping[str, Sequence[str]] = {
    "database": ("restart database", "stall database", "kill database process", "fill disk"),
    "network": ("cut network",),
    "services": ("kill service", "jump clock"),
    "workers": ("kill task worker", "stop task worker"),
    "children": ("kill child",),
    "simulated": ("kill simulated worker",),
    "Ray": ("kill Ray process", "lose head"),
}
"""What is done at the same time, and what one after the other."""
WIDE = {"simulated": 2}
"""So many lanes of one name there are where there is more than one: there are many of these processes."""
COUNTED = {"kill child": "local", "kill Ray process": "ray", "lose head": "ray"}
"""After these a task of an executor may count a loss: a child died twice in a row while it started, or an actor."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do. ``kinds`` are done in this order, those of each lane apart, for ``seconds`` at most. Besides the
    processor the fleet has so many ``simulated`` devices, and with ``ray`` a Ray cluster of three nodes. ``unfenced``
    plants a bug in the workers of simulated devices: they check no fence."""

    kinds: Sequence[str]
    seed: int
    trials: int = 60
    services: int = 3
    seconds: float = float("inf")
    simulated: int = 0
    ray: bool = False
    unfenced: bool = False


@dataclass
class Progress:
    """What all lanes wait for: ``first`` has the first way of each executor. ``over`` is set when there are to be no
    more faults."""

    first: Mapping[str, int]
    over: threading.Event = field(default_factory=threading.Event)
    seen: Counter[int] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _counted: Counter[int] = field(default_factory=Counter)

    def look(self, seen: Counter[int]) -> None:
        """So many trials were seen by now of each way to run jobs."""
        with self._changed:
            for way in self.first.values():
                if seen[way] > self.seen[way]:
                    self._counted[way] = 0
            self.seen = seen
            self._changed.notify_all()

    def await_turn(self, kind: str, more: int) -> None:
        """Wait for so many new trials, and until a fault of this kind can make no task dead."""
        way = self.first.get(COUNTED.get(kind, ""), -1)
        with self._changed:
            wanted = self.seen.total() + more
            while not self.over.is_set() and (
                self.seen.total() < wanted or (way >= 0 and self._counted[way] >= FAULTS_AT_ONCE)
            ):
                self._changed.wait(LOOK_SECONDS)
            if way >= 0:
                self._counted[way] += 1


def _lanes(kinds: Sequence[str]) -> dict[str, list[str]]:
    """What each lane does, in order."""
    found: dict[str, list[str]] = {}
    for name, own in LANES.items():
        mine, width = [kind for kind in kinds if kind in own], WIDE.get(name, 1)
        found |= {f"{name} {n}": mine[n::width] for n in range(width)}
    return found


def disturb(folder: Path, plan: Plan) -> FaultReport:
    """Run a fleet, and do faults while jobs run; then judge."""
    began = time.monotonic()
    with ExitStack() as stack:
        fleet, store, ways = _fleet(stack, folder, plan)
        for server in fleet.services.servers:
            server.wait_until_ready()
        _wait_for_devices(fleet.services, {str(way["target"]) for way in ways})
        observer = Observer(fleet.services, plan.trials, plan.seed, ways)
        lanes = _lanes(plan.kinds)
        disturbers = {name: Disturber(fleet, stream(plan.seed, "fleet faults", name)) for name in lanes}
        longest = _run(observer, fleet.services, disturbers, lanes, began + plan.seconds)
        faults = observer.verdict() + late_records(store)
        ends = {str(how): count for how, count in store.fleet.figures().attempts.items() if count}
    orphans = [line for server in fleet.services.servers for line in server.orphans()]
    faults += [f"a process outlived its service: {line}" for line in orphans]
    done = sum((disturber.done for disturber in disturbers.values()), Counter[str]())
    return FaultReport(
        dict(done),
        ends,
        _means(disturbers.values()),
        len(observer.jobs),
        len(observer.jobs) * 2 * plan.trials,
        len(observer.seen),
        longest,
        time.monotonic() - began,
        tuple(faults),
    )


def _means(disturbers: Iterable[Disturber]) -> dict[str, tuple[float, float]]:
    """For each kind of fault, the means of what ``Disturber.times`` says."""
    times = [entry for disturber in disturbers for entry in disturber.times]
    found = {}
    for kind in sorted({kind for kind, _, _ in times}):
        own = [(waited, took) for other, waited, took in times if other == kind]
        waited, took = (sum(column) / len(own) for column in zip(*own, strict=True))
        found[kind] = (round(waited, 2), round(took, 2))
    return found


def _run(
    observer: Observer,
    services: Services,
    disturbers: Mapping[str, Disturber],
    lanes: Mapping[str, Sequence[str]],
    until: float,
) -> float:
    """Do the faults, and wait for the end of all jobs; return the longest pause."""
    executors = [str(way["executor"]) for way in observer.ways]
    progress = Progress({name: executors.index(name) for name in executors})  # simulated devices come last

    def work(name: str) -> None:
        disturber = disturbers[name]
        try:
            for kind in lanes[name]:
                began = time.monotonic()
                progress.await_turn(kind, int(disturber.draws.integers(1, MOST_TRIALS + 1)))
                turn = time.monotonic()
                # a process may end before its signal comes, and another one starts
                while not progress.over.is_set() and not disturber.fault(kind):
                    progress.over.wait(LOOK_SECONDS)
                disturber.times.append((kind, turn - began, time.monotonic() - turn))
        except Exception as error:
            progress.problems.append(f"lane {name}: {error!r}")

    threads = [threading.Thread(target=work, args=(name,), name=name) for name in lanes]
    with _running(threads, progress.over):
        longest = _watch(observer, services, progress, threads, until)
    observer.faults += progress.problems
    end = time.monotonic() + END_SECONDS
    while observer.unfinished() and time.monotonic() < end:
        services.revive()
        observer.look()
        time.sleep(LOOK_SECONDS)
    return longest


@contextmanager
def _running(threads: Sequence[threading.Thread], over: threading.Event) -> Iterator[None]:
    """Run threads in the block. After it they are to end, and whatever they have stopped or cut goes on."""
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


def _watch(
    observer: Observer, services: Services, progress: Progress, threads: Sequence[threading.Thread], until: float
) -> float:
    """Have jobs and look at their trials until the threads have ended; return the longest pause."""
    longest, since = 0.0, time.monotonic()
    while any(thread.is_alive() for thread in threads):
        if observer.faults or progress.problems or time.monotonic() > until:
            progress.over.set()
        else:
            observer.keep_busy()
        services.revive()
        observer.look()
        seen = observer.seen_by_way()
        if seen.total() > progress.seen.total():
            longest, since = max(longest, time.monotonic() - since), time.monotonic()
        elif time.monotonic() - since > END_SECONDS:
            observer.faults.append(f"no trial in {END_SECONDS:g} s")
        progress.look(seen)
        time.sleep(LOOK_SECONDS)
    return longest


def _fleet(stack: ExitStack, folder: Path, plan: Plan) -> tuple[Fleet, RecordStore, list[dict[str, object]]]:
    """Start what a plan needs. Return it with its database, and the ways in which jobs are run."""
    network = stack.enter_context(database_network(plan.services)) if "cut network" in plan.kinds else None
    room = DISK_MEBIBYTES if "fill disk" in plan.kinds else None
    space = "" if network is None else network.namespace
    postgres = stack.enter_context(postgres_server(mebibytes=room, namespace=space))
    url = postgres.url()
    store = stack.enter_context(migrated(url))
    watch_for_late_records(store)
    urls = [url if network is None else postgres.url_at(network.address(n), url) for n in range(plan.services)]
    ways: list[dict[str, object]] = [{"executor": "local", "target": local_unit().device.key}]
    fleet = Fleet(postgres, Services([]), folder, network)
    if "jump clock" in plan.kinds:
        fleet.clocks = [WrongClock(folder / f"clock-{n}") for n in range(plan.services + 1)]
    if plan.ray:
        fleet.cluster = stack.enter_context(RayCluster(free_port()))
        ways.append({"executor": "ray", "target": local_unit().device.key})
    if plan.simulated:
        addresses = [urls[n % plan.services] for n in range(plan.simulated)]
        forks = stack.enter_context(ForkServer([SIMULATED], _environment(fleet, plan.services)))
        log, times = folder / "log-simulated", (TRIAL_SECONDS, LEASE_SECONDS)
        host = SimulatedHost(store, forks, addresses, *times, log, unfenced=plan.unfenced)
        fleet.host = stack.enter_context(host)
        jobs = min(plan.simulated, JOBS_OF_SIMULATED)
        ways += [{"executor": "local", "target": simulated_unit(0).device.key} for _ in range(jobs)]
    for number, address in enumerate(urls):
        forks = stack.enter_context(ForkServer(SERVICE_MODULES, _environment(fleet, number)))
        server = KillableServer(address, folder / f"log-{number}", LEASE_SECONDS, forks=forks)
        fleet.services.servers.append(server)
        server.start()
        stack.callback(server.kill)
    return fleet, store, ways


def _environment(fleet: Fleet, number: int) -> dict[str, str]:
    """What a process has that knows the cluster, and whose clock is this one."""
    found = {"TILEWRIGHT_LOCK_FOLDER": str(fleet.locks)}
    if fleet.cluster is not None and number < DRIVERS:
        found["TILEWRIGHT_RAY_ADDRESS"] = fleet.cluster.address
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
