"""Schemathesis on every route of a service that wants keys, with every check: no server error, no answer that the
description does not have.

``TILEWRIGHT_FUZZ_EXAMPLES=500`` makes it a long run.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from pydantic import SecretStr

from tilewright.api.app import create_app
from tilewright.service.service import Service
from tilewright.service.settings import Settings
from tilewright.tests.api.serving import running

CONFIG = Path(__file__).parent / "schemathesis.toml"
QUICK = """
# These take the same bodies as submitJob and tuneModel, whose boundaries are all walked.
[[operations]]
include-operation-id = [
  "estimateJob", "estimateModelJob", "lookUpSchedule", "lookUpSchedules", "explainSchedule", "exportSchedule",
  "addModel",
]
phases.coverage.enabled = false
"""
LONG = "TILEWRIGHT_FUZZ_EXAMPLES" in os.environ
EXAMPLES = int(os.environ.get("TILEWRIGHT_FUZZ_EXAMPLES", "3"))
SEED = 20_261_121


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """The address of a service that wants keys, and a key that may do everything."""
    secret = SecretStr("a-secret-of-sixteen-and-more")
    path = tmp_path_factory.mktemp("fuzzed") / "t.sqlite3"
    settings = Settings(database_url=f"sqlite:///{path}", run_jobs=False, release_key=secret, token=secret)
    with Service.open(settings) as service, running(create_app(service, settings)) as address:
        yield address, service.users.create_key("fuzzer", ["admin"])[1]


def flat(document: Any) -> Any:
    """The description with expressions that are one operation of axes: the boundaries of every operation are walked
    once, and not again at every operand of every other. ``tests/api/test_malformed.py`` sends broken nested ones."""
    schemas = document["components"]["schemas"]
    for name, leaf in (("Expression", {"axis": "i"}), ("Index", 0)):
        nested = json.dumps({"$ref": f"#/components/schemas/{name}"})
        schemas[name] = json.loads(json.dumps(schemas[name]).replace(nested, json.dumps({"const": leaf})))
    return document


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_the_whole_api_under_fuzzing(guarded: tuple[str, str], tmp_path: Path) -> None:
    address, key = guarded
    config, description = tmp_path / CONFIG.name, tmp_path / "openapi.json"
    config.write_text(CONFIG.read_text() + ("" if LONG else QUICK))
    answer = httpx2.get(
        f"{address}/openapi.json", headers={"Authorization": f"Bearer {key}"}, trust_env=False, timeout=120
    )
    description.write_text(json.dumps(answer.json() if LONG else flat(answer.json())))
    command = [sys.executable, "-m", "schemathesis.cli", "--config-file", str(config), "run", str(description)]
    command += ["--url", address, "--header", f"Authorization: Bearer {key}"]
    options = ["--checks=all", f"--seed={SEED}", f"--max-examples={EXAMPLES}", "--continue-on-failure", "--no-shrink"]
    options.append("--request-timeout=120")  # a machine that is busy with other tests answers late
    ran = subprocess.run([*command, *options], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout[-8000:] + ran.stderr[-2000:]
    assert "82 selected / 84 total" in ran.stdout
