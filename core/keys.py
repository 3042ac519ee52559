"""Content keys: SHA-256 of canonical JSON. The only place where identity is turned into text."""

import hashlib
import json

JSON = None | bool | int | float | str | list["JSON"] | dict[str, "JSON"]


def canonical_json(value: object) -> str:
    """JSON with sorted keys, no blanks, no NaN: equal values give equal text.

    Raises ValueError for NaN and infinities and TypeError for what JSON cannot hold.
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def content_key(value: object) -> str:
    """64 hexadecimal digits: SHA-256 of the canonical JSON of ``value``."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()
