"""A spawned child, seen from its parent: requests with a deadline for each stage, and deaths that are always
noticed."""

import contextlib
import logging
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import cast

from ..core.child_program import command
from ..core.errors import TilewrightError, WorkerLost
from .child_environment import scrubbed
from .frames import Frame, receive, send
from .memory_groups import memory_groups
from .sandbox import FOLDER_BYTES, give_way

PROGRAM = "tilewright.workers.main"
_REAP_SECONDS = 2.0
_TAIL_BYTES = 2_000
MOST_LINES = 100
"""So many log lines of a child are kept for each request."""
_LOOK_SECONDS = 0.5
"""So often a parent that waits looks at how much its child has written."""
_log = logging.getLogger(__name__)


class ChildDied(TilewrightError):
    """The child ended in the middle of a request.

    ``stage`` is the last stage that it announced, and ``item`` the thing that it worked on where a request has several.
    ``signal`` is what killed it; it is 0 where the child exited by itself.
    """

    code = "CHILD_DIED"

    def __init__(self, message: str, *, stage: str, item: int | None, signal: int) -> None:
        super().__init__(message)
        self.stage = stage
        self.item = item
        self.signal = signal


class ChildHung(TilewrightError):
    """A stage of a request passed its deadline, and the child has been killed."""

    code = "CHILD_HUNG"

    def __init__(self, message: str, *, stage: str, item: int | None) -> None:
        super().__init__(message)
        self.stage = stage
        self.item = item


class ChildOverfull(ChildHung):
    """The child took more memory than it may, or wrote more to files, and has been killed."""

    code = "CHILD_OVERFULL"


