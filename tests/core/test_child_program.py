"""A child dies with its parent from its first moment on, also while it loads what it is to do."""

import json
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tilewright.core.child_program import command
from tilewright.service import task_worker_pool
from tilewright.workers import child, probe

END_SECONDS = 60.0
PARENT = """
import json, subprocess, sys, time
from tilewright.core.child_program import command
subprocess.Popen(command(*json.loads(sys.argv[1])), stdin=subprocess.DEVNULL, start_new_session=True)
time.sleep(600)
"""


@pytest.mark.parametrize(
    ("program", "loads"),
    [(task_worker_pool.PROGRAM, "structlog"), (probe.CLUSTER_PROGRAM, "ray"), (child.PROGRAM, "resource")],
)
def test_a_child_whose_parent_is_killed_while_it_loads_its_program_dies(
    tmp_path: Path, program: str, loads: str
) -> None:
    """It is at a module that takes for ever to load."""
    planted = tmp_path / f"{loads}.py"
    planted.write_text("import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(600)\n")
    environment = {"PYTHONPATH": ":".join([str(tmp_path), *(p for p in sys.path if p)])}
    words = [sys.executable, "-c", PARENT, json.dumps([program, 0])]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment) as parent:
        assert parent.stdout is not None
        loading = psutil.Process(int(parent.stdout.readline()))
        assert program in loading.cmdline()
        parent.kill()
    assert not psutil.wait_procs([loading], timeout=END_SECONDS)[1]


def test_a_child_whose_parent_died_before_it_could_ask_ends_at_once(tmp_path: Path) -> None:
    """The parent that the command names is not its parent any more: init is, or somebody else."""
    (tmp_path / "never.py").write_text("raise SystemExit('loaded')\n")
    words = command("never")
    words[words.index("tilewright.core.child_program") + 1] = "1"
    environment = {"PYTHONPATH": ":".join([str(tmp_path), *(p for p in sys.path if p)])}
    ended = subprocess.run(words, env=environment, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout, ended.stderr) == (1, "", "")
