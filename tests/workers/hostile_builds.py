"""A builder that does what no build may do: the knob ``attack`` says what. Where nothing keeps it from that, it tells
in its failure what it got, and the test sees that."""

import ctypes
import logging
import os
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from tilewright.codegen.backend import CompiledKernel
from tilewright.core.schedule import Schedule
from tilewright.core.target import Target
from tilewright.te.workload import Workload
from tilewright.tests.workers import faulty_kernels


def build(workload: Workload, target: Target, chosen: Schedule) -> CompiledKernel:
    attack, _, argument = str(chosen["attack"]).partition(" ")
    if attack in ATTACKS:
        raise AssertionError(f"nothing stopped it: {ATTACKS[attack](argument)!r}")
    return faulty_kernels.build(workload, target, faulty_kernels.schedule("good"))


def _fill_one_file(_: str) -> object:
    return (Path(tempfile.gettempdir()) / "one").write_bytes(bytes(1 << 27))


def _fill_many_files(_: str) -> None:
    for n in range(1 << 20):
        path = Path(tempfile.gettempdir()) / str(n)
        path.touch()
        os.truncate(path, 1 << 25)  # without blocks: the size is what counts


def _talk(_: str) -> None:
    while True:
        print("x" * (1 << 20))


def _log(_: str) -> None:
    for number in range(300):
        logging.getLogger("tilewright.codegen").warning("line %d\nanother line", number)
    logging.getLogger("tilewright.codegen").warning("x" * 100_000)
    raise RuntimeError("it logged")


def _connect(port: str) -> object:
    return socket.create_connection(("127.0.0.1", int(port)))


def _escape_the_group(_: str) -> object:
    os.setsid()
    return os.getsid(0)


def _io_uring(_: str) -> object:
    libc = ctypes.CDLL(None, use_errno=True)
    found = libc.syscall(425, 1, ctypes.create_string_buffer(120))
    if found < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return found


ATTACKS: dict[str, Callable[[str], object]] = {
    "forks": lambda _: os.fork(),
    "runs": lambda _: subprocess.run(["true"], check=True),
    "kills": lambda pid: os.kill(int(pid), signal.SIGKILL),
    "leaves": _escape_the_group,
    "connects": _connect,
    "listens": lambda _: socket.socket(socket.AF_INET6),
    "speaks": lambda path: socket.socket(socket.AF_UNIX).connect(path),
    "rings": _io_uring,
    "reads": lambda path: Path(path).read_bytes(),
    "lists": os.listdir,
    "writes": lambda path: Path(path).write_text("x"),
    "fills": _fill_one_file,
    "fills_by_parts": _fill_many_files,
    "talks": _talk,
    "logs": _log,
    "aborts": lambda _: os.abort(),
    "allocates": lambda _: bytearray(1 << 40),
    "touches": lambda count: len(b"x" * int(count)),
}
