"""Runs the jobs of a database in a thread, one at a time."""

import threading
import time
from collections.abc import Callable

import structlog

from ..core.errors import StoreError, TilewrightError, WorkerLost
from ..core.trial import Trial
from ..db.rows import JobRow
from ..db.store import RecordStore
from . import wiring
from .job_runner import Interrupted, JobRunner
from .settings import Settings
from .states import UNFINISHED

MAX_BACKOFF_SECONDS = 10.0
IDLE_SECONDS = 60.0
"""After this long without a job the executor's processes are ended."""
MAX_RESTARTS = 2
"""How often a job whose executor died is started again before it fails."""

log = structlog.get_logger()


class JobQueue:
    """Takes the jobs of a database and runs them in a thread. Of several processes on one database the leader does
    (``RecordStore.lead``), and the others wait."""

    def __init__(
        self,
        settings: Settings,
        store: RecordStore,
        *,
        poll_seconds: float | None,
        on_commit: Callable[[], None],
        on_trial: Callable[[Trial], None],
    ) -> None:
        self._settings = settings
        self._store = store
        self._poll_seconds = poll_seconds
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._executor: wiring.JobExecutor | None = None
        self._executor_options: tuple[str, str, str] | None = None
        self._busy_until = 0.0
        self._lost: dict[str, int] = {}
        self._runner = JobRunner(settings, store, self._executor_for, self._closing.is_set, on_commit, on_trial)
        self._thread = threading.Thread(target=self._run, name="jobs", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def wake(self) -> None:
        """Look for a job now: there may be one."""
        self._wake.set()

    def close(self) -> None:
        """Stop after the trial that is running, and end the executor."""
        self._closing.set()
        self._wake.set()
        self._thread.join()

    def _run(self) -> None:
        backoff = 0.5
        try:
            while not self._closing.is_set():
                try:
                    if not self._store.lead() or not self._step():
                        self._wait()
                    backoff = 0.5
                except Interrupted:
                    return
                except StoreError as error:
                    # nothing is lost: what was recorded is in the database, and the job is resumed from there
                    log.error("jobs pause", error=error.message, seconds=backoff)
                    self._closing.wait(backoff)
                    backoff = min(2 * backoff, MAX_BACKOFF_SECONDS)
                except Exception:
                    log.exception("jobs pause after a fault of the program", seconds=MAX_BACKOFF_SECONDS)
                    self._closing.wait(MAX_BACKOFF_SECONDS)
        finally:
            self._close_executor()

    def _wait(self) -> None:
        """Wait until there may be a job. Close an executor that no job has needed for a while."""
        if self._wake.wait(self._poll_seconds or IDLE_SECONDS):
            self._wake.clear()
        elif self._executor is not None and time.monotonic() - self._busy_until >= IDLE_SECONDS:
            log.info("executor closed", idle_seconds=IDLE_SECONDS)
            self._close_executor()

    def _step(self) -> bool:
        """Run the next job; return whether there was one."""
        job = self._store.next_job(UNFINISHED)
        if job is None:
            return False
        log.info("job started", job=job.id, state=job.state, tasks=len(job.tasks))
        try:
            self._runner.run(job.id)
        except (StoreError, Interrupted):
            raise
        except WorkerLost as error:
            self._close_executor()
            self._lost[job.id] = self._lost.get(job.id, 0) + 1
            log.warning("executor lost", job=job.id, error=error.message, times=self._lost[job.id])
            if self._lost[job.id] > MAX_RESTARTS:
                self._runner.fail(job.id, error)
        except TilewrightError as error:
            log.warning("job failed", job=job.id, error=error.message)
            self._runner.fail(job.id, error)
        except Exception as error:
            log.exception("job failed by a fault of the program", job=job.id)
            self._close_executor()
            self._runner.fail(job.id, TilewrightError(f"a fault of the program: {error!r}"))
        else:
            log.info("job ended", job=job.id, state=self._store.job(job.id).state)
            self._train_model(job.id)
        finally:
            self._busy_until = time.monotonic()
        return True

    def _train_model(self, job_id: str) -> None:
        try:
            self._runner.train_model(job_id)
        except StoreError:
            raise
        except Exception:  # the job has succeeded, and a model that could not be trained does not change that
            log.exception("no model was trained", job=job_id)

    def _executor_for(self, job: JobRow) -> wiring.JobExecutor:
        """Return the executor of the job before when it has the same options; else open another one."""
        options = (job.executor, job.target, job.cache)
        if self._executor is None or self._executor_options != options:
            self._close_executor()
            self._executor = wiring.open_executor(*options, self._settings)
            self._executor_options = options
        return self._executor

    def _close_executor(self) -> None:
        if self._executor is not None:
            self._executor.close()
            self._executor = None
