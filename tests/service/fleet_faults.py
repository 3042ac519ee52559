"""Several services share a PostgreSQL database and a device while processes die, hang and lose their database.

After the last fault every job must end well, with every trial that was ever shown, each once.
"""

import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from tilewright.core.streams import stream
from tilewright.tests.db.database_network import DatabaseNetwork, database_network
from tilewright.tests.db.fleets import migrated
from tilewright.tests.db.postgres import PostgresServer
from tilewright.tests.db.postgres import server as postgres_server
from tilewright.tests.service.killing import KillableServer, Observer, free_port
from tilewright.tests.service.ray_head import RayHead

LEASE_SECONDS = 3.0
END_SECONDS = 240.0
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


class Disturber:
    """Does one fault at a time, drawn from ``draws``."""

    def __init__(
        self,
        services: Services,
        postgres: PostgresServer,
        draws: np.random.Generator,
        network: DatabaseNetwork | None = None,
        head: RayHead | None = None,
    ) -> None:
        self._services = services
        self._postgres = postgres
        self._draws = draws
        self._network = network
        self._head = head
        self.done: Counter[str] = Counter()

    def fault(self, kind: str) -> None:
        """Do a fault of this kind, one of KINDS or FURTHER_KINDS."""
        {**KINDS, **FURTHER_KINDS}[kind](self)
        self.done[kind] += 1

    def kill_service(self) -> None:
        server = self._services.servers[int(self._draws.integers(len(self._services.servers)))]
        server.kill()
        server.start()

    def kill_task_worker(self) -> None:
        self._signal("task worker", signal.SIGKILL)

    def kill_child(self) -> None:
        self._signal("child", signal.SIGKILL)

    def stop_task_worker(self) -> None:
        """Stop a worker beyond the end of its lease, then let it go on."""
        stopped = self._signal("task worker", signal.SIGSTOP)
        time.sleep(1.3 * LEASE_SECONDS)
        if stopped is not None and stopped.is_running():
            stopped.send_signal(signal.SIGCONT)

    def restart_database(self) -> None:
        self._postgres.stop()
        self._postgres.start()

    def stall_database(self) -> None:
        processes = self._postgres.processes()
        for process in processes:
            process.send_signal(signal.SIGSTOP)
        time.sleep(float(self._draws.uniform(0.5, 2 * LEASE_SECONDS)))
        for process in reversed(processes):
            process.send_signal(signal.SIGCONT)

    def fill_disk(self) -> None:
        """Leave the database no room for a while."""
        self._postgres.fill_disk(float(self._draws.uniform(0.5, 2 * LEASE_SECONDS)))

    def cut_network(self) -> None:
        """Cut one service, with its workers, off the database for a while, up to beyond the end of its leases."""
        assert self._network is not None
        link = int(self._draws.integers(len(self._services.servers)))
        self._network.cut(link)
        time.sleep(float(self._draws.uniform(0.5, 3 * LEASE_SECONDS)))
        self._network.heal(link)

    def lose_head(self) -> None:
        """Kill the head of the Ray cluster, which is its only node, and start another one at its address."""
        assert self._head is not None
        self._head.kill()
        time.sleep(float(self._draws.uniform(0.0, 2 * LEASE_SECONDS)))
        self._head.start()

    def _signal(self, role: str, number: signal.Signals) -> psutil.Process | None:
        processes = self._services.processes(role)
        if not processes:
            return None
        chosen = processes[int(self._draws.integers(len(processes)))]
        try:
            chosen.send_signal(number)
        except psutil.NoSuchProcess:
            return None
        return chosen


KINDS: Mapping[str, Callable[[Disturber], None]] = {
    "kill service": Disturber.kill_service,
    "kill task worker": Disturber.kill_task_worker,
    "kill child": Disturber.kill_child,
    "stop task worker": Disturber.stop_task_worker,
    "restart database": Disturber.restart_database,
    "stall database": Disturber.stall_database,
}
"""What needs nothing but the services and their database."""
FURTHER_KINDS: Mapping[str, Callable[[Disturber], None]] = {
    "fill disk": Disturber.fill_disk,
    "cut network": Disturber.cut_network,
    "lose head": Disturber.lose_head,
}
"""What needs a small disk, a network namespace, a Ray cluster."""
DISK_MEBIBYTES = 256


def disturb_with_what_is_needed(
    folder: Path, kinds: list[str], seed: int, *, trials: int = 60, services: int = 3
) -> FaultReport:
    """Start a database, and what else the faults ``kinds`` need, and ``disturb``. Where there is a Ray cluster, every
    second job goes there."""
    with ExitStack() as stack:
        network = stack.enter_context(database_network(services)) if "cut network" in kinds else None
        room = DISK_MEBIBYTES if "fill disk" in kinds else None
        postgres = stack.enter_context(
            postgres_server(mebibytes=room, namespace="" if network is None else network.namespace)
        )
        head = None
        if "lose head" in kinds:
            head = stack.enter_context(RayHead(free_port()))
            patch = stack.enter_context(pytest.MonkeyPatch.context())
            patch.setenv("TILEWRIGHT_RAY_ADDRESS", head.address)
        return disturb(folder, postgres, kinds, seed, trials=trials, services=services, network=network, head=head)


def disturb(
    folder: Path,
    postgres: PostgresServer,
    kinds: list[str],
    seed: int,
    *,
    trials: int = 60,
    services: int = 3,
    network: DatabaseNetwork | None = None,
    head: RayHead | None = None,
) -> FaultReport:
    """Run ``services`` services, and do the faults ``kinds`` in this order while jobs run; then judge."""
    began = time.monotonic()
    draws = stream(seed, "fleet faults")
    url = postgres.url()
    with migrated(url):
        pass
    urls = [url if network is None else postgres.url_at(network.address(n), url) for n in range(services)]
    group = Services([KillableServer(urls[n], folder / f"log-{n}", LEASE_SECONDS) for n in range(services)])
    for server in group.servers:
        server.start()
    for server in group.servers:
        server.wait_until_ready()
    observer = Observer(group, trials, seed, ("local",) if head is None else ("ray", "local"))
    disturber = Disturber(group, postgres, draws, network, head)
    longest = 0.0
    try:
        for kind in kinds:
            _watch(observer, until_more=int(draws.integers(1, 8)))
            if observer.faults:
                break
            disturber.fault(kind)
            since, seen = time.monotonic(), len(observer.seen)
            _watch(observer, until_more=1)
            if len(observer.seen) > seen:
                longest = max(longest, time.monotonic() - since)
        end = time.monotonic() + END_SECONDS
        while observer.unfinished() and time.monotonic() < end:
            observer.look()
            time.sleep(0.1)
        faults = observer.verdict()
    finally:
        for server in group.servers:
            server.kill()
    orphans = sum(len(server.orphans(10.0)) for server in group.servers)
    if orphans:
        faults.append(f"{orphans} processes outlived their service")
    return FaultReport(
        dict(disturber.done),
        len(observer.jobs),
        len(observer.jobs) * 2 * trials,
        len(observer.seen),
        longest,
        time.monotonic() - began,
        tuple(faults),
    )


def _watch(observer: Observer, *, until_more: int) -> None:
    """Look on until so many more trials were seen; submit another job when all have ended."""
    wanted, end = len(observer.seen) + until_more, time.monotonic() + END_SECONDS
    while len(observer.seen) < wanted:
        if not observer.unfinished():
            observer.submit(len(observer.jobs))
        observer.look()
        if time.monotonic() > end:
            observer.faults.append(f"no trial in {END_SECONDS:g} s")
            return
        time.sleep(0.02)
