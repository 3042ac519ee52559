"""Kernels of users on a GPU: tuned by a real service, served to a second process, and right."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tilewright.api.client import Client
from tilewright.triton_backend import autotune

pytest.importorskip("torch")
pytest.importorskip("triton")
pytestmark = pytest.mark.cuda

SECOND = """
import json, sys
from tilewright.tests.triton.gpu_programs import Program
from tilewright.triton_backend import autotune

program = Program(sys.argv[1], autotune, service=sys.argv[2], submit=False)
error = program.error()
measured = hasattr(program.tuner, "bench_time")
print(json.dumps({"error": error, "measured": measured, "configuration": program.configuration()}))
"""


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    from tilewright.tests.triton.gpu_programs import service

    before = os.environ.get("XDG_CACHE_HOME")
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))
    with service(str(tmp_path_factory.mktemp("service"))) as found:
        yield found
    os.environ.pop("XDG_CACHE_HOME") if before is None else os.environ.update(XDG_CACHE_HOME=before)


@pytest.mark.parametrize("name", ["add", "matmul", "softmax"])
def test_a_kernel_is_tuned_served_to_a_second_process_and_right(name: str, address: str, tmp_path: Path) -> None:
    from tilewright.tests.triton.gpu_programs import Program, wait_for_jobs

    program = Program(name, autotune, service=address, meanwhile="first")
    assert program.error() < 5e-3  # with the first configuration, while the service works
    assert set(wait_for_jobs(address)) == {"succeeded"}
    with Client(address) as client:
        newest = client.job(next(iter(client.jobs())).id)
        best = newest.tasks[0].best
        assert best is not None and best.schedule.sketch == "cuda_triton"
        assert best.evidence.environment["oracle_configuration"] == 0.0
        trials = list(client.trials(newest.id))
    timed = [trial for trial in trials if trial.outcome.kind == "timed"]
    assert len(timed) >= len(program.tuner.configs) - 1  # one configuration may not fit on this device
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", SECOND, name, address], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert told["error"] < 5e-3 and not told["measured"]
    for knob, value in best.schedule.knobs.items():
        assert f"{knob}: {value}" in told["configuration"]
