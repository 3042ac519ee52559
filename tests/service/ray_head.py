"""The head of a Ray cluster, as ``ray start --head`` starts it: its only node."""

import subprocess
import sys
from pathlib import Path
from typing import Self

import psutil

END_SECONDS = 60.0


class RayHead:
    """It runs inside the block. It demands a token by Ray's rule: where there is one in this environment."""

    def __init__(self, port: int, processors: int = 2) -> None:
        ray = Path(sys.executable).parent / "ray"
        options = [f"--port={port}", f"--num-cpus={processors}", "--include-dashboard=false", "--disable-usage-stats"]
        options += ["--include-log-monitor=false"]
        self._command = [str(ray), "start", "--head", "--block", *options]
        self._process: psutil.Popen | None = None
        self.address = f"127.0.0.1:{port}"

    def start(self) -> None:
        """Start it, and return at once."""
        self._process = psutil.Popen(self._command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def kill(self) -> None:
        """End all its processes at once, as when its machine is lost."""
        assert self._process is not None
        family = [*self._process.children(recursive=True), self._process]
        for process in family:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        psutil.wait_procs(family, timeout=END_SECONDS)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
