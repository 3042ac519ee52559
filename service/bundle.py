"""Writes and reads bundles: the best schedules of a release in one file, which answers look-ups without a service.

    bytes      what (numbers are little-endian)
    0..160     header: "TWBUNDLE", version, bytes of the file, entries, conditions, bytes of the manifest (64 bits
               each), zeros up to 64; SHA-256 of these and of all behind the header; Ed25519 signature of the first 96
               bytes. In version 1, which is still read, the header has 128 bytes, and the signature is the
               HMAC-SHA256 of the hash
    manifest   a JSON object, filled up with blanks to a multiple of 8
    conditions 112 bytes each: device key and toolchain key (32 bytes each), profile (32, filled up with zeros), number
               of the first entry, number of the first one of the next conditions
    index      48 bytes each, by conditions and then by key: workload key (32), offset and bytes of the record
    records    the JSON texts that look-ups answer with (``db.best``)

Equal records give equal files. ``include/tilewright_bundle.h`` reads the same from C.
"""

import hashlib
import hmac
import json
import mmap
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ..core.errors import InvalidParameter
from ..core.keys import canonical_json
from .signing import SIGNATURE_BYTES, SigningKey, is_signed, key_id

MAGIC, VERSION = b"TWBUNDLE", 2
HEADER = Path(__file__).parent / "include" / "tilewright_bundle.h"
"""The reader for C."""
_FIXED = struct.Struct("<8s5Q16x")
_PLACE = struct.Struct("<32s32s32s2Q")
_ENTRY = struct.Struct("<32s2Q")
_HASHED, _SIGNED = 64, 96
MOST_GUESSES = 12
"""Looks by interpolation, before a search goes on by bisection."""
_HEADER_BYTES = {1: 128, 2: _SIGNED + SIGNATURE_BYTES}
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
    header = _HEADER_BYTES[VERSION]
    offset = header + len(text) + len(groups) * _PLACE.size + len(ordered) * _ENTRY.size
    places, index, records, first = bytearray(), bytearray(), bytearray(), 0
    for (device, toolchain, profile), group in groups:
        if len({entry.workload_key for entry in group}) < len(group):
            raise ValueError("two entries of one workload under the same conditions")
        named = profile.encode().ljust(32, b"\0")
        places += _PLACE.pack(bytes.fromhex(device), bytes.fromhex(toolchain), named, first, first + len(group))
        first += len(group)
        for entry in group:
            record = entry.record.encode()
            index += _ENTRY.pack(bytes.fromhex(entry.workload_key), offset + len(records), len(record))
            records += record
    content = text + bytes(places) + bytes(index) + bytes(records)
    fixed = _FIXED.pack(MAGIC, VERSION, header + len(content), len(ordered), len(groups), len(text))
    signed = fixed + hashlib.sha256(fixed + content).digest()
    return signed + key.sign(signed) + content


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
        self._index = header + manifest + places * _PLACE.size
        if self._index + entries * _ENTRY.size > size:
            raise BadBundle("the tables of the bundle reach beyond its end")
        self.manifest: Mapping[str, Any] = json.loads(data[header : header + manifest])
        self.entries: int = entries
        """How many answers there are."""
        self._places: dict[tuple[str, str, str], tuple[int, int]] = {}
        for number in range(places):
            start = header + manifest + number * _PLACE.size
            device, toolchain, profile, first, end = _PLACE.unpack(data[start : start + _PLACE.size])
            if not first <= end <= entries:
                raise BadBundle("the conditions of the bundle name entries that it does not have")
            self._places[device.hex(), toolchain.hex(), profile.rstrip(b"\0").decode()] = (first, end)

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
        low, high = found
        wanted, data, index = bytes.fromhex(workload_key), self._data, self._index
        target, least, most = int.from_bytes(wanted[:8], "big"), 0, 1 << 64
        guesses = 0
        while low < high:
            # Keys are hashes: the place of one is nearly in proportion to its value. Interpolation takes 4 looks where
            # bisection takes 18, and bisection ends what goes on for long.
            guesses += 1
            if guesses <= MOST_GUESSES:
                middle = min(low + (high - low) * (target - least) // (most - least), high - 1)
            else:
                middle = (low + high) // 2
            at = index + middle * 48
            key = data[at : at + 32]
            if key == wanted:
                return self._record(at)
            value = int.from_bytes(key[:8], "big")
            if wanted < key:
                high, most = middle, max(value, target + 1)
            else:
                low, least = middle + 1, min(value, target)
        return None

    def find(self, workload_key: str, device_key: str, toolchain_key: str, profile: str) -> dict[str, Any] | None:
        """Return the record that ``find_text`` finds as a mapping: the members of ``BestOut`` without the match."""
        text = self.find_text(workload_key, device_key, toolchain_key, profile)
        return None if text is None else json.loads(text)

    def items(self) -> Iterator[BundleEntry]:
        """Yield every answer, in the order of the file."""
        for place, (first, end) in self._places.items():
            for number in range(first, end):
                at = self._index + number * _ENTRY.size
                yield BundleEntry(*place, self._data[at : at + 32].hex(), self._record(at))

    def _record(self, at: int) -> str:
        _, offset, length = _ENTRY.unpack(self._data[at : at + _ENTRY.size])
        return self._data[offset : offset + length].decode()
