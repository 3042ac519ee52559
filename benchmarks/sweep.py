"""Is every kernel right? Every operator on odd shapes, with every dtype it takes, by every sketch that takes it, under
random schedules: each kernel is compiled and judged as in tuning (guard bands, poison, the float64 reference).

A pool of processes shares the work, and one that a kernel crashes or hangs is replaced. Rows are operators, trials the
schedules of a sketch. Settings: ``folder`` keeps what is done in ``sweep.jsonl``, so that a sweep of the same commit
goes on where it was; ``again=1`` takes only the tasks that failed there; ``seconds`` ends it early; ``processes``;
``odd``: shapes of an operator drawn besides its examples; ``sketch``: a glob. A failure names operator, parameters,
seed and schedule: with those, ``tilewright explain`` and ``judged`` show it again.
"""

import json
import os
import queue
import signal
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from functools import cache, partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol, cast

from tilewright.benchmarks.suite import Options, Result, commit
from tilewright.codegen.lowering import build, finish, lower
from tilewright.core.errors import DeviceFault, ResourcesExceeded, TilewrightError
from tilewright.core.schedule import Schedule
from tilewright.core.streams import stream
from tilewright.core.target import Target
from tilewright.ir.interpret import interpret
from tilewright.runtime.device import Device
from tilewright.runtime.devices import host_target, open_device
from tilewright.schedule.sketches import SKETCHES
from tilewright.te.operators import OPERATORS
from tilewright.te.workload import Workload
from tilewright.tests.odd_cases import LARGE, LONG, odd_cases
from tilewright.tests.sketch_agreement import agree
from tilewright.workers.harness import HarnessRules, MeasurementHarness
from tilewright.workers.reference_data import ReferenceData, compute_reference
from tilewright.workers.timing import RemeasureRules, TimingRules

SCHEDULES = 20
ODD_SHAPES = 24
_FURTHER = 4
THREADS = 2
"""Of a kernel; kernels are judged side by side."""
_SILENCE_SECONDS = 120.0
"""A process that says nothing for so long hangs in a kernel."""
_DETAIL = 2000
"""Characters kept of what went wrong."""
_EVERYTHING = ("amx-bf16", "amx-int8", "amx-tile", "avx512bf16", "avx512bw", "avx512f", "avx512vl", "avx512vnni")

Json = dict[str, Any]


class Listener(Protocol):
    """Who is told of what comes."""

    def send(self, what: Json) -> None: ...


@dataclass(frozen=True)
class Task:
    """One sketch on one workload."""

    operator: str
    parameters: Mapping[str, object]
    sketch: str
    target: Target
    runs_here: bool
    """Or else is interpreted, because this machine lacks instructions."""

    @property
    def key(self) -> str:
        return json.dumps([self.operator, self.parameters, self.sketch, self.runs_here], sort_keys=True)

    @property
    def workload(self) -> Workload:
        return OPERATORS[self.operator].workload(self.parameters)


def run(options: Options) -> Result:
    """Return one row for each operator; passes when no kernel failed and nothing is left to do."""
    extra = options.extra
    count, processes = options.trials or SCHEDULES, int(extra.get("processes", len(os.sched_getaffinity(0))))
    wanted = [t for t in _every(options, processes) if fnmatch(t.sketch, extra.get("sketch", "*"))]
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(extra.get("folder", temporary)) / "sweep.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        head = {"commit": options.extra.get("commit") or commit(), "seed": options.seed, "schedules": count}
        done = _done(path, head)
        if extra.get("again"):
            wanted = [t for t in wanted if done.get(t.key, {}).get("failures")]
            done = {}
        todo = [t for t in wanted if t.key not in done]
        shuffled = [todo[int(n)] for n in stream(options.seed, "sweep").permutation(len(todo))]
        order = sorted(shuffled, key=lambda t: SKETCHES[t.sketch].generic)
        began = time.perf_counter()
        with path.open("a", encoding="utf-8") as file:
            for answer in answers(order, count, options.seed, processes, _seconds(extra)):
                file.write(json.dumps({**head, **answer}) + "\n")
                file.flush()
                done[answer["key"]] = answer
        seconds = time.perf_counter() - began
    found = [done[t.key] for t in wanted if t.key in done]
    rows = [_row(name, [t for t in wanted if t.operator == name], done) for name in {t.operator: None for t in wanted}]
    failed = [f for answer in found for f in answer["failures"]]
    summary = {
        "tasks": len(wanted),
        "left": len(wanted) - len(found),
        "kernels": sum(a["kernels"] for a in found),
        "interpreted": sum(a["kernels"] for a in found if a["how"] == "interpreted"),
        "refused": sum(a["refused"] for a in found),
        "failures": len(failed),
        "seconds": seconds,
        "kernel_seconds": sum(a["seconds"] for a in found),
    }
    for failure in failed:
        print("FAILED", json.dumps(failure))
    settings = {"schedules": count, "processes": processes, "threads": THREADS, **extra}
    return Result(tuple(rows), summary, not failed and not summary["left"], settings)


