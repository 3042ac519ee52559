"""A build that attacks what is around it is refused in clear words, and the next one is built."""

import os
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tilewright.core.cgroups import ControlGroups
from tilewright.core.fleet import Unit
from tilewright.core.schedule import Schedule
from tilewright.core.target import Profile
from tilewright.core.trial import Failed, Reason
from tilewright.runtime.devices import host_target
from tilewright.te.json import workload_to_json
from tilewright.tests.contracts.test_executors import FAULTY
from tilewright.tests.workers.faulty_kernels import add_one
from tilewright.workers import landlock, sandbox, seccomp
from tilewright.workers.builder_supervisor import BuilderSupervisor
from tilewright.workers.child import MOST_LINES
from tilewright.workers.child_supervisor import WorkerSpec
from tilewright.workers.probe import local_unit
from tilewright.workers.settings import Deadlines, most_builders

pytestmark = pytest.mark.skipif(bool(sandbox.missing()), reason=f"this kernel lacks {', '.join(sandbox.missing())}")

SETTINGS = replace(FAULTY, builder="tilewright.tests.workers.hostile_builds:build", deadlines=Deadlines(compile=60.0))
DENIED = "Permission"
REFUSED = "not permitted"


@pytest.fixture(scope="module")
def builder() -> Iterator[BuilderSupervisor]:
    unit: Unit = local_unit("llvm")
    made = BuilderSupervisor(WorkerSpec(host_target(), Profile(), 0, SETTINGS, unit))
    yield made
    made.close()


def build(builder: BuilderSupervisor, attack: str) -> object:
    schedule = Schedule.of("hostile", 1, {"attack": attack})
    return builder.build(workload_to_json(add_one()), schedule.to_json()).result


def refusal(builder: BuilderSupervisor, attack: str) -> str:
    failed = build(builder, attack)
    assert isinstance(failed, Failed), attack
    assert "nothing stopped it" not in failed.detail, failed.detail
    return f"{failed.reason.value}: {failed.detail}"


def test_each_attack_is_refused_and_the_next_build_is_good(builder: BuilderSupervisor, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("password")
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as local:
        local.bind(str(tmp_path / "socket"))
        local.listen()
        attacks = {
            "forks": REFUSED,
            "runs": REFUSED,
            f"kills {os.getpid()}": REFUSED,
            "leaves": REFUSED,
            f"connects {server.getsockname()[1]}": REFUSED,
            "listens": REFUSED,
            f"speaks {tmp_path / 'socket'}": REFUSED,
            "rings": REFUSED,
            f"reads {secret}": DENIED,
            f"reads /proc/{os.getpid()}/environ": DENIED,
            "reads /etc/shadow": DENIED,
            f"lists {Path.home()}": DENIED,
            f"writes {tmp_path / 'new'}": DENIED,
            f"writes {Path(__file__)}": DENIED,
            "fills": "File too large",
            "allocates": Reason.RESOURCES.value,
        }
        for attack, words in attacks.items():
            assert words in refusal(builder, attack), attack
        child = builder._child
        assert child is not None and not isinstance(build(builder, "none"), Failed)
        assert builder._child is child  # none of them cost the child
    assert not (tmp_path / "new").exists() and secret.read_text() == "password"


def test_one_that_fills_the_disk_or_aborts_costs_its_child_alone(builder: BuilderSupervisor) -> None:
    folders: list[str | None] = []
    for attack, words in {"fills_by_parts": "MiB to files", "talks": "too", "aborts": "SIGABRT"}.items():
        builder.start()
        assert builder._child is not None
        folders.append(builder._child._folder)
        assert words in refusal(builder, attack).replace("File too large", "too large")
        assert not isinstance(build(builder, "none"), Failed)
    assert folders[0] is not None and not os.path.exists(folders[0])


def test_lines_that_a_build_logs_are_kept_up_to_a_number(
    builder: BuilderSupervisor, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):  # for each build anew
        caplog.clear()
        assert "it logged" in refusal(builder, "logs")
        assert [record.message for record in caplog.records] == [f"line {n} another line" for n in range(MOST_LINES)]
        assert {(record.levelname, vars(record)["child"]) for record in caplog.records} == {("WARNING", "build")}


def test_limits_of_control_groups_are_found_at_every_level(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.write_text("0::/service/child\n")
    inner = tmp_path / "service" / "child"
    inner.mkdir(parents=True)
    assert ControlGroups(tmp_path, own).memory_bytes is None and ControlGroups(tmp_path, own).processors is None
    (inner / "memory.max").write_text("max\n")
    (inner / "memory.current").write_text("5\n")
    (inner.parent / "memory.max").write_text("1000\n")
    (inner.parent / "memory.current").write_text("400\n")
    (inner / "cpu.max").write_text("150000 100000\n")
    (inner.parent / "cpu.max").write_text("max 100000\n")
    found = ControlGroups(tmp_path, own)
    assert (found.memory_bytes, found.free_bytes, found.processors) == (1000, 600, 1.5)


def test_builders_are_as_many_as_processors_and_memory_allow(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.write_text("0::/service\n")
    (tmp_path / "service").mkdir()
    assert most_builders(64, ControlGroups(tmp_path, own)) == 64
    (tmp_path / "service" / "memory.max").write_text(f"{4 << 30}\n")
    assert most_builders(64, ControlGroups(tmp_path, own)) == 8
    assert most_builders(-1, ControlGroups(tmp_path, own)) == 1


def test_those_of_version_1_and_of_a_container_too(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.write_text("5:cpu,cpuacct:/docker/1\n4:memory:/docker/1\n0::/\n")  # the path is that of the host
    for name in ("cpu", "memory"):
        (tmp_path / name).mkdir()
    (tmp_path / "memory" / "memory.limit_in_bytes").write_text("4096\n")
    (tmp_path / "memory" / "memory.usage_in_bytes").write_text("96\n")
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("50000\n")
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    found = ControlGroups(tmp_path, own)
    assert (found.memory_bytes, found.free_bytes, found.processors) == (4096, 4000, 0.5)
    (tmp_path / "memory" / "memory.limit_in_bytes").write_text("9223372036854771712\n")
    assert ControlGroups(tmp_path, own).memory_bytes is None
    assert ControlGroups(tmp_path, tmp_path / "missing").processors is None


def test_a_kernel_without_the_means_is_told_of() -> None:
    assert landlock.version() > 0 and seccomp.is_available() and sandbox.missing() == ()
