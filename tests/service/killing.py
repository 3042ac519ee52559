"""Kills a server again and again while it works. An observer remembers what the server answered.

What was once answered must stay: every trial that was seen is there once, unchanged; every job that was acknowledged
ends; the trials of a task are numbered without a gap.
"""

import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import psutil

from tilewright.core.streams import stream
from tilewright.tests.ports import free_port
from tilewright.tests.service.fork_server import ForkServer, Process

READY_SECONDS = 400.0
ORPHAN_SECONDS = 90.0
"""So long a child may outlive a killed server: the agents of a Ray that a task worker has started for itself wait for a
minute for its head, which is gone, to tell it that they end."""
PF_EXITING = 4
"""A flag in /proc/PID/stat: the process is ending."""
MODULE = "tilewright.api"
SERVICE_MODULES = (f"{MODULE}.server", f"{MODULE}.local_service", "tilewright.cost_model.features")
"""What a service loads: a fork server has it at hand."""
LAST_ATTEMPTS = 10
"""So many attempts at a task that did not end well are told."""
WORKLOADS: tuple[Mapping[str, object], ...] = (
    {"operator": "matmul", "parameters": {"m": 24, "n": 8, "k": 4}},
    {"operator": "transpose", "parameters": {"shape": [33, 65], "axes": [1, 0]}},
)
"""Their kernels are short: each is built in a third of the time of a larger product's or a softmax's."""


