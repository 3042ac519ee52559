"""The fixture of what starts commands."""

from collections.abc import Iterator

import pytest

from tilewright.tests.service.fork_server import ForkServer


@pytest.fixture(scope="session")
def forks() -> Iterator[ForkServer]:
    """A process that has imported the command line and what a service needs, with all sketches."""
    with ForkServer(("tilewright.cli.main", "tilewright.api.server", "tilewright.cost_model.features"), {}) as server:
        yield server