def _every(options: Options, processes: int) -> list[Task]:
    """Return the tasks of every operator that was asked for, found side by side: most drawn shapes contradict
    themselves."""
    odd, names = int(options.extra.get("odd", ODD_SHAPES)), [n for n in OPERATORS if fnmatch(n, options.rows)]
    if len(names) == 1 or processes == 1:
        return [t for n in names for t in tasks(odd, options.seed, n)]
    with ProcessPoolExecutor(min(processes, len(names)), mp_context=get_context("spawn")) as pool:
        return [t for found in pool.map(partial(tasks, odd, options.seed), names) for t in found]


def tasks(odd: int, seed: int, rows: str = "*") -> list[Task]:
    """Return every operator's examples with every dtype, and ``odd`` drawn shapes, by every sketch for processors; of
    further shapes those that a sketch of one class takes, by these."""
    host = replace(host_target("llvm"), threads=THREADS)
    whole = replace(host, features=tuple(sorted({*host.features, *_EVERYTHING})), vector_bytes=64)
    found = {}
    for name, operator in ((n, o) for n, o in OPERATORS.items() if fnmatch(n, rows)):
        usual = [*operator.cases(), *odd_cases(operator, odd, seed)]
        further = list(odd_cases(operator, _FURTHER * odd, seed + 1, (LARGE, LONG)))
        for number, parameters in enumerate((*usual, *further)):
            workload = operator.workload(parameters)
            for sketch in SKETCHES.values():
                if sketch.generic and number >= len(usual):
                    continue
                here = sketch.matches(workload, host)
                if here or (whole != host and sketch.matches(workload, whole)):
                    task = Task(name, parameters, sketch.name, host if here else whole, here)
                    found[task.key] = task
    return list(found.values())


def judged(task: Task, schedule: Schedule, bench: MeasurementHarness | None, fixture: ReferenceData) -> str | None:
    """Return what is wrong with one kernel; None for a right one. ``bench``: where it runs, or None to interpret it.
    Raises ResourcesExceeded for one that does not fit the target."""
    if bench is not None:
        failed = bench.judge(build(task.workload, task.target, schedule)).failed
        return None if failed is None else f"{failed.reason}: {failed.detail}"
    kernel = finish(lower(task.workload, task.target, schedule), task.target)
    try:
        agree(
            "interpreted",
            interpret(kernel, dict(fixture.inputs)),
            {n: e.values for n, e in fixture.expected.items()},
            {n: (e.absolute, e.relative) for n, e in fixture.expected.items()},
        )
    except AssertionError as error:
        return str(error)
    return None


