"""Writes and reads bundles: the best schedules of a release in one file, which answers look-ups without a service.

    bytes      what (numbers are little-endian)
    0..160     header: "TWBUNDLE", version, bytes of the file, entries, conditions, bytes of the manifest (64 bits
               each), zeros up to 64; SHA-256 of these and of all behind the header; Ed25519 signature of the first 96
               bytes
    manifest   a JSON object, filled up with blanks to a multiple of 8
    conditions 128 bytes each: device key and toolchain key (32 bytes each), profile (32, filled up with zeros), offset
               of their table, its homes, its slots, its entries
    tables     hash tables with linear probing. A slot has 48 bytes: workload key (32), offset and bytes of the record;
               an empty slot is all zeros. Entries stand in the order of their keys, each at its home slot or behind it:

                   home of a key = (its first 32 bits * homes) >> 32      ┌───┬───┬───┬───┬───┬───┐
                   there are twice as many homes as entries               │ a │   │ b │ c │   │ d │   c's home is b's
                                                                          └───┴───┴───┴───┴───┴───┘
               So a look-up waits for one place of memory, which the key alone tells, however many entries there are
    records    the JSON texts that look-ups answer with (``db.best``)

Equal records give equal files. ``include/tilewright_bundle.h`` reads the same from C.

Earlier versions are still read. Version 2 has one index of all entries by conditions and key, without empty slots. Its
conditions have 112 bytes, and name their first entry and the first one of the next conditions. Version 1 also has a
header of 128 bytes, whose signature is the HMAC-SHA256 of the hash.
"""

import hashlib
import hmac
import json
import mmap
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from ..core.errors import InvalidParameter
from ..core.keys import canonical_json
from .signing import SIGNATURE_BYTES, SigningKey, is_signed, key_id

MAGIC, VERSION = b"TWBUNDLE", 3
HEADER = Path(__file__).parent / "include" / "tilewright_bundle.h"
"""The reader for C."""
_FIXED = struct.Struct("<8s5Q16x")
_PLACE, _EARLIER_PLACE = struct.Struct("<32s32s32s4Q"), struct.Struct("<32s32s32s2Q")
_ENTRY = struct.Struct("<32s2Q")
_HASHED, _SIGNED = 64, 96
_HEADER_BYTES = {1: 128, 2: _SIGNED + SIGNATURE_BYTES, 3: _SIGNED + SIGNATURE_BYTES}
"""By version."""


class BadBundle(InvalidParameter):
    """A file is no bundle, or its content is not what was released, or it was signed with another key."""

    code = "BAD_BUNDLE"


@dataclass(frozen=True, slots=True, order=True)
class BundleEntry:
    """Holds one answer: the conditions, the workload, and the record as a JSON object in text."""

    device_key: str
    toolchain_key: str
    profile: str
    workload_key: str
    record: str

    @property
    def place(self) -> tuple[str, str, str]:
        """The conditions."""
        return self.device_key, self.toolchain_key, self.profile


