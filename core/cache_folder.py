"""The folder of what this user's processes keep to save time. Whatever is in it may be deleted."""

import os
import tempfile
from pathlib import Path


def cache_folder(name: str) -> Path:
    """Return the folder ``name`` of Tilewright's caches, by the rules of the XDG base directories."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "tilewright" / name


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file aside and move it into place, so that processes which share the folder read the old file or the new
    one. The folder is made where it is missing. Raises OSError where it cannot be written; nothing is left behind."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".new-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
