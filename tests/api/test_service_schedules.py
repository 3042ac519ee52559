"""Schedules for whole models, asked from a running service."""

import logging

import pytest

from tilewright.db.store import RecordStore
from tilewright.te.key import workload_key
from tilewright.te.operators import OPERATORS
from tilewright.tests.api.filled import keep_job, operator_task
from tilewright.torch_backend.service_schedules import ServiceSchedules


def test_known_workloads_are_found_and_others_are_not(store: RecordStore, address: str) -> None:
    parameters: dict[str, object] = {"m": 24, "n": 40, "k": 56}
    keep_job(store, "for_schedules", [operator_task("matmul", parameters)], 8)
    known = workload_key(OPERATORS["matmul"].workload(parameters))
    found = ServiceSchedules(address).find([known, "0" * 64])
    assert set(found) == {known} and found[known].sketch == "cpu_loops"


def test_a_service_that_does_not_answer_knows_nothing(caplog: pytest.LogCaptureFixture) -> None:
    schedules = ServiceSchedules("http://127.0.0.1:9")
    with caplog.at_level(logging.WARNING, "tilewright"):
        assert schedules.find(["0" * 64, "1" * 64]) == {}
    assert caplog.text.count("no schedules from") == 1
