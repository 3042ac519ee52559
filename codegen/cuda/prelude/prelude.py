"""Joins the table of all device functions, and selects those that one kernel uses."""

from collections.abc import Iterable

from .arithmetic import ARITHMETIC
from .atomic import ATOMIC
from .cluster import CLUSTER
from .cp_async import CP_ASYNC
from .device_function import DeviceFunction
from .global_memory import GLOBAL_MEMORY
from .half import HALF
from .launch import LAUNCH
from .mbarrier import MBARRIER
from .mma import MMA
from .shared_memory import SHARED_MEMORY
from .tcgen05 import TCGEN05
from .tma import TMA
from .wgmma import WGMMA

FUNCTIONS: dict[str, DeviceFunction] = {
    **HALF,
    **ARITHMETIC,
    **LAUNCH,
    **ATOMIC,
    **GLOBAL_MEMORY,
    **SHARED_MEMORY,
    **CP_ASYNC,
    **MBARRIER,
    **TMA,
    **CLUSTER,
    **MMA,
    **WGMMA,
    **TCGEN05,
}
"""It maps names to functions. Each stands after the functions that it calls, since C++ needs their declarations
first."""

_QUALIFIERS = "static __device__ __forceinline__ "


def prelude(used: Iterable[str]) -> dict[str, str]:
    """Return the functions ``used`` and all that they call, in the order of the table: name -> text, which ends in an
    empty line."""
    wanted = set(used)
    pending = list(wanted)
    while pending:
        for name in FUNCTIONS[pending.pop()].needs:
            if name not in wanted:
                wanted.add(name)
                pending.append(name)
    return {name: f"{_qualified(FUNCTIONS[name].text)}\n\n" for name in FUNCTIONS if name in wanted}


def _qualified(text: str) -> str:
    lines = text.splitlines()
    first = next(i for i, line in enumerate(lines) if not line.startswith("//"))
    if not lines[first].startswith(("template", "struct")):
        lines[first] = f"${lines[first]}"
    return "\n".join(lines).replace("$", _QUALIFIERS)
