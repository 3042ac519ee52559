"""Keys: made once, checked cheaply, revoked at once, limited, noted; and clients that carry them."""

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from pydantic import SecretStr
from typer.testing import CliRunner

from tilewright.api import access
from tilewright.api.access import AccessControl, RateLimits
from tilewright.api.app import create_app
from tilewright.api.async_client import AsyncClient
from tilewright.api.client import Client, operator_task
from tilewright.api.client_errors import InvalidRequest, Missing, TokenRefused
from tilewright.api.credentials import store_token, stored_token
from tilewright.cli.main import app
from tilewright.core.budget import Budget
from tilewright.core.errors import InvalidParameter, StoreError
from tilewright.db.tables import api_keys
from tilewright.service.callers import ADMIN, READ, SUBMIT, Caller
from tilewright.service.service import Service
from tilewright.service.settings import Settings
from tilewright.service.users import Users
from tilewright.tests.api.filled import keep_job
from tilewright.tests.api.filled import operator_task as kept_task
from tilewright.tests.api.serving import running
from tilewright.tests.cli.commands import in_process

TOKEN = "correct-horse-battery"
MATMUL = operator_task("matmul", {"m": 4, "n": 4, "k": 4})


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("keys")
    settings = Settings(database_url=f"sqlite:///{folder}/t.sqlite3", run_jobs=False, token=SecretStr(TOKEN))
    with Service.open(settings) as opened:
        yield opened


@pytest.fixture(scope="module")
def address(service: Service) -> Iterator[str]:
    with running(create_app(service, service.settings)) as found:
        yield found


@pytest.fixture(scope="module")
def admin(address: str) -> Iterator[Client]:
    with Client(address, token=TOKEN) as client:
        yield client


def test_a_key_is_made_used_and_revoked(address: str, admin: Client, service: Service) -> None:
    made = admin.create_key("nightly", [SUBMIT, READ], tenant="team-a", days=1)
    assert made.secret.startswith(f"tw_{made.id}_") and made.scopes == (READ, SUBMIT) and made.expires_at
    with service._store.database.reading() as connection:  # only its hash is stored
        assert made.secret.split("_", 2)[2] not in str(connection.execute(api_keys.select()).all())
    with Client(address, token=made.secret) as client:
        assert (client.caller().name, client.caller().tenant) == ("nightly", "team-a")
        job = client.submit(MATMUL, tags=["x"])
        assert (job.owner, job.tenant, job.tags) == ("nightly", "team-a", ("x",))
        assert client.cancel(job.id).state == "cancelled"
        with pytest.raises(InvalidRequest, match="scope admin"):
            list(client.keys())
        (listed,) = [key for key in admin.keys() if key.id == made.id]
        assert listed.name == "nightly" and "secret" not in listed.model_dump()
        admin.revoke_key(made.id)
        with pytest.raises(
            TokenRefused, match="the key that was given is unknown here, was revoked, or has ended; this"
        ):
            client.caller()
    with Client(address) as nobody, pytest.raises(TokenRefused, match=r"^this service wants a key: Authorization: Bea"):
        nobody.caller()
    entries = {(entry.name, entry.action, entry.status) for entry in admin.audit()}
    assert {("token", "createKey", 201), ("nightly", "submitJob", 201), ("nightly", "listKeys", 403)} <= entries
    assert ("token", "revokeKey", 200) in entries and not any(action == "getCaller" for _, action, _ in entries)
    with pytest.raises(Missing):
        admin.revoke_key("0" * 12)
    for scopes, limit in ((["everything"], None), ([], None), ([READ], -1.0)):
        with pytest.raises(InvalidRequest):
            admin.create_key("x", scopes, requests_per_second=limit)


def test_a_key_that_another_process_revokes_is_refused_within_a_second(address: str, service: Service) -> None:
    key, secret = service.users.create_key("short", [READ])
    with Client(address, token=secret) as client:
        client.caller()
        service._store.keys.revoke(key.id)  # nobody tells the server
        end = time.monotonic() + 60
        with pytest.raises(TokenRefused):
            while time.monotonic() < end:
                client.caller()
    assert access.FRESH_SECONDS <= 1.0


