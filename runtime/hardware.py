"""The host's CPU: its name, cores, caches and instruction-set extensions."""

import os
import platform
import re
import socket
import uuid
from collections.abc import Sequence
from ctypes import CDLL
from pathlib import Path

import llvmlite.binding as llvm

from ..codegen.llvm.amx import ARCH_PRCTL_SYSCALL, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
from ..core.errors import UnsupportedTarget
from ..core.target import Target

FEATURES = (
    "adx", "aes", "amx-bf16", "amx-complex", "amx-fp16", "amx-int8", "amx-tile", "avx", "avx2", "avx512bf16",
    "avx512bitalg", "avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512fp16", "avx512ifma", "avx512vbmi",
    "avx512vbmi2", "avx512vl", "avx512vnni", "avx512vpopcntdq", "avxifma", "avxneconvert", "avxvnni", "avxvnniint16",
    "avxvnniint8", "bmi", "bmi2", "cmov", "cx16", "cx8", "f16c", "fma", "fxsr", "gfni", "lzcnt", "mmx", "movbe",
    "pclmul", "popcnt", "sse", "sse2", "sse3", "sse4.1", "sse4.2", "ssse3", "vaes", "vpclmulqdq",
)  # fmt: skip
"""LLVM's names of the extensions that matter to generated code. Any others would only make equal devices look
different."""

TILES = "amx-tile"

_ARCHES = {"x86_64": "x86-64", "AMD64": "x86-64"}
_MACHINE_IDS = (Path("/etc/machine-id"), Path("/var/lib/dbus/machine-id"))
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")


def host_target() -> Target:
    """Return the LLVM target of this machine, for all CPUs this process may use. Raises UnsupportedTarget."""
    arch = _ARCHES.get(platform.machine())
    if arch is None or platform.system() != "Linux":
        raise UnsupportedTarget(
            f"this machine is {platform.machine()} with {platform.system()}; the llvm target needs x86-64 Linux"
        )
    found = llvm.get_host_cpu_features()
    features = tuple(name for name in FEATURES if found.get(name, False))
    if TILES in features and not _tiles_granted():
        features = tuple(name for name in features if not name.startswith("amx"))
    return Target("llvm", arch, features, len(os.sched_getaffinity(0)), vector_bytes(features))


def _tiles_granted() -> bool:
    """Say whether the operating system lets this process use tile registers. It must be asked (kernels with tiles
    ask for themselves), and an old one does not know them."""
    libc = CDLL(None, use_errno=True)
    return int(libc.syscall(ARCH_PRCTL_SYSCALL, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA)) == 0


def vector_bytes(features: Sequence[str]) -> int:
    """Return the bytes of the widest vector register that the extensions bring."""
    return 64 if "avx512f" in features else 32 if "avx" in features else 16


def cpu_name() -> str:
    """Return the CPU's name as the operating system reports it. Under a hypervisor it need not be the true one."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.machine()
    match = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return match.group(1).strip() if match else platform.machine()


def host_uuid(host: str = "") -> str:
    """Return a name for ``host``, by default this one: a hash of the machine id (``man machine-id``), where there is
    one, and of the host's name, because containers may be copies of one image."""
    machine = ""
    for path in _MACHINE_IDS:
        try:
            machine = machine or path.read_text().strip()
        except OSError:
            continue
    return f"CPU-{uuid.uuid5(uuid.NAMESPACE_DNS, f'{machine}.{host or socket.gethostname()}')}"


def hardware_columns(target: Target) -> dict[str, float]:
    """Return numbers that tell this CPU from another: cores, threads, vector bytes, and the caches that one core
    sees."""
    columns = {
        "cores": float(_cores()),
        "threads": float(target.threads),
        "vector_bytes": float(target.vector_bytes),
    }
    columns.update({f"{name}_bytes": float(size) for name, size in cache_bytes().items()})
    return columns


def cache_bytes() -> dict[str, int]:
    """Map ``l1d``, ``l2`` and ``l3`` to bytes, as far as the operating system knows them."""
    sizes: dict[str, int] = {}
    for entry in sorted(_CACHES.glob("index*")):
        try:
            kind = (entry / "type").read_text().strip()
            level = int((entry / "level").read_text())
            size = (entry / "size").read_text().strip()
        except (OSError, ValueError):
            continue
        number = re.fullmatch(r"(\d+)([KMG]?)", size)
        if number is None or kind == "Instruction":
            continue
        name = "l1d" if level == 1 else f"l{level}"
        sizes[name] = int(number.group(1)) << {"": 0, "K": 10, "M": 20, "G": 30}[number.group(2)]
    return sizes


def _cores() -> int:
    """Count the physical cores among the CPUs this process may use. Hyper-threads share a core."""
    siblings = set()
    for cpu in os.sched_getaffinity(0):
        path = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        try:
            siblings.add(path.read_text().strip())
        except OSError:
            siblings.add(str(cpu))
    return len(siblings)
