"""Does the main job: start the service, submit a tuning job over its REST API, follow it, and ask for the result.

``make demo`` runs this. The service is a process of its own, as a user would start it, on a SQLite database of its own,
so that it disturbs no other service. Where a service runs on that database already, the demo speaks to that one. What
was measured stays in the database.
"""

import argparse
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from tilewright.api.client import Client, operator_task
from tilewright.api.client_errors import Unreachable
from tilewright.api.local_service import find_service
from tilewright.cli.follow import follow
from tilewright.cli.tables import best_panel
from tilewright.core.budget import Budget
from tilewright.service.settings import Settings, state_folder
from tilewright.service.views import JobState

_START_SECONDS = 60


def main() -> int:
    """Return 0 when a schedule was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=1024, help="the extent of the square matrix product")
    parser.add_argument("--trials", type=int, default=96)
    parser.add_argument("--seconds", type=float, default=90)
    parser.add_argument("--database", type=Path, default=state_folder() / "demo.sqlite3", help="an SQLite file")
    given = parser.parse_args()
    console = Console(highlight=False)
    database = given.database.absolute()
    settings = Settings(database_url=f"sqlite:///{database}")
    with service_on(settings, console) as client:
        shape = {"m": given.size, "n": given.size, "k": given.size}
        job = client.submit(operator_task("matmul", shape), budget=Budget(given.trials, given.seconds))
        console.print(
            f"job {job.id}: matmul float32 {given.size}^3, at most {given.trials} trials or {given.seconds:.0f} s"
        )
        job = follow(client, job, console)
        task = job.tasks[0]
        console.print(best_panel(task))
        if job.state is not JobState.SUCCEEDED or task.best is None:
            console.print(f"job {job.state.value}: {job.error or task.failures}")
            return 1
        found = client.best(task.workload_key)
        console.print(f"served again: record {found.record_id}, match {', '.join(found.match)}")
    command = f"{sys.prefix}/bin/tilewright --database {database}"
    console.print("\n[bold]next[/bold]")
    console.print(f"  ask again   {command} best {task.workload_key}", soft_wrap=True)
    console.print(f"  every layer {command} explain --record {found.record_id}", soft_wrap=True)
    console.print(
        f"  dashboard   http://{settings.host}:{settings.port}/jobs/{job.id}   (while {command} serve runs)",
        soft_wrap=True,
    )
    return 0


@contextmanager
def service_on(settings: Settings, console: Console) -> Iterator[Client]:
    """Give a client of the service on the demo's database: of one that runs already, or of a child process."""
    running = find_service(settings)
    if running is not None and running.lasting:
        console.print(f"a service runs on {running.url}")
        with Client(running.url) as client:
            yield client
        return
    port = settings.port if _is_free(settings.host, settings.port) else _free_port(settings.host)
    console.print(f"starting the service on http://{settings.host}:{port} …")
    command = [sys.executable, "-m", "tilewright.cli", "serve", "--host", settings.host, "--port", str(port)]
    environment = {**os.environ, "TILEWRIGHT_DATABASE_URL": settings.database_url, "TILEWRIGHT_LOG_LEVEL": "warning"}
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment)
    try:
        with Client(f"http://{settings.host}:{port}") as client:
            _wait_until_ready(client, server)
            yield client
    finally:
        server.send_signal(signal.SIGINT)
        try:
            server.wait(20)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def _wait_until_ready(client: Client, server: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + _START_SECONDS
    while True:
        try:
            if client.ready().ready:
                return
        except Unreachable:
            pass
        if server.poll() is not None:
            raise SystemExit(f"the service ended with code {server.returncode}")
        if time.monotonic() > deadline:
            raise SystemExit(f"the service was not ready within {_START_SECONDS} s")
        time.sleep(0.1)


def _is_free(host: str, port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def _free_port(host: str) -> int:
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    sys.exit(main())
