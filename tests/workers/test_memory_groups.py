"""Children have control groups with memory limits, where this process may make groups."""

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tilewright.core.cgroups import ControlGroups
from tilewright.core.schedule import Schedule
from tilewright.core.target import Profile
from tilewright.core.trial import Failed, Reason
from tilewright.runtime.devices import host_target
from tilewright.te.json import workload_to_json
from tilewright.tests.workers.faulty_kernels import add_one
from tilewright.tests.workers.test_sandbox import SETTINGS
from tilewright.workers import memory_groups
from tilewright.workers.builder_supervisor import BuilderSupervisor
from tilewright.workers.child_supervisor import WorkerSpec
from tilewright.workers.memory_groups import MemoryGroups
from tilewright.workers.probe import local_unit
from tilewright.workers.runner_supervisor import runner_memory_bytes

FOUND = MemoryGroups.find()
LIMIT = 256 << 20
real = pytest.mark.skipif(FOUND.folder is None, reason=FOUND.reason)


@pytest.fixture
def builder() -> Iterator[BuilderSupervisor]:
    made = BuilderSupervisor(WorkerSpec(host_target(), Profile(), 0, SETTINGS, local_unit("llvm")))
    made._memory_bytes = LIMIT  # below what the process may have, so that the group is what ends it
    yield made
    made.close()


@real
def test_a_child_over_the_limit_of_its_group_costs_its_candidate_alone(builder: BuilderSupervisor) -> None:
    def build(attack: str) -> object:
        schedule = Schedule.of("hostile", 1, {"attack": attack})
        return builder.build(workload_to_json(add_one()), schedule.to_json()).result

    assert not isinstance(build("none"), Failed)
    assert builder._child is not None and builder._child._group is not None
    group = builder._child._group.folder
    assert str(builder._child.process_id) in (group / "cgroup.procs").read_text().split()
    failed = build(f"touches {2 * LIMIT}")
    assert isinstance(failed, Failed) and failed.reason is Reason.RESOURCES
    assert failed.detail == "compile took over 256 MiB of memory and was killed"
    assert not group.exists() and not isinstance(build("none"), Failed)


@real
def test_what_a_child_starts_counts_with_it() -> None:
    group = FOUND.make(LIMIT)
    assert group is not None
    touch = (
        f"import subprocess, sys; input(); sys.exit(subprocess.call([sys.executable, '-c', 'b\"x\" * {2 * LIMIT}']))"
    )
    with subprocess.Popen([sys.executable, "-c", touch], stdin=subprocess.PIPE) as process:
        group.add(process.pid)
        assert not group.was_exceeded()
        process.communicate(b"\n")
    assert process.returncode != 0 and group.was_exceeded()
    group.remove()
    assert not group.folder.exists()


@real
def test_groups_that_killed_programs_left_are_removed() -> None:
    assert FOUND.folder is not None
    with subprocess.Popen(["true"]) as ended:
        pass
    left = FOUND.folder / f"{memory_groups.PREFIX}{ended.pid}-0"
    left.mkdir()
    assert MemoryGroups.find() == FOUND and not left.exists()


def test_the_log_says_which_limits_children_have(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(memory_groups, "_present", {})
    with caplog.at_level(logging.INFO, memory_groups.__name__):
        found = memory_groups.memory_groups()
        assert memory_groups.memory_groups() is found
    said = "by rlimits alone" if found.folder is None else f"by control groups in {found.folder}"
    assert [said in record.message for record in caplog.records] == [True]


def test_a_runner_may_have_most_of_what_is_there() -> None:
    spec = WorkerSpec(host_target(), Profile(), 0, SETTINGS, local_unit("llvm"))
    assert 0 < runner_memory_bytes(spec) < os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def version_2(folder: Path, processes: str, path: str = "/unit") -> ControlGroups:
    """Return a tree of version 2 made of plain files, in which this process is in the group ``path``."""
    group = folder / path[1:]
    group.mkdir(parents=True, exist_ok=True)
    for name, text in {"procs": processes, "controllers": "cpu memory", "subtree_control": ""}.items():
        (group / f"cgroup.{name}").write_text(text)
    own = folder / "own"
    own.write_text(f"0::{path}\n")
    return ControlGroups(folder, own)


def delegate(folder: Path) -> None:
    try:
        os.setxattr(folder, "user.delegate", b"1")
    except OSError:
        pytest.skip("files have no attributes here")


def test_a_group_that_is_not_ours_is_left_alone(tmp_path: Path) -> None:
    groups = version_2(tmp_path, str(os.getpid()))
    if os.getuid() == 0:  # other users own what they made, and may divide it
        found = MemoryGroups.find(groups)
        assert found.folder is None and "not delegated" in found.reason
    delegate(tmp_path / "unit")
    version_2(tmp_path, f"{os.getpid()}\n{os.getppid()}")
    found = MemoryGroups.find(groups)
    assert found.folder is None and f"other processes, such as {os.getppid()}" in found.reason
    assert (tmp_path / "unit" / "cgroup.subtree_control").read_text() == ""


def test_a_delegated_group_is_divided(tmp_path: Path) -> None:
    groups = version_2(tmp_path, str(os.getpid()))
    delegate(tmp_path / "unit")
    found = MemoryGroups.find(groups)
    assert (found.folder, found.version) == (tmp_path / "unit", 2)
    assert (tmp_path / "unit" / "main" / "cgroup.procs").read_text() == str(os.getpid())
    assert (tmp_path / "unit" / "cgroup.subtree_control").read_text() == "+memory"
    made = found.make(LIMIT)
    assert made is not None and (made.folder / "memory.max").read_text() == str(LIMIT)
    (made.folder / "memory.events").write_text("low 0\noom 2\noom_kill 1\n")
    assert made.was_exceeded()


def test_a_subgroup_of_systemd_is_divided_above(tmp_path: Path) -> None:
    groups = version_2(tmp_path, str(os.getpid()), "/unit/main")
    version_2(tmp_path, "")
    (tmp_path / "own").write_text("0::/unit/main\n")
    delegate(tmp_path / "unit")
    assert MemoryGroups.find(groups).folder == tmp_path / "unit"
