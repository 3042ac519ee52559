"""Writes and reads bundles: the best schedules of a release in one file, which answers look-ups without a service.

    bytes      what (numbers are little-endian)
    0..160     header: "TWBUNDLE", version, bytes of the file, entries, conditions, bytes of the manifest (64 bits
               each), zeros up to 64; SHA-256 of these and of all behind the header; Ed25519 signature of the first 96
               bytes
    manifest   a JSON object, filled up with blanks to a multiple of 8
    conditions 128 bytes each: device key and toolchain key (32 bytes each), profile (32, filled up with zeros), offset
               of their table, its homes, its slots, its entries
    tables     hash tables with linear probing. A slot has 8 bytes: the second 32 bits of a workload key, and where its
               entry is, in units of 64 bytes; an empty slot is all zeros. Entries stand in the order of their keys,
               each at its home slot or behind it, and the last slot is empty:

                   home of a key = (its first 32 bits * homes) >> 32      ┌───┬───┬───┬───┬───┬───┐
                   there are twice as many homes as entries               │ a │   │ b │ c │   │ d │   c's home is b's
                                                                          └───┴───┴───┴───┴───┴───┘
    entries    workload key (32), bytes of the record (8), the record: a JSON text that look-ups answer with
               (``db.best``). Each begins at a multiple of 64, filled up with zeros, so that one line of a cache has the
               key and the beginning of the answer

So a look-up waits for memory twice at most, however many entries there are: for the slot, which the key alone tells and
which lies in a small table, and for the entry, whose answer is wanted anyway. Where many keys are looked up at once, it
waits for neither (``tilewright_bundle_find_all`` of ``include/tilewright_bundle.h``, which reads the same from C).

Equal records give equal files.

Earlier versions are still read. Version 3 has slots of 48 bytes with the whole key, and the offset and the bytes of the
record; the records alone stand behind them. Version 2 has one index of all entries by conditions and key, without empty
slots. Its conditions have 112 bytes, and name their first entry and the first one of the next conditions. Version 1
also has a header of 128 bytes, whose signature is the HMAC-SHA256 of the hash.
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

MAGIC, VERSION = b"TWBUNDLE", 4
HEADER = Path(__file__).parent / "include" / "tilewright_bundle.h"
"""The reader for C."""
_FIXED = struct.Struct("<8s5Q16x")
_PLACE, _EARLIER_PLACE = struct.Struct("<32s32s32s4Q"), struct.Struct("<32s32s32s2Q")
_SLOT, _EARLIER_SLOT = struct.Struct("<4sI"), struct.Struct("<32s2Q")
_ENTRY, _UNIT = struct.Struct("<32sQ"), 64
_HASHED, _SIGNED = 64, 96
_HEADER_BYTES = {1: 128, **dict.fromkeys((2, 3, VERSION), _SIGNED + SIGNATURE_BYTES)}
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
    tables = [_slots(group) for _, group in groups]
    header = _HEADER_BYTES[VERSION]
    at = header + len(text) + len(groups) * _PLACE.size
    places = bytearray()
    for ((device, toolchain, profile), group), slots in zip(groups, tables, strict=True):
        named = profile.encode().ljust(32, b"\0")
        numbers = (at, _homes(len(group)), len(slots), len(group))
        places += _PLACE.pack(bytes.fromhex(device), bytes.fromhex(toolchain), named, *numbers)
        at += len(slots) * _SLOT.size
    index, records = bytearray(), bytearray(-at % _UNIT)
    for entry in chain.from_iterable(tables):
        if entry is None:
            index += bytes(_SLOT.size)
        else:
            workload, record = bytes.fromhex(entry.workload_key), entry.record.encode()
            index += _SLOT.pack(workload[4:8], (at + len(records)) // _UNIT)
            records += _ENTRY.pack(workload, len(record)) + record
            records += bytes(-(at + len(records)) % _UNIT)
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
    behind them. What is behind the last home is as much as they need, and an empty slot."""
    homes = _homes(len(group))
    slots: list[BundleEntry | None] = []
    for entry in group:
        slots += [None] * (_home(bytes.fromhex(entry.workload_key), homes) - len(slots))
        slots.append(entry)
    return [*slots, *[None] * (homes - len(slots)), None]


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
    """The answers under the same conditions: offset of the first slot, how many are homes, how many there are."""

    at: int
    homes: int
    slots: int

    def fits(self, data: bytes | mmap.mmap) -> bool:
        """Say whether the table lies within the file and ends with an empty slot."""
        end = self.at + self.slots * _SLOT.size
        return self.homes < self.slots and end <= len(data) and not any(data[end - _SLOT.size : end])

    def find(self, data: bytes | mmap.mmap, wanted: bytes) -> str | None:
        slot = self.at + _home(wanted, self.homes) * _SLOT.size
        while True:
            begin, place = _SLOT.unpack_from(data, slot)
            if not place:
                return None
            if begin == wanted[4:8]:
                key, record = _entry(data, place)
                if key == wanted:
                    return str(record, "utf-8")
            slot += _SLOT.size

    def items(self, data: bytes | mmap.mmap) -> Iterator[tuple[bytes, bytes]]:
        for slot in range(self.at, self.at + self.slots * _SLOT.size, _SLOT.size):
            if place := _SLOT.unpack_from(data, slot)[1]:
                yield _entry(data, place)


