"""A Ray cluster of several nodes on this machine: who runs where, and what the loss of an actor or of a node means.

Nodes carry a label with the name of a host that they stand for, so that each has a processor as a unit of its own.
"""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from tilewright.core.errors import WorkerLost
from tilewright.core.fleet import AttemptEnd, LeaseLost, Unit
from tilewright.core.trial import Failed, Outcome, Reason, Timed
from tilewright.tests.contracts.test_executors import children_of, marked
from tilewright.tests.workers.faulty_kernels import add_one, schedule
from tilewright.workers.executor import Builder, Executor
from tilewright.workers.executors import open_executor
from tilewright.workers.lease_guard import LeaseGuard, always
from tilewright.workers.losses import DeviceLost, NodeLost
from tilewright.workers.pool import WorkerPool
from tilewright.workers.probe import cluster_units, local_unit, probe_unit
from tilewright.workers.settings import Deadlines, ExecutorSettings

pytestmark = pytest.mark.ray
ray = pytest.importorskip("ray")
if True:  # what follows needs Ray
    from ray.cluster_utils import Cluster

    from tilewright.workers.ray import RayExecutor
    from tilewright.workers.ray_actor import HOST_LABEL, node_of
    from tilewright.workers.ray_builders import RayBuilderPool

FAST = {
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "20000",
    "RAY_health_check_failure_threshold": "3",
    "RAY_worker_niceness": "0",
}
"""A node that is gone refuses connections, and is declared dead after two seconds. One that is only slow, because other
tests want the processors, has much longer. Ray's own niceness of 15 would leave actors nothing of a processor."""


class Nodes:
    """A cluster: a head without processors, and nodes that stand for the hosts ``one`` and ``two``."""

    def __init__(self) -> None:
        self._cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
        self.address = str(self._cluster.address)
        self._nodes: dict[str, Any] = {}
        for host in ("one", "two"):
            self.add(host)

    def add(self, host: str, **options: Any) -> None:
        labels = {HOST_LABEL: host}
        self._nodes[host] = self._cluster.add_node(num_cpus=2, num_gpus=1, labels=labels, **options)

    def remove(self, host: str) -> None:
        self._cluster.remove_node(self._nodes.pop(host), allow_graceful=False)

    def host_of(self, process: psutil.Process) -> str:
        """Where a worker child runs: its parent is an actor, and that one's parent the raylet of its node."""
        actor = process.parent()
        assert actor is not None
        raylets = {node.all_processes["raylet"][0].process.pid: host for host, node in self._nodes.items()}
        return raylets[actor.ppid()]

    def close(self) -> None:
        self._cluster.shutdown()  # type: ignore[no-untyped-call]


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in FAST.items():
            patch.setenv(name, value)
        cluster = Nodes()
        try:
            yield cluster
        finally:
            cluster.close()


@pytest.fixture(scope="module")
def marker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("marker")


@pytest.fixture(scope="module")
def executor(nodes: Nodes, units: dict[str, Unit], marker: Path) -> Iterator[Executor]:
    with opened(nodes, units["one"], marker, builders=4) as executor:
        yield executor


@pytest.fixture(scope="module")
def units(nodes: Nodes) -> dict[str, Unit]:
    """The processors that a probe finds, by host."""
    return {r.unit.host: r.unit for r in cluster_units(nodes.address) if r.unit.device.target.kind == "llvm"}


@contextmanager
def opened(nodes: Nodes, unit: Unit, marker: Path, builders: int = 2) -> Iterator[Executor]:
    # nothing here waits for a deadline, and other tests want the processors
    settings = replace(marked(marker), deadlines=Deadlines(), ray_address=nodes.address, builders=builders)
    with open_executor("ray", unit.device.target, unit=unit, settings=settings) as executor:
        yield executor


def outcome(executor: Executor, fault: str) -> Outcome:
    ((_, trial),) = executor.measure(add_one(), [schedule(fault)])
    return trial.outcome


def children(marker: Path, role: str) -> list[psutil.Process]:
    """The children of actors of a class."""
    found = []
    for process in children_of(marker):
        with suppress(psutil.Error):
            actor = process.parent()
            if actor is not None and role in " ".join(actor.cmdline()):
                found.append(process)
    return found


def await_true(condition: Callable[[], bool]) -> None:
    """Look again until it holds; pytest's time-out ends a test in vain."""
    while not condition():
        time.sleep(0.02)


