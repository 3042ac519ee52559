"""Writes the answers of look-ups.

Records are kept as the JSON that is answered (``db.best``), so that nothing is parsed or encoded on the way.
"""

import json
from collections.abc import Sequence
from hashlib import blake2b

from fastapi import Request, Response

from ..service.lookup import Answer, Miss
from .responses import ExpectedLossOut

_EXACT = '{"match":["exact"],"expected_loss":null,'


def best_text(answer: Answer) -> str:
    """Return the JSON of ``BestOut`` for an answer."""
    if not answer.relaxed:
        return _EXACT + answer.record[1:]
    loss = ExpectedLossOut.model_validate(answer.expected_loss).model_dump_json()
    return f'{{"match":{json.dumps(answer.match)},"expected_loss":{loss},{answer.record[1:]}'


def batch_text(answers: Sequence[Answer | Miss]) -> str:
    """Return the JSON of ``BatchOut`` for answers."""
    return f'{{"answers":[{",".join("null" if isinstance(a, Miss) else best_text(a) for a in answers)}]}}'


def tagged(request: Request, text: str, age_seconds: float = 0.0) -> Response:
    """Return the answer ``text`` with its ETag, or 304 where the client has it. The tag is a hash of the content: a
    better record gives another one. ``age_seconds`` says for how long it has been known, if the database is silent."""
    body = text.encode()
    tag = f'"{blake2b(body, digest_size=16).hexdigest()}"'
    headers = {"ETag": tag, "Cache-Control": "private, no-cache"}
    if age_seconds:
        headers["Age"] = str(round(age_seconds))
    given = request.headers.get("if-none-match")
    if given is not None and (given.strip() == "*" or tag in given):
        return Response(None, 304, headers)
    return Response(body, 200, headers, "application/json")