class Child:
    """One child process in a session of its own, started at once. ``greet`` gives it ``setup`` before the first
    request.

    The kernel kills the child when the *thread* that started it ends (PR_SET_PDEATHSIG). So it must be created on a
    thread that lives as long as the child should. The child inherits ``descriptors``, and of the environment what
    ``child_environment`` lets through, with ``environment`` over it. With ``own_folder`` it has a folder of its own for
    temporary files, which goes with it. With ``memory_bytes`` it and what it starts may have so much memory, where it
    can have a control group (``memory_groups``). With ``low_priority`` it gives way to other processes. Requests come
    from one thread; ``kill`` may be called from any.
    """

    def __init__(
        self,
        setup: Frame,
        *,
        python_path: tuple[str, ...],
        environment: Mapping[str, str],
        descriptors: tuple[int, ...] = (),
        own_folder: bool = False,
        memory_bytes: int = 0,
        low_priority: bool = False,
    ) -> None:
        parent, child = socket.socketpair()
        self._output = tempfile.TemporaryFile()
        self._folder = tempfile.mkdtemp(prefix="tilewright-child-") if own_folder else None
        temporary = {} if self._folder is None else {"TMPDIR": self._folder}
        with child:
            self._process = subprocess.Popen(
                command(PROGRAM, child.fileno()),
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=self._output,
                pass_fds=(child.fileno(), *descriptors),
                start_new_session=True,
                env={**scrubbed(os.environ), **temporary, "PYTHONPATH": os.pathsep.join(python_path), **environment},
            )
        if low_priority:
            give_way(self._process.pid)
        self._group = memory_groups().make(memory_bytes) if memory_bytes else None
        if self._group is not None:
            with contextlib.suppress(OSError):  # it has ended already
                self._group.add(self._process.pid)  # until it is greeted it takes next to no memory
        self._connection = Connection(parent.detach())
        self._setup: Frame | None = setup
        self._role = str(setup.header.get("role"))
        self._lines_left = MOST_LINES
        self._words_from = 0
        self._killed = False
        self._killing = threading.Lock()

    @property
    def process_id(self) -> int:
        """It is the id of the process group and of the session too."""
        return self._process.pid

    def greet(self, deadline_seconds: float) -> None:
        """Give the child its set-up and wait until it is ready. A second call does nothing.

        Raises WorkerLost where the child does not start; it is dead then.
        """
        if self._setup is None:
            return
        try:
            self._lines_left = MOST_LINES
            send(self._connection, Frame({**self._setup.header, "log_level": _log.getEffectiveLevel()}))
            answer = self._await(deadline_seconds)
            why = f"no answer within {deadline_seconds:g} s" if answer is None else answer.header.get("error")
        except (EOFError, OSError):
            why = "it died"
        if why is not None:
            self.kill()
            raise WorkerLost(f"a worker child did not start: {why}. {self._tail()}".strip())
        self._setup = None

    def request(self, frame: Frame, *, first_stage: str, deadlines: Mapping[str, float]) -> Frame:
        """Send ``frame``, follow the stages that the child announces, and return its answer.

        ``deadlines`` has the seconds of each stage by name. Raises ChildHung, ChildDied, or WorkerLost for an answer
        that is no frame; the child is dead and reaped then.
        """
        self._words_from, self._lines_left = self._words_bytes(), MOST_LINES
        stage, item = first_stage, None
        try:
            send(self._connection, frame)
            while True:
                answer = self._await(deadlines[stage])
                self._check_files(stage, item)
                if answer is None:
                    raise ChildHung(f"{stage} took over {deadlines[stage]:g} s and was killed", stage=stage, item=item)
                if "stage" not in answer.header:
                    return answer
                stage, item = str(answer.header["stage"]), cast(int | None, answer.header.get("item"))
        except (EOFError, OSError) as error:
            raise self._died(stage, item) from error
        except (ChildHung, WorkerLost):
            self.kill()
            raise

    def kill(self) -> None:
        """End the child and its whole process group now. A second call does nothing."""
        with self._killing:
            if not self._killed:
                self._killed = True
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()

    def close(self) -> None:
        """Kill the child, and close its pipe and its output file."""
        self.kill()
        self._connection.close()
        self._output.close()
        if self._group is not None:
            self._group.remove()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _await(self, seconds: float) -> Frame | None:
        """Return the next frame that is no log line; None where none comes within ``seconds``, or the child has written
        too much meanwhile."""
        end = time.monotonic() + seconds
        while True:
            while not self._connection.poll(max(0.0, min(_LOOK_SECONDS, end - time.monotonic()))):
                if time.monotonic() >= end or self._written_bytes() > FOLDER_BYTES:
                    return None
            frame = receive(self._connection)
            if "log" not in frame.header:
                return frame
            self._log(frame.header)

    def _log(self, line: Mapping[str, object]) -> None:
        """Log a line of the child, in the name of what is done for whom now. What a child says may be rubbish, and too
        much of it."""
        level, text = line.get("level"), " ".join(str(line["log"]).split())
        if self._lines_left:
            self._lines_left -= 1
            known = level if isinstance(level, int) else logging.WARNING
            _log.log(known, "%s", text[:_TAIL_BYTES], extra={"child": self._role, "child_pid": self._process.pid})

    def _check_files(self, stage: str, item: int | None) -> None:
        written = self._written_bytes()
        if written > FOLDER_BYTES:
            told = f"{stage} wrote {written >> 20} MiB to files and was killed; allowed: {FOLDER_BYTES >> 20} MiB"
            raise ChildOverfull(told, stage=stage, item=item)

    def _written_bytes(self) -> int:
        """Return how much its output has since the request began, and its files."""
        folders = () if self._folder is None else os.walk(self._folder)
        written = self._words_bytes() - self._words_from
        for folder, _, names in folders:
            for name in names:
                with contextlib.suppress(OSError):
                    written += os.lstat(os.path.join(folder, name)).st_size
        return written

    def _died(self, stage: str, item: int | None) -> ChildDied | ChildOverfull:
        """Reap the child whose pipe was closed. The group is killed before its leader is reaped, because until then no
        other process can have its number."""
        deadline = time.monotonic() + _REAP_SECONDS
        while time.monotonic() < deadline:
            try:
                if self._killed or os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                    break
            except ChildProcessError:  # somebody else in this process reaps all children
                break
            time.sleep(0.002)
        self.kill()
        code = self._process.returncode
        number = -code if code < 0 else 0
        if self._group is not None and number == signal.SIGKILL and self._group.was_exceeded():
            limit = f"{self._group.limit_bytes >> 20} MiB"
            return ChildOverfull(f"{stage} took over {limit} of memory and was killed", stage=stage, item=item)
        how = f"was killed by {signal.Signals(number).name}" if number else f"ended by itself with status {code}"
        return ChildDied(f"its process {how} in {stage}. {self._tail()}".strip(), stage=stage, item=item, signal=number)

    def _words_bytes(self) -> int:
        return os.fstat(self._output.fileno()).st_size

    def _tail(self) -> str:
        """Return the last lines that the child wrote during this request, such as a compiler's message."""
        end = self._words_bytes()
        start = max(self._words_from, end - _TAIL_BYTES)
        # pread: seeking would move the offset that the child writes at, which is the same one.
        text = os.pread(self._output.fileno(), end - start, start).decode(errors="replace").strip()
        return f"Its last words: {text}" if text else ""
