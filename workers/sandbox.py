"""What a child may do. It restricts itself before it does any work, and cannot undo that.

    limits of the process    address space, size of a file, open files, no capabilities; always there
    Landlock                 which files it opens, and that it looks into no other process
    seccomp                  which system calls it makes: no sockets, no new processes, none into the system

Neither needs privileges, so that they work in containers too, where the namespaces that bubblewrap wants are mostly
forbidden. Where the kernel lacks one, ``missing`` names it, and the service says so in its readiness.
"""

import ctypes
import os
import resource
import struct
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import cast

from ..core.cache_folder import cache_folder
from . import landlock, seccomp

Json = dict[str, object]

FILE_BYTES = 64 << 20
"""How large a file may be that a restricted child writes."""
FOLDER_BYTES = 512 << 20
"""How much its files may have together. Its parent looks at that while it waits."""
OPEN_FILES = 256
NICENESS = 5
"""Builds give way to whatever answers requests."""
_CAPABILITIES, _CAPABILITY_VERSION_3, _DROP_FROM_BOUNDING_SET = 64, 0x20080522, 24
_SYSTEM = (
    "/usr /lib /lib32 /lib64 /bin /sbin /opt /nix /sys /proc /dev/null /dev/zero /dev/full /dev/random /dev/urandom "
    "/etc/ld.so.cache /etc/ld.so.conf /etc/ld.so.conf.d /etc/localtime /etc/passwd /etc/group /etc/nsswitch.conf"
).split()
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full")


@dataclass(frozen=True, slots=True)
class Sandbox:
    """How a child is restricted.

    memory_bytes: Its address space; 0: any.
    programs: Whether it may start programs, such as a linker. They are restricted as it is.
    files: Whether it may open any file. Otherwise it reads the system's and the program's, and writes to a folder of
        its own and to Tilewright's caches.
    low_priority: Whether it gives way to other processes: its parent sees to that when it starts (``give_way``).
    """

    memory_bytes: int = 0
    programs: bool = False
    files: bool = False
    low_priority: bool = True

    def to_json(self) -> Json:
        return asdict(self)

    @staticmethod
    def from_json(data: object) -> "Sandbox":
        return Sandbox(**cast(dict[str, int], data))  # type: ignore[arg-type]

    def enter(self) -> None:
        """Restrict this process. It must have one thread: Landlock holds for the thread that asks for it."""
        if self.memory_bytes:
            resource.setrlimit(resource.RLIMIT_AS, (self.memory_bytes, self.memory_bytes))
        if not self.files:
            resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES, FILE_BYTES))
            _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            most = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
            if sys.platform == "linux":
                _drop_capabilities()
                landlock.allow_files_only(_readable(), _writable())
        if sys.platform == "linux":
            seccomp.refuse_calls(network=True, programs=not self.programs)


def give_way(process_id: int) -> None:
    """Let a child that has just begun, and all that it starts, give way to other processes, before it loads anything.
    Where Linux shares processors among sessions (autogroups), that is said of its session too."""
    with suppress(OSError):  # it has ended already
        os.setpriority(os.PRIO_PROCESS, process_id, os.getpriority(os.PRIO_PROCESS, 0) + NICENESS)
    with suppress(OSError):
        Path(f"/proc/{process_id}/autogroup").write_text(str(NICENESS))


def missing() -> tuple[str, ...]:
    """Return what this kernel lacks of the means by which children are restricted."""
    if sys.platform != "linux":
        return ("Landlock", "seccomp")
    have = {"Landlock": landlock.version() > 0, "seccomp": seccomp.is_available()}
    return tuple(name for name, there in have.items() if not there)


def _drop_capabilities() -> None:
    """Root without capabilities is a user like others: Landlock lets those of root look into other processes."""
    libc = ctypes.CDLL(None, use_errno=True)
    for capability in range(_CAPABILITIES):
        libc.prctl(_DROP_FROM_BOUNDING_SET, capability, 0, 0, 0)
    libc.capset(struct.pack("=Ii", _CAPABILITY_VERSION_3, 0), bytes(24))


def _readable() -> list[str]:
    package = str(Path(__file__).resolve().parents[1])  # where the path to it has links, they are followed
    python = [package, sys.prefix, sys.base_prefix, sys.exec_prefix, *(path for path in sys.path if path)]
    listed = [os.environ.get(name, "") for name in ("PATH", "LD_LIBRARY_PATH")]
    return [*_SYSTEM, *python, *(path for paths in listed for path in paths.split(os.pathsep) if path)]


def _writable() -> list[str]:
    folder = cache_folder("cuda")
    with suppress(OSError):  # without a cache, compiling takes longer
        folder.mkdir(parents=True, exist_ok=True)
    return [*_DEVICES, str(folder), os.environ["TMPDIR"]]