@dataclass
class KillableServer:
    """Runs ``python -m tilewright.api`` on a database and a port. ``lease_seconds``: of its task workers;
    ``environment``: more variables for it; ``forks``: what starts it, where it is to start quickly."""

    database_url: str
    log: Path
    lease_seconds: float = 15.0
    port: int = 0
    process: Process | None = None
    family: list[Any] = field(default_factory=list)
    environment: Mapping[str, str] = field(default_factory=dict)
    forks: ForkServer | None = None

    def start(self) -> None:
        """Start it, and return at once."""
        self.port = free_port()
        environment = {
            "TILEWRIGHT_DATABASE_URL": self.database_url,
            "TILEWRIGHT_LEASE_SECONDS": str(self.lease_seconds),
            "TILEWRIGHT_PORT": str(self.port),
            "TILEWRIGHT_MINIMUM_FREE_BYTES": "0",
            **self.environment,
        }
        if self.forks is not None:
            self.process = self.forks.start(MODULE, (), environment, self.log)
            return
        inherited = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", MODULE], env={**inherited, **environment}, stdout=log, stderr=log, cwd="/"
            )

    def wait_until_ready(self) -> None:
        end = time.monotonic() + READY_SECONDS
        while self.ask("GET", "/readyz") is None:
            assert self.process is not None
            assert self.process.poll() is None, self.log.read_text()[-4000:]
            assert time.monotonic() < end, "the server is not ready in time"
            time.sleep(0.02)

    def kill(self) -> None:
        """Send SIGKILL, as when the machine's memory runs out. Remember the children that the server leaves behind."""
        assert self.process is not None
        try:
            self.family += psutil.Process(self.process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            pass
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def orphans(self, seconds: float = ORPHAN_SECONDS) -> list[str]:
        """Say which children of killed servers still run after ``seconds``."""
        end = time.monotonic() + seconds
        while (left := [line for one in self.family if (line := _running(one))]) and time.monotonic() < end:
            time.sleep(0.2)
        return left

    def ask(
        self, method: str, path: str, body: object = None, headers: Mapping[str, str] | None = None
    ) -> tuple[int, Any] | None:
        """Return (status, JSON), or None when there is no complete answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        text = None if body is None else json.dumps(body)
        try:
            connection.request(method, path, text, {"Content-Type": "application/json", **(headers or {})})
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        except (OSError, http.client.HTTPException, ValueError):
            return None
        finally:
            connection.close()


def _running(process: psutil.Process) -> str:
    """Say of a process what it is; empty where it has ended, or SIGKILL has reached it: it runs nothing more then, but
    to be cleaned away may take it long where others want the processors. Another process may have got its number."""
    try:
        if not process.is_running() or process.status() == psutil.STATUS_ZOMBIE:
            return ""
        states = dict(line.split(":", 1) for line in Path(f"/proc/{process.pid}/status").read_text().splitlines())
        pending = int(states["SigPnd"], 16) | int(states["ShdPnd"], 16)
        fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
        if pending >> (signal.SIGKILL - 1) & 1 or int(fields[6]) & PF_EXITING:
            return ""
        return f"{process.pid} ({process.status()}): {' '.join(process.cmdline())[:300]}"
    except (OSError, psutil.NoSuchProcess):
        return ""


class Answering(Protocol):
    """Whatever answers requests: one server, or one of several."""

    def ask(
        self, method: str, path: str, body: object = None, headers: Mapping[str, str] | None = None
    ) -> tuple[int, Any] | None: ...


@dataclass
class Observer:
    """Submits jobs of ``tasks``, each with a key of its own, and remembers every trial that it was shown."""

    server: Answering
    trials: int
    seed: int
    ways: Sequence[Mapping[str, object]] = ({},)
    """Jobs say these in turn besides what all say, such as another executor."""
    tasks: Sequence[Mapping[str, object]] = WORKLOADS
    seen: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    jobs: dict[str, str] = field(default_factory=dict)
    """Idempotency key -> job, once the job was acknowledged."""
    next_sequence: dict[tuple[str, int], int] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)
    faults: list[str] = field(default_factory=list)

    def submit(self, number: int) -> None:
        """Ask for job ``number``: the first time, or once more (an answer may have been lost)."""
        key = f"job-{number}"
        body = {
            "tasks": list(self.tasks),
            "budget": {"trials": self.trials},
            "strategy": "random",
            "seed": self.seed + number,
            "fresh": True,
            **self.ways[number % len(self.ways)],
        }
        answer = self.server.ask("POST", "/v1/jobs", body, {"Idempotency-Key": key})
        if answer is None:
            return
        status, job = answer
        if status not in (200, 201):
            self.faults.append(f"submitting {key}: {status} {job}")
        elif self.jobs.setdefault(key, job["id"]) != job["id"]:
            self.faults.append(f"key {key} gave jobs {self.jobs[key]} and {job['id']}")

    def keep_busy(self) -> None:
        """Submit a job of each way of which none is unfinished."""
        unfinished = set(self.unfinished())
        for first in range(len(self.ways)):
            numbers = range(first, len(self.jobs) * len(self.ways) + first + 1, len(self.ways))
            number = next(n for n in numbers if f"job-{n}" not in self.jobs)
            if self.jobs.get(f"job-{number - len(self.ways)}") not in unfinished:
                self.submit(number)

    def look(self) -> None:
        """Read the trials of every job beyond those seen."""
        for job in list(self.jobs.values()):
            for task in range(len(self.tasks)):
                start = self.next_sequence.get((job, task), 0)
                for trial in self.read(job, task, start) if start < self.trials else ():
                    self.seen[trial["record_id"]] = trial
                    self.next_sequence[job, task] = trial["sequence"] + 1

    def read(self, job: str, task: int, start: int = 0) -> Iterator[Mapping[str, Any]]:
        """Yield the trials of a task from sequence ``start``, as far as the server answers."""
        answer = self.server.ask("GET", f"/v1/jobs/{job}/series?task={task}&after={start - 1}")
        if answer is None or answer[0] != 200:
            return
        columns = answer[1]
        for row in zip(columns["record_id"], columns["sequence"], columns["seconds"], columns["failure"], strict=True):
            yield dict(zip(("record_id", "sequence", "seconds", "failure"), row, strict=True), job=job, task=task)

    def seen_by_way(self) -> Counter[int]:
        """How many trials were seen of jobs of each way."""
        ways = {job: int(key.removeprefix("job-")) % len(self.ways) for key, job in self.jobs.items()}
        return Counter(ways[trial["job"]] for trial in self.seen.values())

    def state(self, job: str) -> str:
        answer = self.server.ask("GET", f"/v1/jobs/{job}")
        return "" if answer is None or answer[0] != 200 else str(answer[1]["state"])

    def _ends(self, job: str, task: int) -> list[str]:
        """How the last attempts at a task ended."""
        answer = self.server.ask("GET", f"/v1/jobs/{job}/tasks/{task}/attempts")
        attempts = [] if answer is None or answer[0] != 200 else answer[1]["attempts"][-LAST_ATTEMPTS:]
        return [f"{attempt['how']}: {attempt['detail']}" for attempt in attempts]

    def unfinished(self) -> list[str]:
        left = [job for job in self.jobs.values() if job not in self.ended]
        self.ended |= {job for job in left if self.state(job) in ("succeeded", "failed", "cancelled")}
        return [job for job in left if job not in self.ended]

    def verdict(self) -> list[str]:
        """Return everything that is not as it must be, once all jobs have ended."""
        faults = list(self.faults)
        listed = self.server.ask("GET", "/v1/jobs?page_size=500")
        assert listed is not None
        found = {job["id"] for job in listed[1]["jobs"]}
        if found != set(self.jobs.values()):
            faults.append(f"{len(found)} jobs for {len(self.jobs)} keys")
        final: dict[int, Mapping[str, Any]] = {}
        for job in self.jobs.values():
            state = self.state(job)
            if state != "succeeded":
                faults.append(f"job {job} is {state}")
            for task in range(len(self.tasks)):
                trials = list(self.read(job, task))
                if state != "succeeded" and len(trials) < self.trials:
                    faults.append(f"job {job} task {task} had attempts that ended: {self._ends(job, task)}")
                if [trial["sequence"] for trial in trials] != list(range(self.trials)):
                    faults.append(f"job {job} task {task} has sequences {[t['sequence'] for t in trials]}")
                if len({trial["record_id"] for trial in trials} - final.keys()) != len(trials):
                    faults.append(f"job {job} task {task} holds a record twice")
                final.update({trial["record_id"]: trial for trial in trials})
        for number, trial in self.seen.items():
            if final.get(number) != trial:
                faults.append(f"record {number} was {trial} and is {final.get(number)}")
        return faults


@dataclass(frozen=True, slots=True)
class KillReport:
    """Says what came of it. ``faults`` is empty when every promise was kept."""

    kills: int
    kills_while_starting: int
    jobs: int
    trials: int
    seen: int
    orphans: int
    seconds: float
    faults: tuple[str, ...]


def kill_again_and_again(folder: Path, kills: int, seed: int, *, trials: int = 40, longest: float = 3.0) -> KillReport:
    """Kill a server ``kills`` times at random moments of its life, from its start to ``longest`` seconds after it was
    ready, with a job running (another is submitted when one has ended); then let it finish and judge.
    """
    with ForkServer(SERVICE_MODULES, {}) as forks:
        server = KillableServer(f"sqlite:///{folder / 'tilewright.sqlite3'}", folder / "log", forks=forks)
        return _kill(server, kills, seed, trials, longest)


def _kill(server: KillableServer, kills: int, seed: int, trials: int, longest: float) -> KillReport:
    began = time.monotonic()
    draws = stream(seed, "kill")
    observer = Observer(server, trials, seed)
    starting = 0
    for _ in range(kills):
        if observer.faults:
            break
        server.start()
        if draws.random() < 0.15:  # while it starts: it opens and migrates the database, and resumes the job
            time.sleep(float(draws.random()) * 1.5)
            starting += 1
        else:
            server.wait_until_ready()
            observer.submit(len(observer.jobs) - bool(observer.unfinished()))
            # one half is killed at any moment after it was ready, the other half while it measures
            more = len(observer.seen) + (int(draws.integers(1, 12)) if draws.random() < 0.5 else 1 << 30)
            end = time.monotonic() + (float(draws.random()) * longest if more >= 1 << 30 else READY_SECONDS)
            while time.monotonic() < end and len(observer.seen) < more and observer.unfinished():
                observer.look()
                time.sleep(0.02)
        server.kill()
    server.start()
    server.wait_until_ready()
    observer.submit(max(len(observer.jobs) - 1, 0))
    end = time.monotonic() + READY_SECONDS
    while observer.unfinished() and time.monotonic() < end:
        observer.look()
        time.sleep(0.25)
    faults = observer.verdict()
    server.kill()
    return KillReport(
        kills=kills,
        kills_while_starting=starting,
        jobs=len(observer.jobs),
        trials=len(observer.jobs) * len(WORKLOADS) * trials,
        seen=len(observer.seen),
        orphans=len(server.orphans()),
        seconds=time.monotonic() - began,
        faults=tuple(faults),
    )
