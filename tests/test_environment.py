"""A comparison is immune to what the shell sets for numerical libraries."""

import json
import os
import subprocess
import sys
from pathlib import Path

from benchmarks.environment import clean

ROOT = Path(__file__).parents[1]
PROGRAM = """
import json
import os
from benchmarks.environment import clean, libraries
removed = clean()
import numpy
print(json.dumps([removed, libraries()]))
"""


def chosen(environment: dict[str, str]) -> tuple[dict[str, str], list[dict[str, object]]]:
    """What ``clean`` removed, and which libraries a new process has after it."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, cwd=ROOT, capture_output=True, text=True, check=True
    )
    removed, found = json.loads(done.stdout)
    return removed, found


def test_blas_chooses_the_kernels_that_it_would_choose_without_the_variable() -> None:
    bare = {name: value for name, value in os.environ.items() if name != "OPENBLAS_CORETYPE"}
    removed, found = chosen({**bare, "OPENBLAS_CORETYPE": "Haswell", "OMP_NUM_THREADS": "1"})
    assert removed["OPENBLAS_CORETYPE"] == "Haswell"
    assert found == chosen(bare)[1]
    assert any("architecture" in library for library in found)


def test_other_variables_stay() -> None:
    environment = {"PATH": "/bin", "OPENBLAS_NUM_THREADS": "1", "HOME": "/"}
    assert clean(environment) == {"OPENBLAS_NUM_THREADS": "1"}
    assert environment == {"PATH": "/bin", "HOME": "/"}
