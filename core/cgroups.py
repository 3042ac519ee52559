"""The limits of the control groups that this process is in, as containers and services have them (Linux, "Control Group
v2"; version 1 too). Elsewhere there are none."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT, OWN = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
_UNLIMITED = 1 << 60
"""Version 1 writes a huge number where there is no limit."""


@dataclass(frozen=True)
class ControlGroups:
    """``root`` is where the groups are mounted, and ``own`` the file that names those of this process."""

    root: Path = ROOT
    own: Path = OWN

    @property
    def memory_bytes(self) -> int | None:
        """How much memory the groups may have; None: as much as there is."""
        return min(filter(None, (limit for limit, _ in self._memory())), default=None)

    @property
    def free_bytes(self) -> int | None:
        """How much memory is left of that, at the group that has least; None: as much as there is."""
        left = (max(0, limit - used) for limit, used in self._memory() if limit is not None and used is not None)
        return min(left, default=None)

    @property
    def processors(self) -> float | None:
        """How many processors' time the groups may have; None: all."""
        found = []
        for folder in self._folders("cpu"):
            quota, period = [*_words(folder / "cpu.max"), "", ""][:2]
            if not quota:
                quota, period = ("".join(_words(folder / f"cpu.cfs_{name}_us")) for name in ("quota", "period"))
            if quota.isdigit() and period.isdigit() and int(quota) and int(period):
                found.append(int(quota) / int(period))
        return min(found, default=None)

    @property
    def memory_folder(self) -> tuple[Path, int] | None:
        """The folder of this process's group that limits memory, and the version of control groups, 1 or 2; None where
        there is none."""
        if "memory" in self._paths:
            found = [folder for folder in self._folders("memory") if (folder / "memory.limit_in_bytes").exists()]
            return (found[0], 1) if found else None
        folders = [folder for folder in self._folders("") if (folder / "cgroup.procs").exists()]
        if not folders or "memory" not in _words(folders[0] / "cgroup.controllers"):
            return None
        return folders[0], 2

    def _memory(self) -> Iterator[tuple[int | None, int | None]]:
        """(limit, what is used) of each group in bytes."""
        for folder in self._folders("memory"):
            limit = _number(folder / "memory.max") or _number(folder / "memory.limit_in_bytes")
            used = _number(folder / "memory.current") or _number(folder / "memory.usage_in_bytes")
            yield (None if limit is None or limit >= _UNLIMITED else limit), used

    def _folders(self, controller: str) -> Iterator[Path]:
        """Yield the folder of each group for a controller, the innermost first. In a container the outermost is mounted
        where the root is, under a path that is not there."""
        path = self._paths.get(controller, self._paths.get(""))
        if path is None:
            return
        base = self.root / controller if controller in self._paths else self.root
        inner = [base.joinpath(*path.parts[1:])]
        yield from (folder for folder in (*inner, *inner[0].parents) if folder.is_relative_to(base))

    @cached_property
    def _paths(self) -> dict[str, Path]:
        """Controller -> path of this process's group. The name of version 2 is empty."""
        found: dict[str, Path] = {}
        try:
            lines = self.own.read_text().splitlines()
        except OSError:
            return found
        for line in lines:
            _, names, path = line.split(":", 2)
            found.update(dict.fromkeys(names.split(","), Path(path)))
        return found


def processor_count() -> int:
    """Return how many processors this process may use: those it may run on, and no more than its groups have time
    for."""
    present = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    limit = ControlGroups().processors
    return present if limit is None else max(1, min(present, round(limit)))


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []


def _number(path: Path) -> int | None:
    words = _words(path)
    return int(words[0]) if words and words[0].isdigit() else None
