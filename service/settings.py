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


def config_folder() -> Path:
    """Return the folder where this user configures Tilewright, by the XDG base directory rules."""
    base = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(base) / "tilewright"


TOKEN = re.compile(r"[!-~]{16,512}")


def _checked_token(token: SecretStr) -> SecretStr:
    if not TOKEN.fullmatch(token.get_secret_value()):
        raise ValueError("a token is 16 to 512 visible ASCII characters")
    return token


def _checked_folder(folder: str) -> str:
    if folder and not Path(folder).is_dir():
        raise ValueError(f"{folder} is no folder")
    return folder


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
        default=None, description="the secret of bundles that were signed by HMAC, before there were key pairs"
    )
    release_key_file: str = Field(
        default="",
        description="the private key (Ed25519, PEM) that releases are signed with; made where it is missing. Empty: "
        "beside an embedded database",
    )
    release_public_key: str | None = Field(
        default=None, description="the public key of the service whose bundles a client takes"
    )
    token_file: str = Field(
        default_factory=lambda: str(config_folder() / "tokens"),
        description="the file where commands find the tokens of services: lines of an address and a token, mode 0600",
    )
    share_records: bool = Field(
        default=False,
        description="whether tenants share records, workloads and look-ups; jobs are of their tenant alone in any case",
    )
    key_requests_per_second: Annotated[float, Field(gt=0, le=1e6)] | None = Field(
        default=None, description="how many requests a key may send, on average, unless it has a limit of its own"
    )
    oidc_issuer: str | None = Field(
        default=None, description="the OpenID provider that people sign in with: the address that its tokens name"
    )
    oidc_client_id: str = Field(default="", description="the name under which the provider knows this service")
    oidc_client_secret: SecretStr | None = Field(default=None, description="the secret of this service there")
    oidc_tenant_claim: str = Field(
        default="tilewright_tenant", description="the claim of an identity token that names a person's tenant"
    )
    oidc_admins: tuple[str, ...] = Field(
        default=(), description="subjects (sub) of the people who administer this service; others may read and submit"
    )
    accept_code: bool = Field(
        default=False,
        description="whether Triton kernels are taken: their source is code, which worker children run in a sandbox",
    )
    workload_points: Annotated[int, Field(ge=1)] = Field(
        default=1 << 46, description="how often the bodies of a workload may be evaluated"
    )
    workload_reference_seconds: Annotated[float, Field(gt=0)] = Field(
        default=3600.0, description="how long its float64 reference may take, as it is estimated"
    )
    workload_bytes: Annotated[int, Field(ge=1)] = Field(
        default=512 << 30, description="how much memory its inputs and its reference may take on the host"
    )
    workload_nodes: Annotated[int, Field(ge=1)] = Field(
        default=20_000, description="how many nodes its expressions may have together"
    )
    artefact_bytes: Annotated[int, Field(ge=0)] = Field(
        default=4 << 30, description="how much room the binaries of the fastest records may take in the database"
    )
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["text", "json"] = "text"
    run_jobs: bool = Field(default=True, description="whether this process runs jobs, or only keeps and answers")
    lease_seconds: Annotated[float, Field(ge=1, le=3600)] = Field(
        default=15.0, description="how long a task worker that does not answer keeps its task and its device"
    )
    ray_address: str = Field(default="", description="the Ray cluster whose devices are used; empty: one of our own")
    lock_folder: Annotated[str, AfterValidator(_checked_folder)] = Field(
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
