"""Releases: frozen, signed, compared, led through channels, and answering on another machine without a network."""

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import httpx2
import pytest
from alembic import command
from sqlalchemy import delete, text

from tilewright.api.client import Client
from tilewright.api.client_errors import Contradiction, InvalidRequest, Missing
from tilewright.core.target import Toolchain
from tilewright.db import migrate
from tilewright.db.engine import Database, parse_url
from tilewright.db.store import RecordStore
from tilewright.db.tables import compatible_programs, metadata
from tilewright.service.bundle import BadBundle
from tilewright.service.service import Service
from tilewright.service.signing import SigningKey, key_id
from tilewright.tests.api.filled import HERE
from tilewright.tests.api.test_lookups import keep, task_of

OLDER = replace(HERE, toolchain=Toolchain({"llvm": "19", "tilewright": "0.1.0"}))
PLACE = {"device_key": HERE.device.key, "toolchain_key": HERE.toolchain.key, "profile": str(HERE.profile)}
ELSEWHERE = """
import json, socket, sys
socket.socket = None  # there is no network
from pathlib import Path
from tilewright.service.bundle import Bundle
asked = json.loads(sys.argv[3])
with Bundle.open(Path(sys.argv[1]), public_key=sys.argv[2]) as bundle:
    print(json.dumps([bundle.find_text(key, *place) for key, *place in asked]))
assert "sqlalchemy" not in sys.modules and "numpy" not in sys.modules
"""


@pytest.fixture(scope="module")
def two(client: Client, store: RecordStore) -> Iterator[tuple[str, str]]:
    """Two releases: in the second one workload is twice as fast, one is new, and the others are the same."""
    with pytest.raises(Missing):
        client.freeze("empty")
    keep(store, "first", [task_of(n) for n in (1, 2, 3)], [(HERE, 1, 2e-6), (OLDER, 1, 3e-6)])
    client.freeze("one")
    keep(store, "second", [task_of(3)], [(HERE, 2, 1e-6)])
    keep(store, "third", [task_of(4)], [(HERE, 1, 2e-6)])
    client.freeze("two")
    yield "one", "two"


def test_a_release_answers_elsewhere_without_a_network_and_refuses_a_changed_byte(
    two: tuple[str, str], client: Client, http: httpx2.Client, tmp_path: Path
) -> None:
    file = tmp_path / "one.bundle"
    key = client.release_key()
    assert (key.algorithm, key.key_id) == ("ed25519", key_id(key.public_key))
    release = client.fetch_bundle("one", file, public_key=key.public_key)
    assert (release.entries, release.bundle_bytes) == (6, file.stat().st_size)
    asked = [(task_of(n).workload_key, *PLACE.values()) for n in (1, 2, 3, 4)]
    command = [sys.executable, "-c", ELSEWHERE, str(file), key.public_key, json.dumps(asked)]
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout)
    again = tmp_path / "again.bundle"
    client.fetch_bundle("one", again)
    assert again.read_bytes() == file.read_bytes()
    for number, answer in zip((1, 2), found, strict=False):
        online = client.best(task_of(number).workload_key, **PLACE).model_dump(mode="json")
        record = json.loads(answer)
        assert {name: online[name] for name in record} == record
    assert json.loads(found[2])["seconds"] == 2e-6 and found[3] is None  # as it was then
    with pytest.raises(BadBundle, match="not signed with this key"):
        client.fetch_bundle("one", tmp_path / "forged.bundle", public_key=SigningKey.generate().public_key)
    assert not (tmp_path / "forged.bundle").exists()
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(bytes(data))
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode != 0 and "has changed since it was made" in done.stderr
    tag = {"If-None-Match": f'"{release.sha256}"'}
    assert http.get("/v1/releases/one/bundle", headers=tag).status_code == 304


