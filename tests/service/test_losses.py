"""What a loss of the executor means to the task and to the unit, and what keeps leases while it opens."""

import multiprocessing
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from tilewright.core.fleet import AttemptEnd, TaskClaim, TaskState, UnitState
from tilewright.core.schedule import Schedule
from tilewright.core.trial import Trial
from tilewright.db.task import task_of
from tilewright.service.lease_keeper import LeaseKeeper
from tilewright.service.settings import Settings
from tilewright.service.task_store import ServerPipe, TaskStore, serve_worker
from tilewright.service.task_worker import WorkerSetup
from tilewright.te.operators import OPERATORS
from tilewright.te.workload import Workload
from tilewright.tests.db.fleets import LONG, migrated, submit
from tilewright.tests.service.simulated import SimulatedExecutor, SimulatedTaskWorker, simulated_unit
from tilewright.workers.joint_executor import UnitExecutor
from tilewright.workers.losses import ActorLost


class LosingWorker(SimulatedTaskWorker):
    """A task worker that loses its executor with the first candidate, and is to stop then."""

    def _executor_for(self, claim: TaskClaim) -> UnitExecutor:
        self._executor = LosingExecutor(self._setup.unit, claim.cache, 0.0)
        return self._executor

    def _close_executor(self) -> None:
        super()._close_executor()
        self.stopping.set()


class LosingExecutor(SimulatedExecutor):
    def measure(self, workload: Workload, schedules: Iterable[Schedule]) -> Iterator[tuple[int, Trial]]:
        raise ActorLost("planted")


def test_a_loss_counts_against_the_task_before_its_unit_is_suspect(tmp_path: Path) -> None:
    """While a unit is suspect no loss counts, so that a task that kills whatever searches it would never be dead."""
    url, unit = f"sqlite:///{tmp_path}/db.sqlite3", simulated_unit(0)
    workload = OPERATORS["matmul"].workload({"m": 8, "n": 8, "k": 8})
    with migrated(url) as store:
        submit(store, "j", tasks=(task_of(workload),), target="llvm")
        store.fleet.register_units([unit], seen_seconds=LONG)
        told, pipe = multiprocessing.Pipe()
        threading.Thread(target=serve_worker, args=(told, store, lambda _: None, lambda: None), daemon=True).start()
        setup = WorkerSetup(Settings(database_url=url), unit, False, unit.classes, ("local",), None)
        LosingWorker(setup, TaskStore.of(store), ServerPipe(pipe)).run()
        (attempt,), (row,) = store.fleet.attempts("j", 0), store.fleet.units()
        assert (attempt.how, attempt.detail) == (AttemptEnd.ACTOR_LOST, "planted")
        assert (row.state, row.reason) == (UnitState.SUSPECT, "actor_lost")
        task = store.job("j").tasks[0]
        assert (task.state, task.losses) == (TaskState.READY, 1)


def test_leases_are_kept_while_an_executor_opens(tmp_path: Path) -> None:
    """To connect to a cluster may take longer than a lease lasts."""
    unit = simulated_unit(0)
    with migrated(f"sqlite:///{tmp_path}/db.sqlite3") as store:
        store.fleet.register_units([unit], seen_seconds=LONG)
        asked, seconds = time.monotonic(), 3.0
        lease = store.fleet.lease_unit(unit.uuid, "o", seconds=seconds)
        assert lease is not None
        keeper = LeaseKeeper(store.fleet, seconds=seconds, yielding=lambda: False, alive=lambda: None)
        keeper.hold(lease, asked)
        end = time.monotonic() + 120.0
        with keeper.kept():
            while store.fleet.units()[0].held_until == lease.until:
                assert time.monotonic() < end
                time.sleep(0.02)
