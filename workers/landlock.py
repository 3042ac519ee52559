"""Landlock: which files a process may open, and all that it starts (Linux 5.13; Linux, "Landlock: unprivileged access
control"). It also keeps the process from looking into others, such as at their environment, from tracing them, and, in
newer kernels, from sending them signals."""

import ctypes
import os
import struct
from collections.abc import Iterable
from contextlib import suppress

_CREATE, _ADD_RULE, _RESTRICT = 444, 445, 446
_VERSION, _BENEATH = 1, 1
_NO_NEW_PRIVILEGES = 38
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_FOLDER = 1, 2, 4, 8
READ = _EXECUTE | _READ_FILE | _READ_FOLDER
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | 1 << 14
"""Truncating is the last of these rights."""
_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 15}
"""How many rights on files a version of Landlock knows. That of ioctl on devices, which is the next one, stays as it
is."""
_TCP = 3
_SCOPES = 3
"""Abstract Unix sockets, and signals."""


def version() -> int:
    """Return the version of Landlock that the kernel has; 0 where it has none."""
    return max(0, int(_libc().syscall(_CREATE, None, ctypes.c_size_t(0), _VERSION)))


def allow_files_only(read: Iterable[str], write: Iterable[str]) -> bool:
    """Let this thread, and those that it starts, read files below ``read`` alone, and also write below ``write``; let
    them bind and connect no TCP socket. Paths that do not exist are left out. Return whether that was done."""
    libc, known = _libc(), version()
    if not known:
        return False
    rights = (1 << _RIGHTS.get(known, 15)) - 1
    rules = struct.pack("=QQQ", rights, _TCP if known >= 4 else 0, _SCOPES if known >= 6 else 0)
    size = 8 if known < 4 else 16 if known < 6 else 24
    handle = libc.syscall(_CREATE, rules[:size], ctypes.c_size_t(size), 0)
    if handle < 0:
        return False
    try:
        for paths, allowed in ((read, READ), (write, rights)):
            for path in paths:
                _allow(libc, handle, path, allowed & rights)
        return not libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0) and not libc.syscall(_RESTRICT, handle, 0)
    finally:
        os.close(handle)


def _allow(libc: ctypes.CDLL, handle: int, path: str, rights: int) -> None:
    with suppress(OSError):
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
        try:
            allowed = rights if os.path.isdir(path) else rights & _OF_FILES
            libc.syscall(_ADD_RULE, handle, _BENEATH, struct.pack("=Qi", allowed, place), 0)
        finally:
            os.close(place)


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