def write_bundle(manifest: Mapping[str, object], entries: Iterable[BundleEntry], key: SigningKey) -> bytes:
    """Return a signed bundle. Raises ValueError when two entries are of one workload under the same conditions."""
    ordered = sorted(entries, key=lambda entry: (*entry.place, entry.workload_key))
    about = {"public_key": key.public_key, "key_id": key_id(key.public_key), "entries": len(ordered)}
    text = canonical_json({**manifest, **about}).encode()
    text += b" " * (-len(text) % 8)
    groups = [(place, list(group)) for place, group in groupby(ordered, key=lambda entry: entry.place)]
    for place, group in groups:
        if len({entry.workload_key for entry in group}) < len(group):
            raise ValueError(f"two entries of one workload under the same conditions, {place}")
    header = _HEADER_BYTES[VERSION]
    at = header + len(text) + len(groups) * _PLACE.size
    places, tables = bytearray(), [_slots(group) for _, group in groups]
    for ((device, toolchain, profile), group), slots in zip(groups, tables, strict=True):
        named, homes = profile.encode().ljust(32, b"\0"), _homes(len(group))
        numbers = (at, homes, len(slots), len(group))
        places += _PLACE.pack(bytes.fromhex(device), bytes.fromhex(toolchain), named, *numbers)
        at += len(slots) * _ENTRY.size
    index, records = bytearray(), bytearray()
    for entry in chain.from_iterable(tables):
        if entry is None:
            index += bytes(_ENTRY.size)
        else:
            record = entry.record.encode()
            index += _ENTRY.pack(bytes.fromhex(entry.workload_key), at + len(records), len(record))
            records += record
    content = text + bytes(places) + bytes(index) + bytes(records)
    fixed = _FIXED.pack(MAGIC, VERSION, header + len(content), len(ordered), len(groups), len(text))
    signed = fixed + hashlib.sha256(fixed + content).digest()
    return signed + key.sign(signed) + content


def _homes(entries: int) -> int:
    return 2 * entries


def _home(workload_key: bytes, homes: int) -> int:
    return int.from_bytes(workload_key[:4], "big") * homes >> 32


def _slots(group: Sequence[BundleEntry]) -> list[BundleEntry | None]:
    """Return the slots of a table, in which the entries, given in the order of their keys, stand at their homes or
    behind them. What is behind the last home is as much as they need."""
    homes = _homes(len(group))
    slots: list[BundleEntry | None] = []
    for entry in group:
        slots += [None] * (_home(bytes.fromhex(entry.workload_key), homes) - len(slots))
        slots.append(entry)
    return slots + [None] * (homes - len(slots))


def _check_signature(version: int, header: bytes, public_key: str | None, key: bytes | None) -> None:
    """Raise BadBundle unless a header was signed with one of the two: a public key, or the secret of version 1."""
    signature = header[_SIGNED:]
    if version == 1:
        if key is None:
            raise BadBundle("the bundle was signed with a secret, by HMAC: it has no public key")
        good = hmac.compare_digest(hmac.digest(key, header[_HASHED:_SIGNED], "sha256"), signature)
    else:
        if public_key is None:
            raise BadBundle("the bundle was signed by Ed25519: give the public key of the service, not its secret")
        good = is_signed(header[:_SIGNED], signature, public_key)
    if not good:
        raise BadBundle("the bundle was not signed with this key")


class _HashTable(NamedTuple):
    """The slots of the answers under the same conditions: the offset of the first one, how many are homes, and how many
    there are. Without homes the entries are sorted by key, and no slot is empty."""

    at: int
    homes: int
    slots: int


