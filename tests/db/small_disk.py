"""Mounts a file system with little room."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(folder: Path, mebibytes: int) -> Iterator[Path]:
    """Mount it on ``folder`` while the block runs. Skip the test where that is not allowed."""
    folder.mkdir()
    mounted = os.geteuid() == 0 and shutil.which("mount") is not None
    if mounted:
        command = ["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m", "none", str(folder)]
        mounted = subprocess.run(command, capture_output=True).returncode == 0
    if not mounted:
        pytest.skip("no right to mount a small file system")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)
