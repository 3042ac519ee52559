"""What the assembler says a kernel takes, and the gates that refuse kernels which could only be slow or not run."""

import re
from collections.abc import Mapping, Sequence

from ....core.errors import ResourcesExceeded
from ....core.target import Target
from ....schedule.gpu.occupancy import LIMITS
from ...backend import LaunchConfig, Resources

STATIC_SHARED_LIMIT_BYTES = 48 << 10
"""Most static shared memory of a block on every architecture."""

_FUNCTION = re.compile(r"Function properties for (\S+)")
_FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")
_STATIC = re.compile(r"(\d+) bytes smem")
_WARNING = re.compile(r"\bC75\d\d\b")


def parse_log(log: str) -> dict[str, Resources]:
    """Function name -> what it takes, from what ``ptxas -v`` prints."""
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
    """Raise ResourcesExceeded for a launch of which not even one block fits on a multiprocessor of ``target``."""
    limits = LIMITS.get(target.arch)
    if limits is None:
        return
    for grid in launches:
        if grid.shared_bytes > limits.shared_bytes_per_block:
            raise ResourcesExceeded(
                f"{grid.function} takes {grid.shared_bytes} bytes of shared memory a block; "
                f"{target.arch} has {limits.shared_bytes_per_block}"
            )
        registers = resources[grid.function].registers if grid.function in resources else 1
        if not limits.resident_blocks(grid.threads, registers, grid.shared_bytes):
            raise ResourcesExceeded(
                f"{grid.function} takes {registers} registers in each of {grid.threads} threads; "
                f"{target.arch} has {limits.registers_per_multiprocessor} for a block"
            )


def check_log(resources: Mapping[str, Resources], log: str) -> None:
    """Raise ResourcesExceeded for a kernel that spills, that the assembler warns about (C75xx: matrix instructions it
    had to serialise, register requests it ignored), or with too much static shared memory."""
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
