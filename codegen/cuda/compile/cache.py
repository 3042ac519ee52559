"""Keeps compiled kernels on disk, so that no process of this user compiles the same text twice.

Each entry is one file, named by the hash of the compiler's inputs. It is written aside and moved into place, so that
processes may share the folder. When the entries exceed the limit, the least recently used ones are removed. A folder
that cannot be used costs only time.
"""

import json
import os
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ....core.cache_folder import write_atomically
from ....core.keys import content_key
from .nvrtc import Compiled

MOST_BYTES = 512 << 20
_SUFFIX = ".kernel"


def key_of(text: str, options: Sequence[str], compiler: str) -> str:
    """Return a key of all that the result of a compilation depends on."""
    return content_key({"text": text, "options": list(options), "compiler": compiler})


@dataclass(frozen=True, slots=True)
class CompileCache:
    """It keeps entries in ``folder`` that have at most ``most_bytes`` together."""

    folder: Path
    most_bytes: int = MOST_BYTES

    def get(self, key: str) -> Compiled | None:
        """Return what was put under ``key``; None where there is nothing, or nothing readable."""
        path = self._path(key)
        try:
            data = zlib.decompress(path.read_bytes())
            head, _, cubin = data.partition(b"\n")
            said = json.loads(head)
            os.utime(path)
            return Compiled(cubin, str(said["ptx"]), str(said["log"]))
        except (OSError, ValueError, KeyError, zlib.error):
            return None

    def put(self, key: str, compiled: Compiled) -> None:
        """Store ``compiled`` under ``key``. Does nothing where the folder cannot be written."""
        head = json.dumps({"ptx": compiled.ptx, "log": compiled.log}).encode()
        data = zlib.compress(head + b"\n" + compiled.cubin, 1)
        try:
            write_atomically(self._path(key), data)
            if key.startswith("0"):  # one key in sixteen checks the size of the whole folder
                self.trim()
        except OSError:
            return

    def trim(self) -> None:
        """Remove the least recently used entries until the rest fits."""
        entries = []
        for path in self.folder.glob(f"*{_SUFFIX}"):
            try:
                found = path.stat()
            except FileNotFoundError:  # another process removed it
                continue
            entries.append((found.st_mtime, found.st_size, path))
        total = sum(size for _, size, _ in entries)
        for _, size, path in sorted(entries):
            if total <= self.most_bytes:
                return
            path.unlink(missing_ok=True)
            total -= size

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}{_SUFFIX}"
