"""The folder of what this user's processes keep to save time. Whatever is in it may be deleted."""

import os
from pathlib import Path


def cache_folder(name: str) -> Path:
    """Return the folder ``name`` of Tilewright's caches, by the rules of the XDG base directories."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "tilewright" / name
