"""A bundle answers as what it was made from, in Python and in C, and a changed byte is found wherever it is."""

import hashlib
import hmac
import json
import shutil
import struct
import subprocess
from itertools import chain, groupby
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.core.errors import InvalidParameter, TilewrightError
from tilewright.service.bundle import HEADER, BadBundle, Bundle, BundleEntry, write_bundle
from tilewright.service.signing import SigningKey, is_signed, key_id

KEY = SigningKey.generate()
SECRET = b"a secret of more than sixteen characters"
PROGRAM = r"""
#include <stdio.h>
#include <stdlib.h>
#include "tilewright_bundle.h"

enum { MOST = 2000 };
static char device[MOST][65], toolchain[MOST][65], profile[MOST][40], workload[MOST][65];
static const char *keys[MOST], *answers[MOST], *many[MOST];
static size_t lengths[MOST], many_lengths[MOST];

/* Look the lines from `first` to `end` up, which have the same conditions: one by one, and so many of them at once. */
static int look_up(const tilewright_bundle *bundle, size_t first, size_t end) {
    long at = tilewright_bundle_conditions(bundle, device[first], toolchain[first], profile[first]);
    for (size_t i = first; i < end; i++) {
        keys[i] = workload[i], answers[i] = NULL, lengths[i] = 0;
        tilewright_bundle_find(bundle, at, workload[i], answers + i, lengths + i);
        printf("%.*s\n", answers[i] ? (int)lengths[i] : 1, answers[i] ? answers[i] : "-");
    }
    size_t all = end - first;
    for (size_t count = 0; count <= all; count += count < 70 || count == all ? 1 : all - count) {
        size_t found = tilewright_bundle_find_all(bundle, at, keys + first, count, many, many_lengths);
        for (size_t i = 0; i < count; i++) {
            if (many[i] != answers[first + i] || many_lengths[i] != lengths[first + i]) return 0;
            found -= many[i] != NULL;
        }
        if (found) return 0;
    }
    return 1;
}

/* reader FILE KEY: lines "DEVICE TOOLCHAIN PROFILE WORKLOAD" in, records out; the code of open is the exit status */
int main(int count, char **arguments) {
    FILE *file = fopen(arguments[1], "rb");
    if (file == NULL || count < 3) return 9;
    fseek(file, 0, SEEK_END);
    size_t bytes = (size_t)ftell(file), lines = 0, first = 0;
    rewind(file);
    char *data = malloc(bytes ? bytes : 1);
    if (data == NULL || fread(data, 1, bytes, file) != bytes) return 9;
    tilewright_bundle bundle;
    const char *key = arguments[2][0] ? arguments[2] : NULL;
    int code = tilewright_bundle_open(&bundle, data, bytes, key, strlen(arguments[2]));
    while (code == TILEWRIGHT_BUNDLE_OK && lines < MOST && scanf("%64s %64s %39s %64s", device[lines], toolchain[lines],
                                                                 profile[lines], workload[lines]) == 4)
        lines++;
    for (size_t i = 1; i <= lines; i++)
        if (i == lines || strcmp(device[i], device[first]) || strcmp(profile[i], profile[first])) {
            if (!look_up(&bundle, first, i)) return 7;
            first = i;
        }
    free(data), fclose(file);
    return code;
}
"""


def key_of(text: object) -> str:
    return hashlib.sha256(repr(text).encode()).hexdigest()


