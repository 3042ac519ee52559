"""What every command is given: where the service is, and how to print."""

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from pydantic import BaseModel
from rich.console import Console, RenderableType

from ..api.client import Client
from ..api.credentials import stored_token
from ..api.local_service import local_service
from ..core.errors import InvalidParameter
from ..service.settings import Settings


@dataclass(frozen=True, slots=True)
class Connection:
    """A client of a service. ``lasting`` says whether the service goes on after the command."""

    client: Client
    lasting: bool


@dataclass(frozen=True, slots=True)
class CommandContext:
    """``url`` is a running service. Without it a command speaks to the service that runs on the database of
    ``settings``; where there is none, the command runs one of its own, which ends with it."""

    settings: Settings
    url: str | None
    as_json: bool
    console: Console

    @contextmanager
    def client(self) -> Iterator[Client]:
        """Give a client to a command that runs no jobs. A service of the command's own takes none either.

        Raises StoreError when the database cannot be opened. Calls of the client raise Unreachable.
        """
        with self._connection(runs_jobs=False) as connection:
            yield connection.client

    @contextmanager
    def job_connection(self, *, detach: bool = False) -> Iterator[Connection]:
        """Give a connection to a command that submits or follows jobs. A service of the command's own runs them.

        ``detach``: whether the command leaves before its job has ended. Raises InvalidParameter where it would leave
        a service of its own, and StoreError when the database cannot be opened. Calls of the client raise Unreachable.
        """
        with self._connection(runs_jobs=True) as connection:
            if detach and not connection.lasting:
                raise InvalidParameter(
                    "a job goes on without you only on a running service: start one (tilewright serve), or give --url",
                    field="detach",
                )
            yield connection

    @contextmanager
    def _connection(self, *, runs_jobs: bool) -> Iterator[Connection]:
        if self.url is not None:
            with Client(self.url, token=stored_token(self.url, self.settings)) as client:
                yield Connection(client, lasting=True)
        else:
            with local_service(self.settings, runs_jobs=runs_jobs) as service:
                with Client(service.url, token=self.settings.shown_token) as client:
                    yield Connection(client, service.lasting)

    def dashboard(self, connection: Connection) -> str:
        """Return the address under which the dashboard is, or will be once ``tilewright serve`` runs."""
        return connection.client.address if connection.lasting else f"http://{self.settings.host}:{self.settings.port}"

    def show(self, value: BaseModel | Iterable[BaseModel], shown: RenderableType) -> None:
        """Print ``value`` as JSON where the user asked for that, else ``shown``."""
        if self.as_json:
            self.print_json(value)
        else:
            self.console.print(shown)

    def print_json(self, value: BaseModel | Iterable[BaseModel] | Mapping[str, object]) -> None:
        """Print one JSON document on standard output, for programs."""
        if isinstance(value, BaseModel):
            text = value.model_dump_json(indent=2, by_alias=True)
        elif isinstance(value, Mapping):
            text = json.dumps(value, indent=2)
        else:
            text = json.dumps([one.model_dump(mode="json", by_alias=True) for one in value], indent=2)
        sys.stdout.write(text + "\n")