def test_sessions_end_with_the_key_and_keys_with_their_time(service: Service) -> None:
    users = service.users
    key, secret = users.create_key("person", [READ], tenant="team-a")
    caller = users.verified(secret)
    assert caller is not None and caller == Caller("person", "team-a", frozenset({READ}), key.id)
    session = users.open_session(caller)
    found = users.verified(session)
    assert found is not None and (found.name, found.tenant, found.scopes) == ("person", "team-a", caller.scopes)
    assert users.verified(session[:-1] + "_") is None or session[-1] == "_"
    users.revoke(key.id)
    assert users.verified(session) is None and users.verified(secret) is None
    _, brief = users.create_key("brief", [READ], days=1e-9)
    assert users.verified(brief) is None
    assert not users.has_admin_key()
    users.create_key("root", [ADMIN], days=1e-9)
    assert not users.has_admin_key()
    users.create_key("root", [ADMIN])
    assert users.has_admin_key()


class Away:
    """Answers once, then as a database that is away, or that does not answer at all."""

    def __init__(self, users: Users, seconds: float) -> None:
        self.users, self.seconds, self.asked = users, seconds, 0

    def verified(self, secret: str) -> Caller | None:
        self.asked += 1
        if self.asked > 1:
            time.sleep(self.seconds)
            raise StoreError("the database is away")
        return self.users.verified(secret)


