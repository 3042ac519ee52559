"""Gives children control groups of their own with a memory limit, where this process may make groups (Linux).

    version 2: a folder that is ours to divide, such as that of a systemd unit with Delegate=memory. A group with
        processes hands out no memory to groups below it, so that this process moves into one of its own first
    version 1: a folder below the group of this process
    else: children have only the limits of their processes, which count each process alone and no page of a file

The kernel ends a child that goes over its limit, and nothing else. ``ChildSupervisor`` says so in the outcome.
"""

import contextlib
import itertools
import logging
import os
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

from ..core.cgroups import ControlGroups

PREFIX = "tilewright-"
_OWN_GROUP = "main"
"""The group that the processes of a divided group move to."""
_log = logging.getLogger(__name__)


class MemoryGroup:
    """Limits the memory of one child by a group of its own. ``folder`` is there already, and ``version`` that of
    control groups."""

    def __init__(self, folder: Path, version: int, limit_bytes: int) -> None:
        self.folder = folder
        self.limit_bytes = limit_bytes
        self._events = folder / ("memory.events" if version == 2 else "memory.oom_control")
        (folder / ("memory.max" if version == 2 else "memory.limit_in_bytes")).write_text(str(limit_bytes))
        extra = {"memory.swap.max": "0", "memory.oom.group": "1"} if version == 2 else {"memory.swappiness": "0"}
        for name, value in extra.items():
            with contextlib.suppress(OSError):  # a kernel without swap has no such file
                (folder / name).write_text(value)

    def add(self, process_id: int) -> None:
        """Take a process in; those that it starts later follow. Raises OSError."""
        (self.folder / "cgroup.procs").write_text(str(process_id))

    def was_exceeded(self) -> bool:
        """Return whether the kernel has ended a process of the group because of its limit."""
        try:
            words = self._events.read_text().split()
        except OSError:
            return False
        return dict(zip(words[::2], words[1::2], strict=False)).get("oom_kill", "0") != "0"

    def remove(self) -> None:
        """Remove the group, whose processes have ended."""
        with contextlib.suppress(OSError):
            self.folder.rmdir()


@dataclass(frozen=True)
class MemoryGroups:
    """Makes groups in ``folder``, or says in ``reason`` why it cannot."""

    folder: Path | None
    version: int = 0
    reason: str = ""

    @staticmethod
    def find(groups: ControlGroups | None = None) -> "MemoryGroups":
        """Find the folder where this process may make groups, and prepare it."""
        if sys.platform != "linux":
            return MemoryGroups(None, reason="only Linux has control groups")
        found = (groups or ControlGroups()).memory_folder
        if found is None:
            return MemoryGroups(None, reason="no control group of this process has a memory controller")
        folder, version = found
        try:
            chosen = _divided(folder) if version == 2 else folder
            _probe(chosen)
        except OSError as error:
            return MemoryGroups(None, reason=f"{folder} is not ours to divide ({error.strerror or error})")
        return MemoryGroups(chosen, version)

    def make(self, limit_bytes: int) -> MemoryGroup | None:
        """Return a new group; None where none can be made."""
        if self.folder is None:
            return None
        folder = self.folder / f"{PREFIX}{os.getpid()}-{next(_numbers)}"
        try:
            folder.mkdir()
            return MemoryGroup(folder, self.version, limit_bytes)
        except OSError as error:
            with contextlib.suppress(OSError):
                folder.rmdir()
            _log.warning("no control group for a child: %s", error)
            return None


_numbers = itertools.count()
_lock = threading.Lock()
_present: dict[int, MemoryGroups] = {}
"""By process: a fork looks anew."""


def memory_groups() -> MemoryGroups:
    """Return where this process makes groups. The first call finds that and logs it."""
    with _lock:
        found = _present.get(os.getpid())
        if found is None:
            found = _present[os.getpid()] = MemoryGroups.find()
            if found.folder is None:
                _log.info("memory of children is limited by rlimits alone: %s", found.reason)
            else:
                _log.info("memory of children is limited by control groups in %s", found.folder)
        return found


def _divided(own: Path) -> Path:
    """Return the folder of version 2 that hands memory out: the one above ours where we have moved down or systemd has
    put us down (``DelegateSubgroup=main``), else our own, whose processes move down. Raises OSError where that is not
    ours."""
    folder = own.parent if own.name == _OWN_GROUP else own
    control = folder / "cgroup.subtree_control"
    if "memory" in _words(control):
        return folder
    if not _is_delegated(folder):
        raise PermissionError(1, "it was not delegated to this program")
    moved = [int(word) for word in _words(folder / "cgroup.procs")]
    strangers = [number for number in moved if not _descends(number, os.getpid())]
    if strangers:
        raise PermissionError(1, f"it has other processes, such as {strangers[0]}")
    (folder / _OWN_GROUP).mkdir(exist_ok=True)
    for number in moved:
        with contextlib.suppress(ProcessLookupError):
            (folder / _OWN_GROUP / "cgroup.procs").write_text(str(number))
    control.write_text("+memory")
    return folder


def _is_delegated(folder: Path) -> bool:
    """Return whether the group was given to us: systemd marks it, or its owner is this user, who is not root."""
    for name in ("user.delegate", "trusted.delegate"):
        with contextlib.suppress(OSError):
            return os.getxattr(folder, name) == b"1"
    return os.getuid() != 0 and folder.stat().st_uid == os.getuid()


def _descends(process_id: int, ancestor: int) -> bool:
    while process_id > 1:
        if process_id == ancestor:
            return True
        try:
            status = Path(f"/proc/{process_id}/stat").read_text()
        except OSError:
            return True  # it has ended
        process_id = int(status.rpartition(")")[2].split()[1])
    return False


def _probe(folder: Path) -> None:
    """Remove the empty groups that programs left behind which were killed, and try to make one."""
    for left in folder.glob(f"{PREFIX}*"):
        if not Path("/proc", left.name.removeprefix(PREFIX).partition("-")[0]).exists():
            with contextlib.suppress(OSError):
                left.rmdir()
    made = folder / f"{PREFIX}{os.getpid()}-probe"
    made.mkdir()
    made.rmdir()


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []
