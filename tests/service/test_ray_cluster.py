"""A service that times on the nodes of a Ray cluster by its address: ``ray start --head``, with a token."""

import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.ports import free_port
from tests.service.killing import KillableServer
from tests.service.ray_head import RayHead
from tilewright.core.errors import WorkerLost
from tilewright.workers.probe import cluster_units

pytestmark = [pytest.mark.ray, pytest.mark.timeout(900)]  # on a loaded machine Ray starts slowly
pytest.importorskip("ray")

WAIT_SECONDS = 400.0


def awaited(look: Callable[[], Any]) -> Any:
    end = time.monotonic() + WAIT_SECONDS
    while not (found := look()):
        assert time.monotonic() < end
        time.sleep(0.25)
    return found


def test_a_service_times_on_a_cluster_that_demands_a_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The service is there first: it says that no cluster answers, and the job waits until one does."""
    (tmp_path / "token").write_text(secrets.token_hex(32))
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    monkeypatch.setenv("RAY_NUM_REDIS_GET_RETRIES", "1")  # how often Ray asks a head that refuses it
    port = free_port()
    monkeypatch.setenv("TILEWRIGHT_RAY_ADDRESS", f"127.0.0.1:{port}")
    server = KillableServer(f"sqlite:///{tmp_path}/db.sqlite3", tmp_path / "log")

    def read(path: str) -> Any:
        answer = server.ask("GET", path)
        return answer[1] if answer is not None and answer[0] == 200 else {}

    server.start()
    try:
        server.wait_until_ready()
        task = {"operator": "matmul", "parameters": {"m": 16, "n": 16, "k": 16}}
        body = {"tasks": [task], "budget": {"trials": 4}, "strategy": "random", "executor": "ray"}
        submitted = server.ask("POST", "/v1/jobs", body)
        assert submitted is not None and submitted[0] == 201, submitted
        (warning,) = awaited(lambda: read("/readyz").get("warnings"))
        assert f"no Ray cluster answers at 127.0.0.1:{port}: [Errno 111] Connection refused" in warning
        with RayHead(port) as head:
            path = f"/v1/jobs/{submitted[1]['id']}"
            awaited(lambda: read(path).get("state") in ("succeeded", "failed"))
            job = read(path)
            assert job["state"] == "succeeded" and job["tasks"][0]["trials"] == 4 and job["tasks"][0]["best"], job
            assert not read("/readyz")["warnings"]
            (unit,) = [u for u in read("/v1/units")["units"] if u["classes"][0] == "llvm"]
            assert unit["executor"] == "local"  # the processor is one unit, which the cluster reaches as well
            monkeypatch.delenv("RAY_AUTH_TOKEN_PATH")
            monkeypatch.setenv("HOME", str(tmp_path))
            with pytest.raises(WorkerLost, match="wants another token"):
                cluster_units(head.address)
    finally:
        server.kill()
