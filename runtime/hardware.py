"""What the host's CPU is: name, cores, caches, instruction-set extensions."""

import os
import platform
import re
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
"""LLVM's names of the extensions that matter to generated code; the rest would only split identities."""

TILES = "amx-tile"

_ARCHES = {"x86_64": "x86-64", "AMD64": "x86-64"}
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")


def host_target() -> Target:
    """The LLVM target of this machine, for all CPUs this process may use. Raises UnsupportedTarget."""
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
    """Whether the operating system lets this process use tile registers: it must be asked (kernels with tiles ask for
    themselves), and an old one does not know of them."""
    libc = CDLL(None, use_errno=True)
    return int(libc.syscall(ARCH_PRCTL_SYSCALL, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA)) == 0


def vector_bytes(features: Sequence[str]) -> int:
    """The widest vector register that the extensions bring."""
    return 64 if "avx512f" in features else 32 if "avx" in features else 16


def cpu_name() -> str:
    """As the kernel reports it: the model a hypervisor shows, which need not be the true one."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.machine()
    match = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return match.group(1).strip() if match else platform.machine()


def hardware_columns(target: Target) -> dict[str, float]:
    """Numbers that tell this CPU from another: cores, threads, vector bytes, and the caches one core sees."""
    columns = {
        "cores": float(_cores()),
        "threads": float(target.threads),
        "vector_bytes": float(target.vector_bytes),
    }
    columns.update({f"{name}_bytes": float(size) for name, size in cache_bytes().items()})
    return columns


def cache_bytes() -> dict[str, int]:
    """``l1d``, ``l2``, ``l3`` -> bytes, as far as the kernel says."""
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
    """Physical cores among the CPUs this process may use: hyper-threads share a core."""
    siblings = set()
    for cpu in os.sched_getaffinity(0):
        path = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        try:
            siblings.add(path.read_text().strip())
        except OSError:
            siblings.add(str(cpu))
    return len(siblings)
