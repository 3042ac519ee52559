"""What code is generated for, what it is timed on, and what made it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from .keys import content_key


@dataclass(frozen=True, slots=True)
class Target:
    """What code is generated for.

    ``kind`` names the backend (``llvm``, ``cuda``) and ``arch`` the instruction set (``x86-64``, ``sm_90a``).
    ``features`` are the instruction-set extensions in use, sorted and without a sign (``avx512f``). ``threads`` is how
    many native threads a kernel may use, of a GPU how many multiprocessors it has. ``vector_bytes`` is the size of the
    widest vector register, of a GPU that of the widest access of one thread.
    """

    kind: str
    arch: str
    features: tuple[str, ...] = ()
    threads: int = 1
    vector_bytes: int = 16

    def __str__(self) -> str:
        return f"{self.kind} {self.arch}"

    def to_json(self) -> dict[str, object]:
        return {
            "kind": self.kind,
            "arch": self.arch,
            "features": list(self.features),
            "threads": self.threads,
            "vector_bytes": self.vector_bytes,
        }

    @property
    def key(self) -> str:
        return content_key(self.to_json())


IMPORTED = "imported"
"""The column of ``DeviceInfo.hardware`` that marks what another program timed."""


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """The physical thing a kernel is timed on.

    ``hardware`` holds the columns that identify it (cores, cache bytes, …; they make the key), ``measured``
    what was measured on it (``peak_float32_flops_per_second``, ``copy_bytes_per_second``, …; not in the key).
    """

    name: str
    target: Target
    hardware: Mapping[str, float] = field(default_factory=dict)
    measured: Mapping[str, float] = field(default_factory=dict)

    @property
    def imported(self) -> bool:
        """Whether it stands for what another program timed on a device: no unit is one, and no look-up serves it."""
        return IMPORTED in self.hardware

    @property
    def key(self) -> str:
        return content_key({"name": self.name, "target": self.target.to_json(), "hardware": dict(self.hardware)})


@dataclass(frozen=True, slots=True)
class Toolchain:
    """What turned a schedule into a binary: component name -> version, our own code generator included."""

    components: Mapping[str, str]

    @property
    def key(self) -> str:
        return content_key(dict(self.components))


@dataclass(frozen=True, slots=True)
class Profile:
    """How a time was taken. ``cache``: ``cold`` rotates buffers past the last-level cache, ``warm`` does not."""

    cache: str = "warm"
    protocol: int = 1

    def __str__(self) -> str:
        return f"{self.cache}-v{self.protocol}"
