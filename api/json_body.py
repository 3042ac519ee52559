"""Strict JSON bodies: no NaN, no infinities, no repeated fields, bounded depth, text that can be stored."""

import json
import math
import re
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException

from .limits import MAX_JSON_DEPTH

_STRING_OR_BRACKET = re.compile(rb'"(?:[^"\\]|\\.)*"?|[\[{]|[\]}]', re.DOTALL)


class BadBody(HTTPException):
    """A body that is not JSON in the strict sense; ``code`` and ``field`` go into the problem document."""

    def __init__(self, status: int, code: str, detail: str, field: str = "") -> None:
        super().__init__(status, detail)
        self.code = code
        self.field = field


def parse_json(body: bytes) -> Any:
    """The value of ``body``. Raises BadBody (400) that says what is wrong and, where it can, where."""
    depth = _depth(body)
    if depth > MAX_JSON_DEPTH:
        raise BadBody(400, "JSON_TOO_DEEP", f"nested {depth} deep; allowed: {MAX_JSON_DEPTH}")
    try:
        value = json.loads(
            body, parse_constant=_constant, parse_float=_finite, parse_int=_integer, object_pairs_hook=_unique
        )
    except json.JSONDecodeError as error:
        raise BadBody(400, "INVALID_JSON", f"not JSON: {error.msg} at byte {error.pos}") from error
    except UnicodeDecodeError as error:
        raise BadBody(400, "INVALID_JSON", f"not UTF-8 at byte {error.start}") from error
    if b"\\u" in body or b"\0" in body:
        _storable(value, "")
    return value


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


def _constant(text: str) -> float:
    raise BadBody(400, "INVALID_JSON", f"{text} is no JSON number")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise BadBody(400, "INVALID_JSON", f"{text[:40]} is beyond the range of numbers (about 1.8e308)")
    return value


def _integer(text: str) -> int:
    if len(text) > 40:
        raise BadBody(400, "INVALID_JSON", f"a whole number of {len(text)} digits; allowed: 40")
    return int(text)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise BadBody(400, "INVALID_JSON", f"the field {twice[:64]!a} stands twice in one object")
    return value


def _storable(value: Any, pointer: str) -> None:
    """No database keeps half a surrogate pair, and PostgreSQL keeps no NUL in text."""
    if isinstance(value, str):
        if "\0" in value or any("\ud800" <= c <= "\udfff" for c in value):
            raise BadBody(400, "INVALID_TEXT", "text with a NUL or an unpaired surrogate", pointer)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            _storable(item, f"{pointer}/{index}")
    elif isinstance(value, dict):
        for name, item in value.items():
            _storable(name, pointer)
            _storable(item, f"{pointer}/{name}")


class _StrictRequest(Request):
    async def json(self) -> Any:
        return parse_json(await self.body())


class StrictJsonRoute(APIRoute):
    """A route whose JSON body is parsed by ``parse_json`` and must be sent as ``application/json``."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()
        takes_body = self.body_field is not None

        async def handle(request: Request) -> Response:
            if takes_body:
                kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
                if kind != "application/json" and not (kind.startswith("application/") and kind.endswith("+json")):
                    raise BadBody(415, "UNSUPPORTED_MEDIA_TYPE", f"body of type {kind[:80]!a}; send application/json")
                request = _StrictRequest(request.scope, request.receive)
                if not await request.body():
                    raise BadBody(400, "INVALID_JSON", "the body is empty; send a JSON object")
            return await handler(request)

        return handle
