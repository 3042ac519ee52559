"""The first answer of a model in a process: ATen gives it, and what is done in the background waits for it."""

import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.torch_backend.models import latest  # noqa: E402
from tilewright.core.schedule import Schedule  # noqa: E402
from tilewright.torch_backend import backend  # noqa: E402
from tilewright.torch_backend.options import Options  # noqa: E402
from tilewright.torch_backend.schedules import NoSchedules  # noqa: E402

WAIT_SECONDS = 60
HELD_SECONDS = 0.5
"""So long a call lasts in which nothing may be built."""


class Asked(NoSchedules):
    """Nobody has tuned anything. It notes when a program that is built asks."""

    def __init__(self) -> None:
        self.event = threading.Event()

    def find(self, workload_keys: Sequence[str]) -> Mapping[str, Schedule]:
        self.event.set()
        return {}


def slow_call(asked: Asked, found: list[bool]) -> Any:
    """An operator that torch alone computes. It takes a while, and notes whether anything was built meanwhile."""

    def run(x: Any) -> Any:
        found.append(asked.event.wait(HELD_SECONDS))
        return x + 1

    operator = torch.library.custom_op("tilewright_tests::slow", run, mutates_args=(), schema="(Tensor x) -> Tensor")
    operator.register_fake(torch.empty_like)
    return operator


def built() -> None:
    """Wait until nothing is built in the background."""
    for thread in threading.enumerate():
        if thread.name == "tilewright-build":
            thread.join(WAIT_SECONDS)
            assert not thread.is_alive()


@pytest.mark.parametrize("breaks", [False, True])
def test_nothing_is_built_before_the_first_answer(breaks: bool) -> None:
    asked, found = Asked(), list[bool]()
    slow = slow_call(asked, found)

    def model(x: Any) -> Any:
        y = torch.relu(x @ x)
        if breaks:
            torch._dynamo.graph_break()
        return slow(y) @ x

    torch._dynamo.reset()
    run = torch.compile(model, backend=lambda m, x: backend.compile_with(m, x, Options(), asked))
    x = torch.randn(8, 8)
    expected = (torch.relu(x @ x) + 1) @ x
    with torch.no_grad():
        torch.testing.assert_close(run(x), expected)
        assert found == [False]
        built()
        assert asked.event.is_set() and latest().state == "unverified" and latest().kernels
        for _ in range(2):
            torch.testing.assert_close(run(x), expected)
    assert latest().state == "ready"


def test_a_program_that_nobody_calls_is_built() -> None:
    asked = Asked()
    module = torch.fx.symbolic_trace(lambda x: (torch.relu(x @ x),))
    with torch.no_grad():
        run = backend.compile_with(module, [torch.randn(8, 8)], Options(), asked)
    assert asked.event.wait(WAIT_SECONDS)
    built()
    assert run is not None and latest().kernels


def test_the_first_answer_does_not_wait_for_a_service() -> None:
    def model(x: Any) -> Any:
        return torch.relu(x @ x)

    torch._dynamo.reset()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        options = {"service": f"http://127.0.0.1:{listening.getsockname()[1]}"}
        run = torch.compile(model, backend=backend.tilewright, options=options)
        x = torch.randn(8, 8)
        with torch.no_grad():
            torch.testing.assert_close(run(x), model(x))
        connection, _ = listening.accept()
        connection.recv(1)  # it asks now, and nobody answers
        assert latest().state == "building"
        connection.close()
    built()
    assert latest().state == "unverified" and latest().kernels


def test_the_packages_of_the_client_are_imported_after_the_first_answer() -> None:
    script = """
import sys, threading, torch

@torch.library.custom_op("tilewright_tests::look", mutates_args=())
def look(x: torch.Tensor) -> torch.Tensor:
    print("httpx2" in sys.modules)
    return x.clone()

look.register_fake(torch.empty_like)
run = torch.compile(lambda x: look(x @ x), backend="tilewright", options={"service": "http://127.0.0.1:9"})
run(torch.randn(8, 8))
for thread in threading.enumerate():
    if thread.name == "tilewright-build":
        thread.join()
print("httpx2" in sys.modules)
"""
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert said.stdout.split() == ["False", "True"], said.stderr