@pytest.mark.parametrize("seconds", [0.0, 1.0])
def test_a_good_key_is_believed_for_a_while_without_the_database(
    service: Service, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, secret = service.users.create_key("steady", [READ])
    away = Away(service.users, seconds)
    headers = {b"authorization": f"Bearer {secret}".encode()}

    async def ask() -> None:
        found = AccessControl(service.settings, away)  # type: ignore[arg-type]
        first = await found.caller_of(headers)
        assert first is not None and await found.caller_of(headers) is first and away.asked == 1
        monkeypatch.setattr(access, "FRESH_SECONDS", 0.0)
        assert await found.caller_of(headers) is first and away.asked == 2
        monkeypatch.setattr(access, "STALE_SECONDS", 0.0)
        with pytest.raises(StoreError):
            await found.caller_of(headers)

    asyncio.run(ask())


def test_a_key_sends_no_more_than_its_limit(address: str, admin: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    made = admin.create_key("limited", [READ], requests_per_second=0.001)
    with httpx2.Client(base_url=address, trust_env=False, timeout=60) as http:
        headers = {"Authorization": f"Bearer {made.secret}"}
        assert http.get("/v1/caller", headers=headers).status_code == 200
        refused = http.get("/v1/caller", headers=headers)
        assert (refused.status_code, refused.json()["code"]) == (429, "RATE_LIMITED")
        assert 900 < int(refused.headers["Retry-After"]) <= 1000
    limits, one, other = RateLimits(2.0, 2), Caller("a", key_id="k1"), Caller("b", key_id="k2")
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    assert [limits.wait_seconds(one) for _ in range(3)] == [0, 0, 1] and limits.wait_seconds(other) == 0
    now += 0.5
    assert [limits.wait_seconds(one) for _ in range(2)] == [0, 1]
    assert [limits.begin(one) for _ in range(3)] == [True, True, False] and limits.begin(other)
    limits.end(one)
    assert limits.begin(one) and all(limits.begin(Caller()) for _ in range(99))


def test_one_user_does_not_take_all_event_streams(address: str, admin: Client, service: Service) -> None:
    job = admin.submit(MATMUL, seed=5)
    secrets = [service.users.create_key(name, [READ])[1] for name in ("greedy", "greedy", "modest")]
    clients = [httpx2.Client(base_url=address, headers={"Authorization": f"Bearer {s}"}, timeout=60) for s in secrets]
    stream = {"Accept": "text/event-stream"}
    path = f"/v1/jobs/{job.id}/events"
    opened = [clients[n % 2].stream("GET", path, headers=stream) for n in range(12)]
    for one in opened:
        assert one.__enter__().status_code == 200
    refused = clients[0].get(path, headers=stream)
    assert (refused.status_code, refused.json()["code"]) == (
        429,
        "TOO_MANY_STREAMS",
    ) and "Retry-After" in refused.headers
    with clients[2].stream("GET", path, headers=stream) as answer:
        assert answer.status_code == 200
    assert clients[0].get("/v1/caller").status_code == 200
    admin.cancel(job.id)
    for one in opened:
        one.__exit__(None, None, None)
    for client in clients:
        client.close()


def test_the_asynchronous_client_has_the_same_methods(address: str, service: Service, tmp_path: Path) -> None:
    task = kept_task("matmul", {"m": 32, "n": 32, "k": 32})
    keep_job(service._store, "done", [task], 9)

    async def use() -> None:
        async with AsyncClient(address, token=TOKEN) as client:
            assert (await client.caller()).name == "token"
            job = await client.submit(MATMUL, budget=Budget(3, None, None), seed=9)
            both = asyncio.gather(client.cancel(job.id), client.job("done"))
            assert [one.state for one in await both] == ["cancelled", "succeeded"]
            assert [event.kind async for event in client.events(job.id)]
            assert {one.id async for one in client.jobs(page_size=1)} >= {job.id, "done"}
            trials = [trial async for trial in client.trials("done", page_size=4)]
            assert [trial.sequence for trial in trials] == list(range(9))
            lines = [line async for line in client.export_records()]
            assert len(lines) > 9 and (await client.import_records(lines)).known >= 9
            with pytest.raises(Missing):
                await client.job("nobody")
            known = await client.best_of_many([task.workload_key, "0" * 64], relax=["profile", "toolchain", "device"])
            assert len(known) == 2 and known[1] is None
        async with AsyncClient(address, token="tw_" + "0" * 40) as client:
            with pytest.raises(TokenRefused):
                await client.version()

    asyncio.run(use())
    shared = {name for name in dir(Client) if not name.startswith("_")} - {"plot"}
    assert shared == {name for name in dir(AsyncClient) if not name.startswith("_")} and len(shared) > 50


def test_keys_are_found_in_a_file_that_nobody_else_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(token_file=str(tmp_path / "config" / "tokens"))
    assert stored_token("http://a.example", settings) is None
    for address, token in (("http://a.example/", "t1"), ("http://b.example", "t2"), ("http://a.example", "t3")):
        path = store_token(address, token, settings)
    assert path.stat().st_mode & 0o777 == 0o600 and len(path.read_text().splitlines()) == 2
    assert stored_token("http://a.example/", settings) == "t3" and stored_token("http://c.example", settings) is None
    assert stored_token("http://a.example", Settings(token=SecretStr(TOKEN))) == TOKEN
    path.chmod(0o640)
    with pytest.raises(InvalidParameter, match="chmod 600"):
        stored_token("http://a.example", settings)
    path.chmod(0o600)
    path.write_text("only-one-word\n")
    with pytest.raises(InvalidParameter, match="an address and a key"):
        stored_token("http://a.example", settings)


def test_commands_make_keep_and_revoke_keys(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_TOKEN_FILE", str(tmp_path / "tokens"))

    def command(*arguments: str, token: str | None = None) -> str:
        shown = [] if token is None else ["--token", token]
        done = CliRunner().invoke(app, ["--url", address, *shown, *arguments])
        assert done.exit_code == 0, done.output
        return done.output

    secret = command("key", "create", "by hand", "--scope", "read", "--tenant", "team-x", token=TOKEN).strip()
    command("key", "save", token=secret)
    assert json.loads(command("--json", "key", "who"))["tenant"] == "team-x"  # the key in the file is shown
    assert "team-x: read" in " ".join(command("key", "who").split())
    key_id = secret.split("_")[1]
    assert f"revoked {key_id}" in command("key", "revoke", key_id, token=TOKEN)
    listed = json.loads(command("--json", "key", "list", token=TOKEN))
    assert next(key for key in listed if key["id"] == key_id)["revoked_at"]
    refused = in_process(tmp_path, "--url", address, "key", "who", TILEWRIGHT_TOKEN_FILE=str(tmp_path / "tokens"))
    assert refused.returncode == 4 and "was revoked, or has ended; " in refused.stderr
    assert "give one by --token, TILEWRIGHT_TOKEN, or `tilewright " in refused.stderr
