"""Schemathesis on every route, with every check: no server error, no answer that the description does not have.

``TILEWRIGHT_FUZZ_EXAMPLES=500`` makes it a long run.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

CONFIG = Path(__file__).parent / "schemathesis.toml"
QUICK = """
# These take the same expressions as submitJob, whose boundaries are all walked.
[[operations]]
include-operation-id = ["estimateJob", "lookUpSchedule", "lookUpSchedules", "explainSchedule", "exportSchedule"]
phases.coverage.enabled = false
"""
EXAMPLES = int(os.environ.get("TILEWRIGHT_FUZZ_EXAMPLES", "3"))
SEED = 20_261_121


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_the_whole_api_under_fuzzing(address: str, tmp_path: Path) -> None:
    config = tmp_path / CONFIG.name
    config.write_text(CONFIG.read_text() + (QUICK if "TILEWRIGHT_FUZZ_EXAMPLES" not in os.environ else ""))
    command = [sys.executable, "-m", "schemathesis.cli", "--config-file", str(config), "run", f"{address}/openapi.json"]
    options = ["--checks=all", f"--seed={SEED}", f"--max-examples={EXAMPLES}", "--continue-on-failure", "--no-shrink"]
    ran = subprocess.run([*command, *options], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout[-8000:] + ran.stderr[-2000:]
    assert "68 selected / 69 total" in ran.stdout