def test_a_probe_finds_the_units_of_every_node_but_no_processor_of_a_head_without(
    nodes: Nodes, units: dict[str, Unit]
) -> None:
    assert sorted(units) == ["one", "two"] and units["one"].uuid != units["two"].uuid
    assert units["one"].executor == "ray" and units["one"].device == local_unit().device
    assert not ray.is_initialized()  # it was done in another process
    settings = ExecutorSettings(ray_address=nodes.address)
    report = probe_unit(units["two"], settings)
    assert report.unit == units["two"] and report.anchor_seconds is not None and not report.error
    with pytest.raises(WorkerLost, match=r"the host three of unit .* is not in the cluster, which has .*one"):
        probe_unit(replace(units["two"], host="three"), settings)


def test_a_driver_still_hears_that_it_is_to_end(nodes: Nodes) -> None:
    """A task worker that is told to stop gives its task back. Ray takes SIGTERM for itself."""
    script = f"""
import os, signal, sys
from tilewright.workers.ray import connect
signal.signal(signal.SIGTERM, lambda *_: sys.exit("heard"))
assert connect("{nodes.address}")
os.kill(os.getpid(), signal.SIGTERM)
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr.strip()) == (1, "heard")


def test_the_child_that_probes_a_cluster_dies_with_its_parent() -> None:
    """It asks an address where somebody listens and never answers, for which Ray waits long."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        script = f"from tilewright.workers.probe import cluster_units\ncluster_units('{address}')"
        parent = psutil.Popen([sys.executable, "-c", script])
        with closing(silent.accept()[0]):
            (probing,) = parent.children()
            assert "cluster_probe" in " ".join(probing.cmdline())
            parent.kill()
            parent.wait()
    _, alive = psutil.wait_procs([probing], timeout=20)
    assert not alive


def test_the_runner_is_on_the_host_of_its_unit_and_builders_are_on_other_nodes_too(
    nodes: Nodes, executor: Executor, marker: Path
) -> None:
    assert isinstance(outcome(executor, "good"), Timed)
    await_true(lambda: len(children(marker, "BuilderActor")) == 4)
    assert {nodes.host_of(child) for child in children(marker, "BuilderActor")} == {"one", "two"}
    runners = children(marker, "RunnerActor")
    assert len(runners) == 2  # one has the device, the other computes data
    assert {nodes.host_of(child) for child in runners} == {"one"}


def test_a_lease_travels_with_each_call_and_its_loss_ends_all_calls(executor: Executor) -> None:
    late = iter([time.monotonic()])
    executor.allowed = lambda: next(late, time.monotonic() + 3600)
    assert isinstance(outcome(executor, "good"), Timed)  # refused at first, and asked again: it was renewed
    guard = LeaseGuard(time.monotonic() + 3600)
    executor.allowed = guard
    assert isinstance(outcome(executor, "good"), Timed)
    guard.revoke()
    for call in (lambda: outcome(executor, "good"), executor.peaks):
        with pytest.raises(LeaseLost):
            call()
    executor.allowed = always


@pytest.mark.parametrize("fault", ["loops_for_ever", "builder_hangs"])
def test_what_a_heartbeat_raises_ends_a_wait_and_its_actors(executor: Executor, marker: Path, fault: str) -> None:
    role = "RunnerActor" if fault == "loops_for_ever" else "BuilderActor"
    await_true(lambda: len(executor._builders) == 4)  # an actor that has not joined yet is not at work, and goes on
    at_work: list[psutil.Process] = []

    def heartbeat() -> None:
        pool = executor._runner if fault == "loops_for_ever" else executor._builders
        if any(future.running() for future in pool._pending):
            at_work.extend(children(marker, role))
        if at_work:
            raise LeaseLost("planted")

    executor.heartbeat = heartbeat
    with pytest.raises(LeaseLost, match="planted"):
        outcome(executor, fault)
    assert at_work
    await_true(lambda: not any(process.is_running() for process in at_work))
    executor.heartbeat = lambda: None
    assert isinstance(outcome(executor, "good"), Timed)


