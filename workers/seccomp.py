"""Seccomp: which system calls the kernel refuses to a process, and to all that it starts.

The filter is a program of classic BPF, which the kernel runs ahead of every system call (Linux, "Seccomp BPF"). It sees
the number of the call and its arguments. What it refuses fails with EPERM, so that the program gets an ordinary error.
Filters stay for ever. Other architectures than those below have none.
"""

import ctypes
import errno
import os
import platform
import struct
from collections.abc import Iterable
from dataclasses import dataclass

NO_NEW_PRIVILEGES, SECCOMP_AVAILABLE = 38, b"/proc/sys/kernel/seccomp/actions_avail"
_SET_MODE_FILTER, _ALL_THREADS = 1, 1
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_LOAD, _EQUAL, _AT_LEAST, _BITS, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16
_CLONE_THREAD = 0x10000
_X32 = 0x40000000
"""Numbers from here on are those of a second set of calls of x86-64, which nothing here uses."""


@dataclass(frozen=True, slots=True)
class CallNumbers:
    """The numbers of system calls on an architecture (``unistd.h``); ``audit`` is its name in filters (``audit.h``)."""

    audit: int
    seccomp: int
    clone: int
    clone3: int
    programs: tuple[int, ...]
    """fork, vfork, execve, execveat"""
    signals: tuple[int, ...]
    """kill, tgkill: they take the process first"""
    network: tuple[int, ...]
    """socket, connect, bind, listen, accept, accept4"""
    system: tuple[int, ...]
    """ptrace, process_vm_readv, process_vm_writev, mount, umount2, pivot_root, chroot, setns, unshare, setsid, setpgid,
    add_key, request_key, keyctl, bpf, perf_event_open, userfaultfd, kexec_load, init_module, finit_module,
    delete_module"""
    more: tuple[int, ...]
    """open_by_handle_at, reboot, swapon, swapoff, tkill, rt_sigqueueinfo, rt_tgsigqueueinfo, then those that are new"""


_NEW = (424, 425, 426, 427, 428, 429, 430, 431, 432, 433, 438, 440, 442)
"""pidfd_send_signal, io_uring (no filter sees its requests), the new calls for mounts, pidfd_getfd, process_madvise,
mount_setattr. From 424 on all architectures have the same numbers."""
NUMBERS = {
    "x86_64": CallNumbers(
        0xC000003E,
        317,
        56,
        435,
        (57, 58, 59, 322),
        (62, 234),
        (41, 42, 49, 50, 43, 288),
        (101, 310, 311, 165, 166, 155, 161, 308, 272, 112, 109, 248, 249, 250, 321, 298, 323, 246, 175, 313, 176),
        (304, 169, 167, 168, 200, 129, 297, *_NEW),
    ),
    "aarch64": CallNumbers(
        0xC00000B7,
        277,
        220,
        435,
        (221, 281),
        (129, 131),
        (198, 203, 200, 201, 202, 242),
        (117, 270, 271, 40, 39, 41, 51, 268, 97, 157, 154, 217, 218, 219, 280, 241, 282, 104, 105, 273, 106),
        (265, 142, 224, 225, 130, 138, 240, *_NEW),
    ),
}


class _SockFprog(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def is_available() -> bool:
    """Return whether the kernel takes filters, and the numbers of its calls are known here."""
    return platform.machine() in NUMBERS and os.path.exists(SECCOMP_AVAILABLE)


def refuse_calls(*, network: bool, programs: bool) -> bool:
    """Refuse to all threads of this process calls into other processes and into the system; with ``network`` sockets
    too, and with ``programs`` new processes, and signals to any other process. Return whether that was done."""
    known = NUMBERS.get(platform.machine())
    if known is None:
        return False
    code = _filter(known, network=network, programs=programs)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0):
        return False
    program = _SockFprog(len(code) // 8, code)
    return not libc.syscall(known.seccomp, _SET_MODE_FILTER, _ALL_THREADS, ctypes.byref(program))


def _filter(known: CallNumbers, *, network: bool, programs: bool) -> bytes:
    """Each test jumps over the answer behind it unless it is meant.

    load architecture; unless known: refuse; load number; unless below x32: refuse
    for each refused call: if number is the call: refuse
    """
    refuse, missing = _ERRNO | errno.EPERM, _ERRNO | errno.ENOSYS
    code = [_step(_LOAD, _ARCHITECTURE), _step(_EQUAL, known.audit, 1, 0), _step(_RETURN, refuse)]
    code += [_step(_LOAD, _NUMBER), _step(_AT_LEAST, _X32, 0, 1), _step(_RETURN, refuse)]
    calls: Iterable[int] = (
        *known.system,
        *known.more,
        *(known.network if network else ()),
        *(known.programs if programs else ()),
    )
    for call in calls:
        code += [_step(_EQUAL, call, 0, 1), _step(_RETURN, refuse)]
    if programs:
        # the arguments of clone3 lie in memory that no filter sees; without it, the C library takes clone
        code += [_step(_EQUAL, known.clone3, 0, 1), _step(_RETURN, missing)]
        thread = [_step(_LOAD, _FIRST_ARGUMENT), _step(_BITS, _CLONE_THREAD, 1, 0)]
        code += [_step(_EQUAL, known.clone, 0, 4), *thread, _step(_RETURN, refuse), _step(_RETURN, _ALLOW)]
        own = [_step(_LOAD, _FIRST_ARGUMENT), _step(_EQUAL, os.getpid(), 1, 0)]
        for call in known.signals:
            code += [_step(_EQUAL, call, 0, 4), *own, _step(_RETURN, refuse), _step(_RETURN, _ALLOW)]
    return b"".join([*code, _step(_RETURN, _ALLOW)])


def _step(operation: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    """Return one instruction; the jumps count instructions that are left out."""
    return struct.pack("=HBBI", operation, if_true, if_false, value)
