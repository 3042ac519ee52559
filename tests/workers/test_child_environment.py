"""Children get what they need of the environment: no secret of the parent, and no device but their own."""

from dataclasses import replace
from pathlib import Path

import pytest

from tilewright.runtime.devices import host_target
from tilewright.tests.contracts.test_executors import children_of, marked
from tilewright.tests.workers.faulty_kernels import add_one, schedule
from tilewright.workers.child_environment import ray_variables, scrubbed, visible
from tilewright.workers.local import LocalExecutor


def environments(marker: Path) -> dict[str, dict[str, str]]:
    """The environment of each child, as the kernel knows it, by what the child does."""
    found = {}
    for child in children_of(marker):
        entries = (Path("/proc") / str(child.pid) / "environ").read_bytes().decode().split("\0")
        environment = dict(entry.split("=", 1) for entry in entries if entry)
        found[environment["OMP_NUM_THREADS"] + str(child.pid)] = environment
    return found


def test_no_child_sees_the_address_of_the_database_or_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_DATABASE_URL", "postgresql://tilewright:secret@127.0.0.1/tilewright")
    monkeypatch.setenv("PGPASSWORD", "secret")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    monkeypatch.setenv("CUDA_CACHE_DISABLE", "1")
    with LocalExecutor(host_target(), settings=replace(marked(tmp_path), builders=2)) as executor:
        list(executor.measure(add_one(), [schedule("good")]))
        found = environments(tmp_path)
    assert len(found) == 4  # two builders, the runner, and the one that computes its data
    for environment in found.values():
        assert not any("secret" in value for value in environment.values()) and "PGPASSWORD" not in environment
        assert not [name for name in environment if name.startswith(("TILEWRIGHT_", "RAY_"))]
        assert environment["CUDA_VISIBLE_DEVICES"] == "" and environment["CUDA_CACHE_DISABLE"] == "1"
        assert environment["PATH"] and environment["PYTHONPATH"]


def test_what_is_let_through_is_listed() -> None:
    given = {"PATH": "/bin", "LC_ALL": "C", "NVIDIA_X": "1", "AWS_SECRET_ACCESS_KEY": "s", "CUDA_VISIBLE_DEVICES": "0"}
    assert scrubbed(given) == {"PATH": "/bin", "LC_ALL": "C", "NVIDIA_X": "1", "CUDA_VISIBLE_DEVICES": ""}


def test_a_gpu_is_shown_by_its_uuid() -> None:
    assert visible("cuda", "GPU-1") == {"CUDA_VISIBLE_DEVICES": "GPU-1"} and visible("llvm", "CPU-1") == {}


def test_who_has_a_token_shows_it_to_a_ray_cluster(tmp_path: Path) -> None:
    """Ray looks for it in the same three places."""
    home = {"HOME": str(tmp_path), "PGPASSWORD": "secret"}
    assert ray_variables(home) == {}
    assert ray_variables({**home, "RAY_AUTH_TOKEN": "t"}) == {"RAY_AUTH_TOKEN": "t", "RAY_AUTH_MODE": "token"}
    (tmp_path / ".ray").mkdir()
    token = tmp_path / ".ray" / "auth_token"
    token.write_text("t")
    assert ray_variables(home) == {"RAY_AUTH_MODE": "token"}
    assert ray_variables({**home, "RAY_AUTH_MODE": "disabled"}) == {"RAY_AUTH_MODE": "disabled"}
    elsewhere = {"RAY_AUTH_TOKEN_PATH": str(token)}
    assert ray_variables(elsewhere) == {**elsewhere, "RAY_AUTH_MODE": "token"}
    missing = {**home, "RAY_AUTH_TOKEN_PATH": str(tmp_path / "missing")}
    assert "RAY_AUTH_MODE" not in ray_variables(missing)