class Bundle:
    """Answers look-ups from a bundle. Threads may share one."""

    def __init__(
        self,
        data: bytes | mmap.mmap,
        *,
        public_key: str | None = None,
        key: bytes | None = None,
        sha256: str | None = None,
    ) -> None:
        """Check all of ``data``. ``public_key`` says who must have signed it, and ``sha256`` which hash it must have;
        ``key`` is the secret that a bundle of version 1 must be signed with. With none of them damage is found, and no
        forgery. Raises BadBundle."""
        self._data = data
        size = len(data)
        if size < _HASHED:
            raise BadBundle("the file is too short for a bundle")
        magic, version, total, entries, places, manifest = _FIXED.unpack(data[:_HASHED])
        if (magic, total) != (MAGIC, size) or version not in _HEADER_BYTES:
            raise BadBundle("the file is no bundle of a known version, or a part of one")
        header = _HEADER_BYTES[version]
        if size < header:
            raise BadBundle("the file is too short for a bundle")
        digest = hashlib.sha256(data[:_HASHED])
        with memoryview(data) as view:
            digest.update(view[header:])
        self.sha256 = digest.hexdigest()
        """The hash of the content, which names it."""
        if digest.digest() != data[_HASHED:_SIGNED]:
            raise BadBundle("the content of the bundle has changed since it was made")
        if sha256 is not None and not hmac.compare_digest(self.sha256, sha256):
            raise BadBundle(f"this is the bundle {self.sha256}, not {sha256[:80]}")
        if public_key is not None or key is not None:
            _check_signature(version, data[:header], public_key, key)
        form = _PLACE if version > 2 else _EARLIER_PLACE
        tables = header + manifest + places * form.size
        if tables + entries * _ENTRY.size > size:
            raise BadBundle("the tables of the bundle reach beyond its end")
        self.manifest: Mapping[str, Any] = json.loads(data[header : header + manifest])
        self.entries: int = entries
        """How many answers there are."""
        self._places: dict[tuple[str, str, str], _HashTable] = {}
        for number in range(places):
            device, toolchain, profile, *numbers = form.unpack_from(data, header + manifest + number * form.size)
            if version > 2:
                table = _HashTable(numbers[0], numbers[1], numbers[2])
            else:
                table = _HashTable(tables + numbers[0] * _ENTRY.size, 0, numbers[1] - numbers[0])
            if not 0 <= table.homes <= table.slots or table.at + table.slots * _ENTRY.size > size:
                raise BadBundle("the conditions of the bundle name entries that it does not have")
            self._places[device.hex(), toolchain.hex(), profile.rstrip(b"\0").decode()] = table

    @classmethod
    def open(
        cls, path: Path, *, public_key: str | None = None, key: bytes | None = None, sha256: str | None = None
    ) -> Self:
        """Map a file. Raises BadBundle, and OSError when it cannot be read."""
        with path.open("rb") as file:
            if path.stat().st_size == 0:
                raise BadBundle("the file is empty")
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            return cls(data, public_key=public_key, key=key, sha256=sha256)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Unmap the file."""
        if isinstance(self._data, mmap.mmap):
            self._data.close()

    def conditions(self) -> tuple[tuple[str, str, str], ...]:
        """Return the (device key, toolchain key, profile) that there are answers for."""
        return tuple(self._places)

    def find_text(self, workload_key: str, device_key: str, toolchain_key: str, profile: str) -> str | None:
        """Return the record of a workload under exactly these conditions, as JSON; None where there is none."""
        found = self._places.get((device_key, toolchain_key, profile))
        if found is None:
            return None
        at, homes, count = found
        wanted, data = bytes.fromhex(workload_key), self._data
        if homes:
            for slot in range(at + _home(wanted, homes) * 48, at + count * 48, 48):
                key, offset, length = _ENTRY.unpack_from(data, slot)
                if key == wanted and offset:
                    return str(data[offset : offset + length], "utf-8")
                if key > wanted or not offset:
                    return None
            return None
        low, high = 0, count
        while low < high:
            middle = (low + high) // 2
            key = data[at + middle * 48 : at + middle * 48 + 32]
            if key == wanted:
                return self._record(at + middle * 48)
            if wanted < key:
                high = middle
            else:
                low = middle + 1
        return None

    def find(self, workload_key: str, device_key: str, toolchain_key: str, profile: str) -> dict[str, Any] | None:
        """Return the record that ``find_text`` finds as a mapping: the members of ``BestOut`` without the match."""
        text = self.find_text(workload_key, device_key, toolchain_key, profile)
        return None if text is None else json.loads(text)

    def items(self) -> Iterator[BundleEntry]:
        """Yield every answer, in the order of the file."""
        for place, (first, _, count) in self._places.items():
            for at in range(first, first + count * _ENTRY.size, _ENTRY.size):
                if _ENTRY.unpack_from(self._data, at)[1]:
                    yield BundleEntry(*place, self._data[at : at + 32].hex(), self._record(at))

    def _record(self, at: int) -> str:
        _, offset, length = _ENTRY.unpack_from(self._data, at)
        return self._data[offset : offset + length].decode()
