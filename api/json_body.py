"""Parses JSON bodies strictly: without NaN, infinities, repeated fields, unbounded depth, or text that cannot be
stored."""

import json
import math
import re
from dataclasses import dataclass
from typing import Any

from starlette.exceptions import HTTPException

from .limits import MAX_JSON_DEPTH

_STRING_OR_BRACKET = re.compile(rb'"(?:[^"\\]|\\.)*"?|[\[{]|[\]}]', re.DOTALL)
_SURROGATE = re.compile("[\ud800-\udfff]")
_PARSED_DEPTH = 700
"""This is below Python's recursion limit (1,000), so that the value which is too deep can still be named."""


class BadBody(HTTPException):
    """A body is not JSON in the strict sense. ``code`` and ``field`` go into the problem document."""

    def __init__(self, status: int, code: str, detail: str, field: str = "") -> None:
        super().__init__(status, detail)
        self.code = code
        self.field = field


@dataclass(frozen=True, slots=True)
class _RefusedValue:
    """Replaces a value that was refused, until it is found in the parsed body and named."""

    code: str
    detail: str


def parse_json(body: bytes) -> Any:
    """Return the value of ``body``. Raises BadBody (400) that says what is wrong and where (a JSON pointer)."""
    depth = _depth(body)
    if depth > _PARSED_DEPTH:
        raise BadBody(400, "JSON_TOO_DEEP", f"nested {depth} deep; allowed: {MAX_JSON_DEPTH}")
    hooks = _Hooks()
    try:
        value = json.loads(
            body,
            parse_constant=hooks.constant,
            parse_float=hooks.decimal,
            parse_int=hooks.integer,
            object_pairs_hook=hooks.pairs,
        )
    except json.JSONDecodeError as error:
        raise BadBody(400, "INVALID_JSON", f"not JSON: {error.msg} at character {error.pos}") from error
    except UnicodeDecodeError as error:
        raise BadBody(400, "INVALID_JSON", f"not UTF-8 at byte {error.start}") from error
    if hooks.refused or depth > MAX_JSON_DEPTH or b"\\u" in body or b"\0" in body:
        _refuse(value)
    return value


class _Hooks:
    """What ``json`` calls for the parts of a value. ``refused`` says whether there is a ``_RefusedValue``."""

    def __init__(self) -> None:
        self.refused = False

    def _refuse(self, detail: str) -> _RefusedValue:
        self.refused = True
        return _RefusedValue("INVALID_JSON", detail)

    def constant(self, text: str) -> object:
        return self._refuse(f"{text} is no JSON number")

    def decimal(self, text: str) -> object:
        value = float(text)
        if math.isfinite(value):
            return value
        return self._refuse(f"{text[:40]} is beyond the range of numbers (about 1.8e308)")

    def integer(self, text: str) -> object:
        return int(text) if len(text) <= 40 else self._refuse(f"a whole number of {len(text)} digits; allowed: 40")

    def pairs(self, pairs: list[tuple[str, Any]]) -> object:
        value = dict(pairs)
        if len(value) == len(pairs):
            return value
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        return self._refuse(f"the field {twice[:64]!a} stands twice in one object")


def _refuse(value: Any) -> None:
    """Raise BadBody for the first part that is refused: a ``_RefusedValue``, nesting that is too deep, or text that
    cannot be stored.

    No database stores half a surrogate pair, and PostgreSQL stores no NUL in text.
    """
    waiting: list[tuple[Any, str, int]] = [(value, "", 0)]
    while waiting:
        part, pointer, depth = waiting.pop()
        if isinstance(part, _RefusedValue):
            raise BadBody(400, part.code, part.detail, pointer)
        if isinstance(part, str) and ("\0" in part or _SURROGATE.search(part)):
            raise BadBody(400, "INVALID_TEXT", "text with a NUL or an unpaired surrogate", pointer)
        if isinstance(part, list | dict) and depth >= MAX_JSON_DEPTH:
            raise BadBody(400, "JSON_TOO_DEEP", f"nested deeper than {MAX_JSON_DEPTH}", pointer)
        if isinstance(part, list):
            waiting += [(item, f"{pointer}/{index}", depth + 1) for index, item in enumerate(part)]
        elif isinstance(part, dict):
            waiting += [(name, pointer, depth + 1) for name in part]
            waiting += [(item, f"{pointer}/{pointer_part(name)}", depth + 1) for name, item in part.items()]


def pointer_part(name: object) -> str:
    """Return a name as one part of a JSON pointer (RFC 6901), in text that can be sent."""
    text = str(name).replace("~", "~0").replace("/", "~1")
    return text.encode("utf-8", "backslashreplace").decode()


def _depth(body: bytes) -> int:
    depth = deepest = 0
    for match in _STRING_OR_BRACKET.finditer(body):
        mark = match[0][:1]
        if mark in b"[{":
            depth += 1
            deepest = max(deepest, depth)
        elif mark in b"]}":
            depth -= 1
    return deepest
