"""Keeps answers of look-ups, with their ETags, so that an answer that has not changed is not sent again."""

import json
import threading
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from ..core.cache_folder import write_atomically
from ..core.keys import canonical_json


@dataclass(frozen=True, slots=True)
class CachedAnswer:
    """Holds an answer as it was sent."""

    etag: str
    body: str


class LookupCache:
    """Thread-safe. Keeps up to ``most`` answers in memory, and with a ``folder`` every answer there too, one file each.
    Processes may share a folder. A file that cannot be read or written is no error: the answer is asked for again."""

    def __init__(self, folder: Path | None = None, *, most: int = 4096) -> None:
        self._folder = folder
        self._most = most
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, CachedAnswer] = OrderedDict()

    @staticmethod
    def key(address: str, path: str, asked: Mapping[str, object]) -> str:
        """Return the key of a question to a service."""
        return sha256(canonical_json([address, path, dict(asked)]).encode()).hexdigest()

    def find(self, key: str) -> CachedAnswer | None:
        """Return the answer that was kept last under a key."""
        with self._lock:
            found = self._kept.get(key)
            if found is not None:
                self._kept.move_to_end(key)
                return found
        if self._folder is None:
            return None
        with suppress(OSError, ValueError, TypeError, KeyError):
            data = json.loads((self._folder / key).read_text(encoding="utf-8"))
            found = CachedAnswer(str(data["etag"]), str(data["body"]))
            self._remember(key, found)
        return found

    def keep(self, key: str, answer: CachedAnswer) -> None:
        """Keep an answer."""
        self._remember(key, answer)
        if self._folder is not None:
            with suppress(OSError):
                text = json.dumps({"etag": answer.etag, "body": answer.body})
                write_atomically(self._folder / key, text.encode())

    def _remember(self, key: str, answer: CachedAnswer) -> None:
        with self._lock:
            self._kept[key] = answer
            self._kept.move_to_end(key)
            if len(self._kept) > self._most:
                self._kept.popitem(last=False)
