"""Reads from the assembler's log what a kernel takes, and refuses kernels that would be slow or could not run."""

import re
from collections.abc import Mapping, Sequence

from ....core.errors import ResourcesExceeded
from ....core.target import Target
from ....schedule.gpu.occupancy import LIMITS
from ...backend import LaunchConfig, Resources

STATIC_SHARED_LIMIT_BYTES = 48 << 10
"""No architecture has more static shared memory for a block."""

_FUNCTION = re.compile(r"Function properties for (\S+)")
_FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")
_STATIC = re.compile(r"(\d+) bytes smem")
_WARNING = re.compile(r"\bC75\d\d\b")


def parse_log(log: str) -> dict[str, Resources]:
    """Return function name -> what it takes, as ``ptxas -v`` prints it."""
    found: dict[str, Resources] = {}
    name, frame = "", (0, 0)
    for line in log.splitlines():
        if match := _FUNCTION.search(line):
            name, frame = match.group(1), (0, 0)
        elif match := _FRAME.search(line):
            frame = (int(match.group(1)), int(match.group(2)) + int(match.group(3)))
        elif name and (match := _USED.search(line)):
            static = _STATIC.search(line)
            found[name] = Resources(int(match.group(1)), frame[1], frame[0], int(static.group(1)) if static else 0)
    return found


def check_launches(launches: Sequence[LaunchConfig], resources: Mapping[str, Resources], target: Target) -> None:
    """Raise ResourcesExceeded for a launch of which not one block fits on a multiprocessor of ``target``."""
    limits = LIMITS.get(target.arch)
    if limits is None:
        return
    for launch in launches:
        if launch.shared_bytes > limits.shared_bytes_per_block:
            raise ResourcesExceeded(
                f"{launch.function} takes {launch.shared_bytes} bytes of shared memory a block; "
                f"{target.arch} has {limits.shared_bytes_per_block}"
            )
        registers = resources[launch.function].registers if launch.function in resources else 1
        if not limits.resident_blocks(launch.threads, registers, launch.shared_bytes):
            raise ResourcesExceeded(
                f"{launch.function} takes {registers} registers in each of {launch.threads} threads; "
                f"{target.arch} has {limits.registers_per_multiprocessor} for a block"
            )


def check_log(resources: Mapping[str, Resources], log: str) -> None:
    """Raise ResourcesExceeded for a kernel that spills, that has too much static shared memory, or that the assembler
    warns about. Its warnings C75xx tell of ``wgmma`` that it serialised and of ``setmaxnreg`` that it ignored."""
    for name, taken in resources.items():
        if taken.spill_bytes:
            raise ResourcesExceeded(
                f"{name} spills {taken.spill_bytes} bytes with {taken.registers} registers a thread: "
                "it holds more values than there are registers"
            )
        if taken.static_shared_bytes > STATIC_SHARED_LIMIT_BYTES:
            raise ResourcesExceeded(
                f"{name} takes {taken.static_shared_bytes} bytes of static shared memory; "
                f"at most {STATIC_SHARED_LIMIT_BYTES}"
            )
    for line in log.splitlines():
        if _WARNING.search(line):
            raise ResourcesExceeded(f"the assembler warns: {line.strip()}")