def _done(path: Path, head: Json) -> dict[str, Json]:
    """Return what an earlier run with the same ``head`` found, by task."""
    if not path.exists():
        return {}
    answers = [cast(Json, json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]
    return {a["key"]: a for a in answers if head.items() <= a.items()}


def _seconds(extra: Mapping[str, str]) -> float | None:
    return float(extra["seconds"]) if "seconds" in extra else None


def _row(name: str, wanted: list[Task], done: Mapping[str, Json]) -> Json:
    found = [done[t.key] for t in wanted if t.key in done]
    sketches = {t.sketch: sum(a["kernels"] for a in found if a["sketch"] == t.sketch) for t in wanted}
    return {
        "row": name,
        "cases": len({json.dumps(t.parameters) for t in wanted}),
        "tasks": len(wanted),
        "kernels": sum(sketches.values()),
        "failures": sum(len(a["failures"]) for a in found),
        "left": len(wanted) - len(found),
        "sketches": sketches,
        "failed": [f for a in found for f in a["failures"]],
    }


def answers(
    todo: list[Task],
    count: int,
    seed: int,
    processes: int,
    seconds: float | None = None,
    silence_seconds: float = _SILENCE_SECONDS,
) -> Iterator[Json]:
    """Yield what becomes of each task, as they end; no task is begun after ``seconds``. A process that says nothing for
    ``silence_seconds`` is taken to hang in a kernel."""
    waiting: queue.SimpleQueue[Task] = queue.SimpleQueue()
    for task in todo:
        waiting.put(task)
    ended: queue.SimpleQueue[Json | None] = queue.SimpleQueue()
    until = None if seconds is None else time.monotonic() + seconds

    def lane() -> None:
        with Lane(count, seed, silence_seconds) as own:
            while until is None or time.monotonic() < until:
                try:
                    task = waiting.get_nowait()
                except queue.Empty:
                    break
                ended.put(own.answer(task))
        ended.put(None)

    lanes = [threading.Thread(target=lane) for _ in range(processes)]
    for thread in lanes:
        thread.start()
    left = len(lanes)
    while left:
        answer = ended.get()
        if answer is None:
            left -= 1
        else:
            yield answer
    for thread in lanes:
        thread.join()


class Lane:
    """One child process and its replacements."""

    def __init__(self, count: int, seed: int, silence_seconds: float) -> None:
        self._count, self._seed, self._silence_seconds = count, seed, silence_seconds
        self._start()

    def __enter__(self) -> "Lane":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.join()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def answer(self, task: Task) -> Json:
        """Return every kernel of a task judged, in as many children as that takes."""
        began, failures, kernels, refused, first = time.perf_counter(), [], 0, 0, 0
        while True:
            with suppress(OSError):  # a child that has died is noticed when it is listened to
                self._connection.send((task, first))
            at: Json = {}
            while (said := self._heard())["is"] == "at":
                at = said
            if said["is"] == "lost":
                failures.append(_failure(task, self._seed, at.get("schedule"), said["detail"]))
                self.__exit__()
                self._start()
                kernels, refused = kernels + at.get("kernels", 0) + 1, refused + at.get("refused", 0)
                failures += at.get("failures", [])
                first = at.get("number", self._count) + 1
                if first < self._count:
                    continue
            else:
                kernels, refused = kernels + said["kernels"], refused + said["refused"]
                failures += said["failures"]
            how = "compiled" if task.runs_here else "interpreted"
            about = {"operator": task.operator, "sketch": task.sketch, "key": task.key, "how": how}
            seconds = time.perf_counter() - began
            return {**about, "kernels": kernels, "refused": refused, "seconds": seconds, "failures": failures}

    def _start(self) -> None:
        context = get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_child, args=(theirs, self._count, self._seed), daemon=True)
        self._process.start()
        theirs.close()

    def _heard(self) -> Json:
        """Return what the child says next, or that it is lost."""
        if not self._connection.poll(self._silence_seconds):
            return {"is": "lost", "detail": f"hangs: nothing was heard for {self._silence_seconds:.0f} s"}
        try:
            return cast(Json, self._connection.recv())
        except (EOFError, OSError):
            self._process.join()
            code = self._process.exitcode or 0
            return {"is": "lost", "detail": f"died of {signal.Signals(-code).name if code < 0 else code}"}


def _child(connection: Connection, count: int, seed: int) -> None:
    """Judges what it is sent, and says before each kernel which one comes."""
    while True:
        try:
            task, first = connection.recv()
        except EOFError:
            return
        try:
            connection.send({"is": "done", **judged_all(connection, task, first, count, seed)})
        except DeviceFault as error:  # nothing more runs on a device that this process has lost
            connection.send({"is": "lost", "detail": error.message})
            return


@cache
def _device(target: Target) -> Device:
    return open_device(target.kind, target)


def judged_all(connection: Listener, task: Task, first: int, count: int, seed: int) -> Json:
    """Return what becomes of ``count`` schedules of a task, from the one numbered ``first`` on; ``connection`` is told
    each before it is judged."""
    found: Json = {"kernels": 0, "refused": 0, "failures": []}
    try:
        workload = task.workload
        space = SKETCHES[task.sketch].space(workload, task.target, seed=seed, limit=10_000)
        chosen = stream(seed, "schedules").permutation(len(space))[:count]
        fixture = compute_reference(workload, seed)
        rules = HarnessRules(TimingRules(), RemeasureRules(), 0, seed)
        bench = MeasurementHarness(_device(task.target), workload, fixture, rules) if task.runs_here else None
    except Exception as error:
        return {**found, "failures": [_failure(task, seed, None, repr(error))]}
    for number, row in list(enumerate(chosen))[first:]:
        schedule = space.schedule(int(row))
        connection.send({"is": "at", "number": number, "schedule": schedule.to_json(), **found})
        try:
            wrong = judged(task, schedule, bench, fixture)
        except ResourcesExceeded:
            found["refused"] += 1
            continue
        except TilewrightError as error:
            if isinstance(error, DeviceFault) and error.lost:
                raise
            wrong = f"{error.code}: {error.message}"
        except Exception as error:
            wrong = repr(error)
        found["kernels"] += 1
        if wrong is not None:
            found["failures"].append(_failure(task, seed, schedule.to_json(), wrong))
    return found


def _failure(task: Task, seed: int, schedule: object, detail: str) -> Json:
    return {
        "operator": task.operator,
        "parameters": dict(task.parameters),
        "seed": seed,
        "schedule": schedule,
        "target": task.target.to_json(),
        "detail": detail[:_DETAIL],
    }
