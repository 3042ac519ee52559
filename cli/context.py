"""What every command is given: where the service is, and how to print."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from pydantic import BaseModel
from rich.console import Console

from ..api.client import Client
from ..api.server import running
from ..service.settings import Settings


@dataclass(frozen=True, slots=True)
class Context:
    """``url``: a running service, else the command runs one of its own on the database of ``settings``."""

    settings: Settings
    url: str | None
    as_json: bool
    console: Console

    @contextmanager
    def client(self) -> Iterator[Client]:
        """A client of the running service, or of one on a free loopback port that ends with the command.

        Raises StoreError when the database cannot be opened (another process may hold it), Unreachable later.
        """
        if self.url is not None:
            with Client(self.url) as client:
                yield client
        else:
            own = self.settings.model_copy(update={"host": "127.0.0.1", "port": 0, "log_level": "warning"})
            with running(own) as address, Client(address) as client:
                yield client

    @property
    def dashboard(self) -> str:
        """The address under which the dashboard is, or will be once ``tilewright serve`` runs."""
        return self.url or f"http://{self.settings.host}:{self.settings.port}"

    def print_json(self, value: BaseModel | dict[str, object] | list[object]) -> None:
        """One JSON document on standard output, for programs."""
        if isinstance(value, BaseModel):
            text = value.model_dump_json(indent=2, by_alias=True)
        else:
            text = json.dumps(value, indent=2)
        sys.stdout.write(text + "\n")
