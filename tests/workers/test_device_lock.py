"""A device is one program's at a time, and nobody's when that program is gone."""

import fcntl
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import cast

import pytest

from tilewright.workers.device_lock import DeviceLock

UUID = "GPU-0e5a2a1e-0000-1111-2222-333344445555"
HOLDER = """
import sys
from pathlib import Path
from tilewright.workers.device_lock import DeviceLock
with DeviceLock(sys.argv[2], Path(sys.argv[1]), fence=7).held(lambda: None):
    print("held", flush=True)
    sys.stdin.read()
"""


FILE = f"tilewright-device-{UUID}.lock"


def holder(folder: Path) -> dict[str, object]:
    return cast(dict[str, object], json.loads((folder / FILE).read_text()))


def test_another_program_is_waited_for_and_said_so_even_if_it_is_killed(tmp_path: Path) -> None:
    other = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path), UUID], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert other.stdout is not None and other.stdout.readline() == "held\n"
    assert holder(tmp_path)["pid"] == other.pid and holder(tmp_path)["fence"] == 7
    told: list[dict[str, object]] = []
    waiting, entered = threading.Event(), threading.Event()

    def take() -> None:
        with DeviceLock(UUID, tmp_path, fence=8).held(waiting.set):
            told.append(holder(tmp_path))
            entered.set()

    thread = threading.Thread(target=take)
    thread.start()
    assert waiting.wait(20) and not entered.is_set()
    other.kill()
    other.communicate()
    thread.join(20)
    assert entered.is_set() and told[0]["pid"] == os.getpid() and told[0]["fence"] == 8
    assert (tmp_path / FILE).read_text() == ""


def test_a_file_that_may_only_be_read_is_locked_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It belongs to another user. Root, as which tests may run, may write every file, so the refusal is planted."""
    (tmp_path / FILE).write_text("theirs")
    real = os.open

    def refusing(path: Path, flags: int, mode: int = 0o777) -> int:
        if flags & (os.O_RDWR | os.O_CREAT):
            raise PermissionError(13, "planted", str(path))
        return real(path, flags, mode)

    monkeypatch.setattr(os, "open", refusing)
    with DeviceLock(UUID, tmp_path).held(lambda: None):
        again = real(tmp_path / FILE, os.O_RDONLY)
        with pytest.raises(BlockingIOError):
            fcntl.flock(again, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(again)
    assert (tmp_path / FILE).read_text() == "theirs"


def test_a_free_device_and_one_without_a_name_are_ours_at_once(tmp_path: Path) -> None:
    told: list[int] = []
    lease = DeviceLock("gpu 1", tmp_path)
    for _ in range(2):
        with lease.held(lambda: told.append(1)):
            pass
    with DeviceLock("", tmp_path).held(lambda: told.append(2)), DeviceLock("", tmp_path).held(lambda: told.append(3)):
        pass
    assert told == [] and [p.name for p in tmp_path.iterdir()] == ["tilewright-device-gpu-1.lock"]
