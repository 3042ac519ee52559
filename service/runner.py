"""The thread that runs jobs, one at a time."""

import threading
import time
from collections.abc import Callable

import structlog

from ..core.errors import StoreError, TilewrightError, WorkerLost
from ..core.trial import Trial
from ..db.rows import JobRow
from ..db.store import Store
from . import wiring
from .conduct import Conductor, Interrupted
from .settings import Settings
from .states import UNFINISHED

LONGEST_PAUSE_SECONDS = 10.0
IDLE_SECONDS = 60.0
"""After this long without a job the executor's processes are ended."""
RESTARTS = 2
"""How often a job whose executor died is taken up again before it fails."""

log = structlog.get_logger()


class Runner:
    """Runs the jobs of a database in a thread; whoever leads (``Store.lead``) does, the others wait."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        *,
        poll_seconds: float | None,
        told: Callable[[], None],
        counted: Callable[[Trial], None],
    ) -> None:
        self._settings = settings
        self._store = store
        self._poll_seconds = poll_seconds
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._executor: wiring.Executor | None = None
        self._opened_for: tuple[str, str, str] | None = None
        self._busy_until = 0.0
        self._lost: dict[str, int] = {}
        self._conductor = Conductor(settings, store, self._executor_for, self._closing.is_set, told, counted)
        self._thread = threading.Thread(target=self._run, name="jobs", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def wake(self) -> None:
        """There may be a job."""
        self._wake.set()

    def close(self) -> None:
        """Stop after the trial in hand, and end the executor."""
        self._closing.set()
        self._wake.set()
        self._thread.join()

    def _run(self) -> None:
        pause = 0.5
        try:
            while not self._closing.is_set():
                try:
                    if not self._store.lead() or not self._step():
                        self._rest()
                    pause = 0.5
                except Interrupted:
                    return
                except StoreError as error:
                    # nothing is lost: what was recorded is in the database, and the job is taken up from there
                    log.error("jobs pause", error=error.message, seconds=pause)
                    self._closing.wait(pause)
                    pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
                except Exception:
                    log.exception("jobs pause after a fault of the program", seconds=LONGEST_PAUSE_SECONDS)
                    self._closing.wait(LONGEST_PAUSE_SECONDS)
        finally:
            self._close_executor()

    def _rest(self) -> None:
        """Wait until there may be a job; let an executor go that nobody has needed for a while."""
        if self._wake.wait(self._poll_seconds or IDLE_SECONDS):
            self._wake.clear()
        elif self._executor is not None and time.monotonic() - self._busy_until >= IDLE_SECONDS:
            log.info("executor closed", idle_seconds=IDLE_SECONDS)
            self._close_executor()

    def _step(self) -> bool:
        """Run the next job; whether there was one."""
        job = self._store.next_job(UNFINISHED)
        if job is None:
            return False
        log.info("job taken up", job=job.id, state=job.state, tasks=len(job.tasks))
        try:
            self._conductor.run(job.id)
        except (StoreError, Interrupted):
            raise
        except WorkerLost as error:
            self._close_executor()
            self._lost[job.id] = self._lost.get(job.id, 0) + 1
            log.warning("executor lost", job=job.id, error=error.message, times=self._lost[job.id])
            if self._lost[job.id] > RESTARTS:
                self._conductor.fail(job.id, error)
        except TilewrightError as error:
            log.warning("job failed", job=job.id, error=error.message)
            self._conductor.fail(job.id, error)
        except Exception as error:
            log.exception("job failed by a fault of the program", job=job.id)
            self._close_executor()
            self._conductor.fail(job.id, TilewrightError(f"a fault of the program: {error!r}"))
        else:
            log.info("job left", job=job.id, state=self._store.job(job.id).state)
            self._learn(job.id)
        finally:
            self._busy_until = time.monotonic()
        return True

    def _learn(self, job_id: str) -> None:
        try:
            self._conductor.learn(job_id)
        except StoreError:
            raise
        except Exception:  # the job has ended well; that no model came of it must not change that
            log.exception("no model was trained", job=job_id)

    def _executor_for(self, job: JobRow) -> wiring.Executor:
        """The executor of the job before, when it serves; else another one."""
        wanted = (job.executor, job.target, job.cache)
        if self._executor is None or self._opened_for != wanted:
            self._close_executor()
            self._executor = wiring.open_executor(*wanted, self._settings)
            self._opened_for = wanted
        return self._executor

    def _close_executor(self) -> None:
        if self._executor is not None:
            self._executor.close()
            self._executor = None
