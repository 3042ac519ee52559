"""Defines the settings. Only this file reads the environment (``TILEWRIGHT_…``)."""

import os
import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict


def state_folder() -> Path:
    """Return the folder where this user's Tilewright keeps its state, by the XDG base directory rules."""
    base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(base) / "tilewright"


TOKEN = re.compile(r"[!-~]{16,512}")


def _checked_token(token: SecretStr) -> SecretStr:
    if not TOKEN.fullmatch(token.get_secret_value()):
        raise ValueError("a token is 16 to 512 visible ASCII characters")
    return token


class Settings(BaseSettings):
    """Every setting can be set by an environment variable (``TILEWRIGHT_DATABASE_URL=…``) or in code."""

    model_config = SettingsConfigDict(env_prefix="TILEWRIGHT_", extra="forbid", frozen=True, hide_input_in_errors=True)

    database_url: str = Field(
        default_factory=lambda: f"sqlite:///{state_folder() / 'tilewright.sqlite3'}",
        description="sqlite:///PATH (embedded, one process) or postgresql://USER:PASSWORD@HOST/NAME",
    )
    url: str | None = Field(
        default=None,
        description="the service that commands speak to; without it, the one that runs on the database, or their own",
    )
    host: str = Field(default="127.0.0.1", description="address the HTTP server listens on")
    port: Annotated[int, Field(ge=0, le=65535)] = 8421
    allowed_hosts: tuple[str, ...] = Field(
        default=("127.0.0.1", "localhost", "[::1]"),
        description="Host headers that are answered (against DNS rebinding)",
    )
    token: Annotated[SecretStr, AfterValidator(_checked_token)] | None = Field(
        default=None,
        description="the secret that clients show; a service beyond this machine's loopback address needs one",
    )
    release_key: Annotated[SecretStr, AfterValidator(_checked_token)] | None = Field(
        default=None, description="the secret that releases are signed with; whoever verifies a bundle has it too"
    )
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["text", "json"] = "text"
    run_jobs: bool = Field(default=True, description="whether this process runs jobs, or only keeps and answers")
    lease_seconds: Annotated[float, Field(ge=1, le=3600)] = Field(
        default=15.0, description="how long a task worker that does not answer keeps its task and its device"
    )
    ray_address: str = Field(default="", description="the Ray cluster whose devices are used; empty: one of our own")
    lock_folder: str = Field(
        default="", description="where the lock files of devices lie; containers of one host should share it"
    )
    compile_seconds: Annotated[float, Field(gt=0, le=3600)] = Field(
        default=60.0, description="limit for compiling one candidate; past it the candidate is a time-out"
    )
    check_seconds: Annotated[float, Field(gt=0, le=3600)] = Field(default=20.0, description="limit for its check")
    time_seconds: Annotated[float, Field(gt=0, le=3600)] = Field(default=30.0, description="limit for timing it")
    minimum_free_bytes: Annotated[int, Field(ge=0)] = Field(
        default=64 << 20, description="with less free disk than this the service says that it is not ready"
    )
    keep_event_days: Annotated[float, Field(gt=0)] | None = Field(
        default=90.0, description="after so long the events of single trials of jobs that ended go; None: never"
    )
    keep_key_days: Annotated[float, Field(gt=0)] | None = Field(
        default=90.0, description="after so long idempotency keys go; None: never"
    )
    keep_trial_days: Annotated[float, Field(gt=0)] | None = Field(
        default=None, description="after so long trials of jobs that ended go, but for winners; None: never"
    )
    history_records: Annotated[int, Field(ge=0, le=1_000_000)] = Field(
        default=20_000, description="how many records of earlier jobs a model is trained from"
    )

    @property
    def shown_token(self) -> str | None:
        """What a client of the service has to show; None where there is no token."""
        return None if self.token is None else self.token.get_secret_value()