def _entry(data: bytes | mmap.mmap, place: int) -> tuple[bytes, bytes]:
    """Return a key and its record. Raises BadBundle."""
    at = place * _UNIT
    begin = at + _ENTRY.size
    if begin <= len(data):
        key, length = _ENTRY.unpack_from(data, at)
        if begin + length <= len(data):
            return key, data[begin : begin + length]
    raise BadBundle("an entry of the bundle reaches beyond its end")


class _EarlierTable(NamedTuple):
    """A table of versions 1 to 3, whose slots have whole keys. Without homes the entries are sorted by key, and no slot
    is empty."""

    at: int
    homes: int
    slots: int

    def fits(self, data: bytes | mmap.mmap) -> bool:
        return 0 <= self.homes <= self.slots and self.at + self.slots * _EARLIER_SLOT.size <= len(data)

    def find(self, data: bytes | mmap.mmap, wanted: bytes) -> str | None:
        low, high = _home(wanted, self.homes), self.slots
        while low < high:
            middle = low if self.homes else (low + high) // 2
            key, offset, length = _EARLIER_SLOT.unpack_from(data, self.at + middle * _EARLIER_SLOT.size)
            if key == wanted and offset:
                return str(data[offset : offset + length], "utf-8")
            if key < wanted and offset:
                low = middle + 1
            elif self.homes:
                return None
            else:
                high = middle
        return None

    def items(self, data: bytes | mmap.mmap) -> Iterator[tuple[bytes, bytes]]:
        for slot in range(self.at, self.at + self.slots * _EARLIER_SLOT.size, _EARLIER_SLOT.size):
            key, offset, length = _EARLIER_SLOT.unpack_from(data, slot)
            if offset:
                yield key, data[offset : offset + length]


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
        index = header + manifest + places * form.size
        if index + entries * _EARLIER_SLOT.size > size:  # later ones have 8 bytes in a slot, and 40 before a record
            raise BadBundle("the tables of the bundle reach beyond its end")
        self.manifest: Mapping[str, Any] = json.loads(data[header : header + manifest])
        self.entries: int = entries
        """How many answers there are."""
        self._tables: dict[tuple[str, str, str], _HashTable | _EarlierTable] = {}
        for number in range(places):
            device, toolchain, profile, *numbers = form.unpack_from(data, header + manifest + number * form.size)
            table: _HashTable | _EarlierTable
            if version > 2:
                table = (_HashTable if version > 3 else _EarlierTable)(*numbers[:3])
            else:
                table = _EarlierTable(index + numbers[0] * _EARLIER_SLOT.size, 0, numbers[1] - numbers[0])
            if not table.fits(data):
                raise BadBundle("the conditions of the bundle name entries that it does not have")
            self._tables[device.hex(), toolchain.hex(), profile.rstrip(b"\0").decode()] = table

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
        return tuple(self._tables)

    def find_text(self, workload_key: str, device_key: str, toolchain_key: str, profile: str) -> str | None:
        """Return the record of a workload under exactly these conditions, as JSON; None where there is none, or where
        the key is none. Raises BadBundle where whoever signed the bundle made entries that reach beyond it."""
        table = self._tables.get((device_key, toolchain_key, profile))
        try:
            wanted = bytes.fromhex(workload_key)
        except ValueError:
            return None
        if table is None or wanted.hex() != workload_key:
            return None
        return table.find(self._data, wanted)

    def find(self, workload_key: str, device_key: str, toolchain_key: str, profile: str) -> dict[str, Any] | None:
        """Return the record that ``find_text`` finds as a mapping: the members of ``BestOut`` without the match."""
        text = self.find_text(workload_key, device_key, toolchain_key, profile)
        return None if text is None else json.loads(text)

    def items(self) -> Iterator[BundleEntry]:
        """Yield every answer, in the order of the file."""
        for place, table in self._tables.items():
            for key, record in table.items(self._data):
                yield BundleEntry(*place, key.hex(), record.decode())