def entries(count: int) -> list[BundleEntry]:
    made = []
    for place in range(3):
        for number in range(count * place):
            record = json.dumps({"seconds": 1e-6 * (number + 1), "name": "größe" * (number % 3)}, ensure_ascii=False)
            workload = key_of(number)
            made.append(
                BundleEntry(key_of(("d", place)), key_of("t"), ("warm-v1", "cold-v2")[place % 2], workload, record)
            )
    return made


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc") or pytest.skip("no C compiler here")
    folder = tmp_path_factory.mktemp("reader")
    (folder / "reader.c").write_text(PROGRAM)
    flags = ["-std=c99", "-O1", "-Wall", "-Wextra", "-Werror", "-fsanitize=address,undefined", "-fno-sanitize-recover"]
    command = [compiler, *flags, f"-I{HEADER.parent}", "reader.c", "-o", "reader"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder / "reader"


def read(reader: Path, file: Path, asked: list[BundleEntry], key: str = "") -> tuple[int, list[str]]:
    lines = "".join(f"{' '.join(entry.place)} {entry.workload_key}\n" for entry in asked)
    done = subprocess.run([reader, file, key], input=lines, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    return done.returncode, done.stdout.split("\n")[:-1]


def earlier(data: bytes, version: int) -> tuple[bytes, bytes]:
    """Return the first 64 bytes and the content of a bundle as version 1, 2 or 3 had them."""
    header, form = 128 if version == 1 else 160, 128 if version == 3 else 112
    manifest = data[160 : 160 + struct.unpack_from("<Q", data, 40)[0]]
    with Bundle(data) as bundle:
        groups = [[*group] for _, group in groupby(bundle.items(), key=lambda entry: entry.place)]
    conditions, tables, first = b"", list[list[BundleEntry | None]](), 0
    at = header + len(manifest) + form * len(groups)
    for group in groups:
        table: list[BundleEntry | None] = []
        for entry in group:
            home = int(entry.workload_key[:8], 16) * 2 * len(group) >> 32
            table += [None] * (home - len(table) if version == 3 else 0)
            table.append(entry)
        table += [None] * (2 * len(group) - len(table) if version == 3 else 0)
        device, toolchain, profile = group[0].place
        named = bytes.fromhex(device + toolchain) + profile.encode().ljust(32, b"\0")
        place = (at, 2 * len(group), len(table), len(group)) if version == 3 else (first, first + len(group))
        conditions += named + struct.pack(f"<{len(place)}Q", *place)
        tables.append(table)
        at, first = at + 48 * len(table), first + len(group)
    index, records = b"", b""
    for slot in chain.from_iterable(tables):
        record = b"" if slot is None else slot.record.encode()
        key = bytes(32) if slot is None else bytes.fromhex(slot.workload_key)
        index += struct.pack("<32s2Q", key, at + len(records) if slot else 0, len(record))
        records += record
    content = manifest + conditions + index + records
    fixed = bytearray(data[:64])
    struct.pack_into("<2Q", fixed, 8, version, header + len(content))
    return bytes(fixed), content


def in_version(version: int, data: bytes) -> bytes:
    fixed, content = earlier(data, version)
    signed = fixed + hashlib.sha256(fixed + content).digest()
    return signed + KEY.sign(signed) + content


def signed_by_hmac(data: bytes, secret: bytes = SECRET) -> bytes:
    """Return a bundle in version 1, as services wrote it before there were key pairs."""
    fixed, content = earlier(data, 1)
    digest = hashlib.sha256(fixed + content).digest()
    return fixed + digest + hmac.digest(secret, digest, "sha256") + content


def test_python_and_c_find_what_was_written(tmp_path: Path, reader: Path) -> None:
    made = entries(40)
    file = tmp_path / "a.bundle"
    data = write_bundle({"name": "a"}, made, KEY)
    assert data == write_bundle({"name": "a"}, reversed(made), KEY)  # equal records give equal files
    file.write_bytes(data)
    absent = [BundleEntry(*made[0].place, key_of(("none", n)), "-") for n in range(20)]
    absent += [BundleEntry(made[0].device_key, made[0].toolchain_key, "hot-v1", made[0].workload_key, "-")]
    with Bundle.open(file, public_key=KEY.public_key) as bundle:
        assert bundle.manifest["key_id"] == key_id(KEY.public_key)
        assert bundle.manifest["name"] == "a" and bundle.entries == len(made) == 120
        assert sorted(bundle.items()) == sorted(made) and len(bundle.conditions()) == 2
        for entry in made:
            assert bundle.find_text(entry.workload_key, *entry.place) == entry.record
            assert bundle.find(entry.workload_key, *entry.place) == json.loads(entry.record)
        assert all(bundle.find_text(entry.workload_key, *entry.place) is None for entry in absent)
    assert read(reader, file, [*made, *absent]) == (0, [entry.record for entry in (*made, *absent)])
    assert read(reader, file, made, "a key")[0] == 4  # C does not check this signature, and says so
    with pytest.raises(BadBundle, match="not signed with this key"):
        Bundle(data, public_key=SigningKey.generate().public_key)
    with pytest.raises(BadBundle, match="give the public key"):
        Bundle(data, key=SECRET)
    with pytest.raises(InvalidParameter, match="64 hexadecimal digits"):
        Bundle(data, public_key="no key")
    with pytest.raises(BadBundle, match="this is the bundle"):
        Bundle(data, sha256="0" * 64)


def test_keys_are_found_wherever_they_lie(tmp_path: Path, reader: Path) -> None:
    """The first bits of a key choose its place. Many keys here begin alike, and some lie at the ends."""
    kept = ["00" * 32, "00" * 31 + "02", "ff" * 32, "7f" + "ff" * 31, *(f"{n * n:064x}" for n in range(3, 200))]
    kept += ["ab" * 8 + f"{3 * n:048x}" for n in range(300)]
    others = ["00" * 31 + "01", "fe" * 32, "80" + "00" * 31, *("ab" * 8 + f"{3 * n + 1:048x}" for n in range(300))]
    place = key_of("d"), key_of("t"), "warm-v1"
    made = [BundleEntry(*place, key, f'{{"key": "{key}"}}') for key in kept]
    file = tmp_path / "close.twb"
    file.write_bytes(write_bundle({}, made, KEY))
    others += ["ff" * 31, "FF" * 32, "ff" * 31 + "fg", "/" + "0" * 63, ":" + "0" * 63, "`" + "0" * 63]  # no keys
    others += ["ff" * 31 + "/0", "0" * 15 + "g" + "0" * 48]
    wanted = [*(entry.record for entry in made), *("-" for _ in others)]
    asked = [*made, *(BundleEntry(*place, key, "-") for key in others)]
    data = file.read_bytes()
    for written in (data, in_version(3, data), in_version(2, data)):
        file.write_bytes(written)
        with Bundle.open(file, public_key=KEY.public_key) as bundle:
            assert [bundle.find_text(key, *place) or "-" for key in (*kept, *others)] == wanted
            assert [*bundle.items()] == sorted(made)
        assert read(reader, file, asked) == (0, wanted)


def test_bundles_that_were_signed_by_hmac_stay_readable(tmp_path: Path, reader: Path) -> None:
    made, file = entries(5), tmp_path / "old.bundle"
    for secret in (SECRET, b"k" * 200):
        file.write_bytes(signed_by_hmac(write_bundle({"name": "old"}, made, KEY), secret))
        with Bundle.open(file, key=secret, public_key=KEY.public_key) as bundle:
            assert sorted(bundle.items()) == sorted(made)
        assert read(reader, file, made, secret.decode()) == (0, [entry.record for entry in made])
        assert read(reader, file, made)[0] == 0
        assert read(reader, file, made, "another key, as long as the first")[0] == 3
    with pytest.raises(BadBundle, match="not signed with this key"):
        Bundle(file.read_bytes(), key=SECRET)
    with pytest.raises(BadBundle, match="it has no public key"):
        Bundle(file.read_bytes(), public_key=KEY.public_key)


def test_an_empty_bundle_is_allowed(tmp_path: Path, reader: Path) -> None:
    file = tmp_path / "empty.bundle"
    file.write_bytes(write_bundle({"name": "none"}, [], KEY))
    (asked,) = entries(1)[:1]
    assert read(reader, file, [asked]) == (0, ["-"])
    with Bundle.open(file, public_key=KEY.public_key) as bundle:
        assert bundle.entries == 0 and list(bundle.items()) == []


def test_a_key_pair_is_made_once_for_its_user_alone(tmp_path: Path) -> None:
    path = tmp_path / "key.pem"
    made = SigningKey.kept_in(path)
    assert SigningKey.kept_in(path).public_key == made.public_key and [*tmp_path.iterdir()] == [path]
    assert path.stat().st_mode & 0o777 == 0o600 and b"PRIVATE KEY" in path.read_bytes()
    signature = made.sign(b"text")
    assert is_signed(b"text", signature, made.public_key) and not is_signed(b"texT", signature, made.public_key)
    path.write_text("none")
    for place in (path, tmp_path / "missing" / "key.pem"):
        with pytest.raises(InvalidParameter, match="no key to sign") as error:
            SigningKey.kept_in(place)
        assert error.value.field == "release_key_file"


@given(place=st.floats(0, 1, exclude_max=True), flip=st.integers(1, 255), cut=st.booleans())
@settings(max_examples=60, deadline=None)
def test_a_changed_or_missing_byte_is_found(place: float, flip: int, cut: bool) -> None:
    data = bytearray(write_bundle({"name": "b"}, entries(3), KEY))
    at = int(place * len(data))
    if cut:
        del data[at:]
    else:
        data[at] ^= flip
    with pytest.raises(TilewrightError):
        Bundle(bytes(data), public_key=KEY.public_key)


def test_c_finds_a_changed_or_missing_byte_too(tmp_path: Path, reader: Path) -> None:
    data = write_bundle({"name": "c"}, entries(2), KEY)
    file = tmp_path / "bad.bundle"
    for at in (0, 9, 17, 25, 33, 41, 63, 64, 95, 160, 200, 400, len(data) - 1):  # 96 to 160 is the signature
        changed = bytearray(data)
        changed[at] ^= 1
        file.write_bytes(bytes(changed))
        assert read(reader, file, [])[0] in (1, 2, 3), at
    for length in (0, 1, 95, 96, 159, 160, 300, len(data) - 1):
        file.write_bytes(data[:length])
        assert read(reader, file, [])[0] == 1, length


def changed_and_signed(data: bytes, at: int, number: bytes) -> bytes:
    changed = bytearray(data)
    changed[at : at + len(number)] = number
    changed[64:96] = hashlib.sha256(bytes(changed[:64]) + bytes(changed[160:])).digest()
    changed[96:160] = KEY.sign(bytes(changed[:96]))
    return bytes(changed)


def test_tables_that_reach_beyond_the_file_are_refused_though_they_are_signed(tmp_path: Path, reader: Path) -> None:
    """The writer of such a file has the key, but the reader still touches nothing outside."""
    data, file = write_bundle({"name": "d"}, entries(2), KEY), tmp_path / "beyond.bundle"
    for at, value in ((24, 1 << 60), (32, 1 << 60), (40, 1 << 60), (24, 999)):
        bad = changed_and_signed(data, at, value.to_bytes(8, "little"))
        file.write_bytes(bad)
        assert read(reader, file, entries(2))[0] == 1
        with pytest.raises(BadBundle):
            Bundle(bad, public_key=KEY.public_key)


def test_tables_beyond_the_file_are_refused(tmp_path: Path, reader: Path) -> None:
    asked, file = entries(2)[:1], tmp_path / "beyond.bundle"
    data = write_bundle({"name": "e"}, asked, KEY)
    changes = [(96, 1 << 60), (96, len(data) - 4), (104, 1 << 40), (112, 1 << 60), (112, 1 << 20)]
    for version, beyond in ((4, [(112, 0), (112, 2), (104, 3), (96, 8)]), (3, []), (2, [(96, 2), (104, 3)])):
        written = data if version == 4 else in_version(version, data)
        place = 160 + struct.unpack_from("<Q", written, 40)[0]
        for at, value in beyond + (changes if version > 2 else []):
            bad = changed_and_signed(written, place + at, value.to_bytes(8, "little"))
            file.write_bytes(bad)
            assert read(reader, file, asked) == (1, []), (version, at, value)
            with pytest.raises(BadBundle, match="entries that it does not have"):
                Bundle(bad, public_key=KEY.public_key)


def test_an_entry_beyond_the_file_is_no_answer(tmp_path: Path, reader: Path) -> None:
    """Its slot may lead there, or its length."""
    asked, file = entries(2)[:1], tmp_path / "beyond.bundle"
    data = write_bundle({"name": "f"}, asked, KEY)
    table, homes = struct.unpack_from("<2Q", data, 160 + struct.unpack_from("<Q", data, 40)[0] + 96)
    slot = table + 8 * (int(asked[0].workload_key[:8], 16) * homes >> 32)
    entry = 64 * struct.unpack_from("<I", data, slot + 4)[0]
    assert data[entry : entry + 32].hex() == asked[0].workload_key
    ends = (
        (slot + 4, len(data) // 64, 4),
        (slot + 4, (1 << 32) - 1, 4),
        (entry + 32, len(data), 8),
        (entry + 32, -1, 8),
    )
    for at, value, width in ends:
        bad = changed_and_signed(data, at, (value % (1 << 8 * width)).to_bytes(width, "little"))
        file.write_bytes(bad)
        assert read(reader, file, asked) == (0, ["-"])
        with Bundle(bad, public_key=KEY.public_key) as bundle, pytest.raises(BadBundle, match="beyond its end"):
            bundle.find_text(asked[0].workload_key, *asked[0].place)


def test_an_empty_slot_is_no_answer_for_the_key_of_zeros(tmp_path: Path, reader: Path) -> None:
    """Its bytes are all zeros, as the first home of these entries."""
    file, made = tmp_path / "empty.bundle", [BundleEntry("ab" * 32, "cd" * 32, "p", "80" * 32, '{"key": 1}')]
    file.write_bytes(write_bundle({}, made, KEY))
    asked = BundleEntry(*made[0].place, "00" * 32, "-")
    assert read(reader, file, [asked, *made]) == (0, ["-", '{"key": 1}'])
    with Bundle.open(file, public_key=KEY.public_key) as bundle:
        assert bundle.find_text("00" * 32, *made[0].place) is None
        assert list(bundle.items()) == made
