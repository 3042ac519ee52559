"""A device is one program's at a time, and nobody's when that program is gone."""

import subprocess
import sys
import threading
from pathlib import Path

from tilewright.workers.device_lock import DeviceLock

HOLDER = """
import sys
from pathlib import Path
from tilewright.workers.device_lock import DeviceLock
with DeviceLock("gpu 0", Path(sys.argv[1])).held(lambda: None):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_another_program_is_waited_for_and_said_so_even_if_it_is_killed(tmp_path: Path) -> None:
    other = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert other.stdout is not None and other.stdout.readline() == "held\n"
    waiting, entered = threading.Event(), threading.Event()

    def take() -> None:
        with DeviceLock("gpu 0", tmp_path).held(waiting.set):
            entered.set()

    thread = threading.Thread(target=take)
    thread.start()
    assert waiting.wait(20) and not entered.is_set()
    other.kill()
    other.communicate()
    thread.join(20)
    assert entered.is_set()


def test_a_free_device_and_one_without_a_name_are_ours_at_once(tmp_path: Path) -> None:
    told: list[int] = []
    lease = DeviceLock("gpu 1", tmp_path)
    for _ in range(2):
        with lease.held(lambda: told.append(1)):
            pass
    with DeviceLock("", tmp_path).held(lambda: told.append(2)), DeviceLock("", tmp_path).held(lambda: told.append(3)):
        pass
    assert told == [] and [p.name for p in tmp_path.iterdir()] == ["tilewright-device-gpu-1.lock"]
