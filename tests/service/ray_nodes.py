"""A Ray cluster as supervisors keep it on several machines: a head without processors, and nodes that stand for hosts.

A node whose processes end is started again, as ``Restart=always`` of systemd does.
"""

import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import psutil

from tilewright.workers.child_environment import ray_variables
from tilewright.workers.ray_actor import HOST_LABEL

END_SECONDS = 60.0
CHECK_SECONDS = 0.5
STORE_BYTES = 80_000_000
SETTINGS = {
    "RAY_health_check_initial_delay_ms": "2000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "1000",
    "RAY_health_check_failure_threshold": "8",
    "RAY_gcs_rpc_server_reconnect_timeout_s": "10",
    "RAY_worker_niceness": "0",
}
"""A node is declared dead after about ten seconds, and gives the head up after as many. Ray's own niceness of 15 leaves
actors nothing of a processor that others want, too."""


class RayNode:
    """What ``ray start --block`` with these options keeps running."""

    def __init__(self, *options: str) -> None:
        ray = Path(sys.executable).parent / "ray"
        self._command = [str(ray), "start", "--block", "--disable-usage-stats", "--include-log-monitor=false", *options]
        self._process: psutil.Popen | None = None

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start it, and return at once."""
        quiet, environment = subprocess.DEVNULL, {**os.environ, **ray_variables(os.environ), **SETTINGS}
        self._process = psutil.Popen(self._command, stdout=quiet, stderr=quiet, env=environment)

    def processes(self) -> list[psutil.Process]:
        """What it started: Ray's own processes and the actors."""
        try:
            return [] if self._process is None else self._process.children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    def kill(self) -> None:
        """End all its processes at once, as when its machine is lost."""
        family = [*self.processes(), *([] if self._process is None else [self._process])]
        for process in family:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        psutil.wait_procs(family, timeout=END_SECONDS)


class RayCluster:
    """It runs inside the block. Each node has so many ``processors``; a host without a name is this one."""

    def __init__(self, port: int, hosts: Sequence[str] = ("one", "two"), processors: int = 1) -> None:
        self.address = f"127.0.0.1:{port}"
        store = f"--object-store-memory={STORE_BYTES}"
        self.head = RayNode("--head", f"--port={port}", "--num-cpus=0", "--include-dashboard=false", store)
        options = [f"--address={self.address}", f"--num-cpus={processors}", store]
        self.nodes = [RayNode(*options, *([f"--labels={HOST_LABEL}={host}"] if host else [])) for host in hosts]
        self._closing = threading.Event()
        self._changing = threading.Lock()
        self._supervisor = threading.Thread(target=self._supervise, daemon=True)

    def processes(self) -> list[psutil.Process]:
        """The processes of the nodes besides the head."""
        return [process for node in self.nodes for process in node.processes()]

    def lose_head(self, seconds: float) -> None:
        """Have no head for so long; then start another one at its address."""
        with self._changing:
            self.head.kill()
            self._closing.wait(seconds)
            self.head.start()

    def _supervise(self) -> None:
        while not self._closing.wait(CHECK_SECONDS):
            with self._changing:
                for node in (self.head, *self.nodes):
                    if not node.running:
                        node.start()

    def __enter__(self) -> Self:
        self._supervisor.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._supervisor.join()
        for node in (*self.nodes, self.head):
            node.kill()