def test_an_executor_whose_first_work_is_abandoned_goes_on(
    nodes: Nodes, units: dict[str, Unit], tmp_path: Path
) -> None:
    """The runner still tells its versions then, which builders are compared with."""

    def heartbeat() -> None:
        if any(future.running() for future in fresh._runner._pending):
            raise LeaseLost("planted")

    with opened(nodes, units["two"], tmp_path, builders=1) as fresh:
        fresh.heartbeat = heartbeat
        with pytest.raises(LeaseLost, match="planted"):
            outcome(fresh, "good")
        fresh.heartbeat = lambda: None
        assert isinstance(outcome(fresh, "good"), Timed)


@pytest.mark.parametrize("healthy", [True, False])
def test_a_candidate_is_blamed_for_two_actors_lost_on_a_healthy_unit_alone(
    executor: Executor, marker: Path, healthy: bool
) -> None:
    probed: list[int] = []

    def probe() -> bool:
        probed.append(1)
        return healthy

    executor.probe = probe
    assert isinstance(outcome(executor, "good"), Timed)
    with ThreadPoolExecutor(1) as background:
        hanging = background.submit(outcome, executor, "loops_for_ever")
        kills = 0
        while not hanging.done():  # after a probe comes the next attempt
            await_true(lambda n=kills: hanging.done() or len(probed) == n)  # type: ignore[misc]
            for actor in {process.ppid() for process in children(marker, "RunnerActor")}:
                with suppress(ProcessLookupError):
                    os.kill(actor, signal.SIGKILL)
            kills += 1
    executor.probe = lambda: True
    if healthy:
        found = hanging.result()
        assert isinstance(found, Failed) and found.reason is Reason.WORKER_LOST
    else:
        with pytest.raises(DeviceLost) as lost:
            hanging.result()
        assert lost.value.end is AttemptEnd.DEVICE_FAULT
    assert len(probed) >= 2 if healthy else len(probed) == 1
    assert isinstance(outcome(executor, "good"), Timed)


def test_a_builder_of_another_toolchain_is_dropped_and_one_of_the_runners_stays(
    nodes: Nodes, units: dict[str, Unit], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "sitecustomize.py").write_text("import llvmlite\nllvmlite.__version__ = '0.0.1'\n")
    nodes.add("three", env_vars={"PYTHONPATH": os.pathsep.join((str(other), os.environ.get("PYTHONPATH", "")))})
    try:
        with opened(nodes, units["one"], tmp_path, builders=6) as executor:
            assert isinstance(outcome(executor, "good"), Timed)
            await_true(lambda: "is not used" in caplog.text)
            assert "llvmlite 0.0.1 instead of" in caplog.text
            await_true(lambda: not [c for c in children(tmp_path, "BuilderActor") if nodes.host_of(c) == "three"])
            assert isinstance(outcome(executor, "good"), Timed)
    finally:
        nodes.remove("three")


def test_without_a_builder_of_its_toolchain_work_ends_in_a_clear_error(
    executor: Executor, units: dict[str, Unit]
) -> None:
    assert isinstance(executor, RayExecutor)
    expected = replace(executor._versions(), python="3.0")
    pool: WorkerPool[Builder] = WorkerPool([], "builder")
    waiting = pool.submit(lambda builder: builder.build({}, {}))
    builder_pool = RayBuilderPool(pool, executor._spec, 1, node_of(units["one"]), lambda: expected)
    with pytest.raises(WorkerLost, match=r"no builder can build for the runner's host: python .* instead of 3\.0"):
        waiting.result()
    with pytest.raises(WorkerLost, match="no builder can build"):
        pool.submit(lambda builder: builder.build({}, {}))
    builder_pool.join()
    pool.close()


def test_a_lost_node_is_told_from_a_lost_actor_and_takes_its_children_along(
    nodes: Nodes, units: dict[str, Unit], tmp_path: Path
) -> None:
    with opened(nodes, units["two"], tmp_path, builders=1) as executor, ThreadPoolExecutor(1) as background:
        assert isinstance(outcome(executor, "good"), Timed)
        family = children(tmp_path, "RunnerActor")
        hanging = background.submit(outcome, executor, "loops_for_ever")
        await_true(lambda: executor._runner._pending != set())
        nodes.remove("two")
        with pytest.raises(NodeLost) as lost:
            hanging.result()
        assert lost.value.end is AttemptEnd.NODE_LOST
        _, alive = psutil.wait_procs(family, timeout=20)
        assert not alive
    with pytest.raises(NodeLost, match="is not in the cluster"):
        with opened(nodes, units["two"], tmp_path):
            pass
