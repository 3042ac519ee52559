"""The device functions that kernels use, each written out only where it is used: no header is needed."""

from collections.abc import Iterable

from .device_function import Function
from .memory import MEMORY
from .tma import TENSORS
from .values import VALUES
from .wgmma import GROUPS

FUNCTIONS: dict[str, Function] = {**VALUES, **MEMORY, **TENSORS, **GROUPS}
"""Name -> function."""

_DEVICE = "static __device__ __forceinline__ "


def prelude(used: Iterable[str]) -> str:
    """The functions named, and those they call, in the order of the table."""
    wanted = set(used)
    pending = list(wanted)
    while pending:
        for name in FUNCTIONS[pending.pop()].needs:
            if name not in wanted:
                wanted.add(name)
                pending.append(name)
    return "".join(f"{_qualified(FUNCTIONS[name].text)}\n\n" for name in FUNCTIONS if name in wanted)


def _qualified(text: str) -> str:
    lines = text.splitlines()
    first = next(i for i, line in enumerate(lines) if not line.startswith("//"))
    if not lines[first].startswith(("template", "struct")):
        lines[first] = f"${lines[first]}"
    return "\n".join(lines).replace("$", _DEVICE)
