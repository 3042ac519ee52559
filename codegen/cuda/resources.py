"""What the assembler says a kernel takes, and the gates that refuse kernels which could only be slow or not run."""

import re

from ...core.errors import CompileError
from ..backend import Resources

STATIC_SHARED_LIMIT_BYTES = 48 << 10
"""Most static shared memory of a block on every architecture."""


class ResourceError(CompileError):
    """The kernel compiles, but spills registers, or asks for more than the hardware has."""

    code = "RESOURCES"


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


def check(resources: dict[str, Resources], log: str) -> None:
    """Raise ResourceError for a kernel that spills, that the assembler warns about (C75xx: matrix instructions it had
    to serialise, register requests it ignored), or with too much static shared memory."""
    for name, taken in resources.items():
        if taken.spill_bytes:
            raise ResourceError(
                f"{name} spills {taken.spill_bytes} bytes with {taken.registers} registers a thread: "
                "it holds more values than there are registers"
            )
        if taken.static_shared_bytes > STATIC_SHARED_LIMIT_BYTES:
            raise ResourceError(
                f"{name} takes {taken.static_shared_bytes} bytes of static shared memory; "
                f"at most {STATIC_SHARED_LIMIT_BYTES}"
            )
    for line in log.splitlines():
        if _WARNING.search(line):
            raise ResourceError(f"the assembler warns: {line.strip()}")