def test_two_releases_are_compared(two: tuple[str, str], client: Client) -> None:
    found = client.compare("two", "one")
    assert (found.added, found.removed, found.changed, found.same) == (1, 0, 1, 5)
    (changed,), (added,) = found.changed_entries, found.added_entries
    assert changed.workload_key == task_of(3).workload_key and changed.speedup == pytest.approx(2.0)
    assert (changed.before_seconds, changed.after_seconds, changed.device_key) == (2e-6, 1e-6, HERE.device.key)
    assert added.workload_key == task_of(4).workload_key and added.before_seconds is None
    back = client.compare("one", "two")
    assert (back.added, back.removed) == (0, 1) and back.changed_entries[0].speedup == pytest.approx(0.5)
    with pytest.raises(Missing):
        client.compare("one", "three")


def test_a_release_never_changes(two: tuple[str, str], client: Client, service: Service) -> None:
    before = client.release_named("one")
    with pytest.raises(Contradiction, match="releases never change"):
        client.freeze("one")
    assert client.release_named("one") == before
    assert [release.name for release in client.releases()] == ["two", "one"]
    assert client.freeze("older", toolchain_key=OLDER.toolchain.key).entries == 3
    page = service.releases.releases(page_size=2)
    assert [view.name for view in page.items] == ["older", "two"]
    rest = service.releases.releases(page_size=2, token=page.next_token)
    assert [view.name for view in rest.items] == ["one"] and rest.next_token == ""
    with pytest.raises(InvalidRequest) as refused, pytest.MonkeyPatch.context() as patch:
        patch.setattr(service.releases, "_beside", None)  # as with the database of a server
        client.freeze("unsigned")
    assert refused.value.field == "release_key_file"


def test_an_upgrade_finds_the_records_of_releases_from_before(
    two: tuple[str, str], store: RecordStore, tmp_path: Path
) -> None:
    with closing(sqlite3.connect(str(store.database.url.database))) as present:
        present.execute("VACUUM INTO ?", (str(tmp_path / "copy.sqlite3"),))
    copy = Database(parse_url(f"sqlite:///{tmp_path / 'copy.sqlite3'}"))
    held = "SELECT release, record FROM release_records ORDER BY release, record"
    with copy.writing() as connection:
        known = connection.execute(text(held)).all()
        config = migrate._config()
        config.attributes.update(connection=connection, metadata=metadata)
        command.downgrade(config, "0011")
        connection.execute(delete(compatible_programs))  # a database from before names no later program
    migrate.upgrade(copy)
    with copy.reading() as connection:
        assert connection.execute(text(held)).all() == known and len(known) >= 6 + 7
    copy.close()


def test_releases_go_through_channels(two: tuple[str, str], client: Client) -> None:
    assert [(channel.name, channel.release) for channel in client.channels()] == [("canary", None), ("stable", None)]
    with pytest.raises(Contradiction, match="was never on canary"):
        client.promote("stable", "one")
    with pytest.raises(Contradiction, match="points to no release yet"):
        client.pin("stable")
    with pytest.raises(Contradiction, match="pointed to no other release"):
        client.roll_back("canary")
    for channel, name in (("canary", "none"), ("nightly", "one")):
        with pytest.raises(Missing):
            client.promote(channel, name)
    assert client.promote("canary", "one").release == "one"
    assert client.promote("stable", "one").release == "one"
    assert client.promote("canary", "two").release == client.promote("canary", "two").release == "two"
    assert client.promote("stable", "two").release == "two"
    assert client.roll_back("stable").release == "one"
    with pytest.raises(Contradiction, match="pointed to no other release before"):
        client.roll_back("stable")
    assert client.pin("stable").pinned
    with pytest.raises(Contradiction, match="is pinned"):
        client.promote("stable", "two")
    with pytest.raises(Contradiction, match="is pinned"):
        client.roll_back("stable")
    assert not client.unpin("stable").pinned and client.promote("stable", "two").release == "two"
    history = [(at.release, at.how) for at in client.channel("stable").history]
    assert history == [("two", "promoted"), ("one", "rolled back"), ("two", "promoted"), ("one", "promoted")]
    assert client.channel("canary").release == "two"
