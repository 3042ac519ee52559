"""How soon a better record shows, once the service has said that it keeps it."""

import http.client
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

from tilewright.api.client import Client
from tilewright.core.trial import Timed
from tilewright.db.recording import record_trial
from tilewright.db.store import RecordStore
from tilewright.tests.api.filled import HERE, keep_job, new_trial, operator_task

ROUNDS = 6
LONGEST_SECONDS = 30.0


def better_records(asked: int, told: int, key: str, admin: str, folder: Path) -> Iterator[float]:
    """Give the server on the port ``told`` one faster record after the other, and yield after how many seconds the one
    on ``asked`` answers with it. Nobody waits between the questions, so that an answer that is kept would show."""
    task = operator_task("matmul", {"m": 96, "n": 80, "k": 72})
    conditions = {"device_key": HERE.device.key, "toolchain_key": HERE.toolchain.key, "profile": str(HERE.profile)}
    path = f"/v1/schedules/best?{urlencode({'workload_key': task.workload_key, **conditions})}"
    with (
        RecordStore(f"sqlite:///{folder}/better.sqlite3") as scratch,
        Client(f"http://127.0.0.1:{told}", token=admin) as client,
    ):
        for number in range(ROUNDS):
            name, seconds = f"better{number}", 1e-4 / (number + 1)
            keep_job(scratch, name, [task], 0)
            with scratch.database.writing() as connection:
                record_trial(connection, new_trial(name, 0, 0, task.workload_key, Timed((seconds,) * 3)))
            client.import_records(scratch.export_lines())
            yield _shown_after(asked, path, key, seconds)


def _shown_after(port: int, path: str, key: str, seconds: float) -> float:
    connection, began = http.client.HTTPConnection("127.0.0.1", port), time.perf_counter()
    while time.perf_counter() - began < LONGEST_SECONDS:
        connection.request("GET", path, headers={"Authorization": f"Bearer {key}"})
        answer = connection.getresponse()
        body = answer.read().decode()
        if answer.status == 200 and f'"seconds":{seconds!r}' in body:
            break
        assert answer.status in (200, 404), body
    return time.perf_counter() - began
