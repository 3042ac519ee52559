"""Exports all records as JSON lines, and imports those of another database."""

import tempfile
from collections.abc import Iterator
from typing import IO

import anyio.to_thread
from fastapi import APIRouter, Request, Response
from fastapi.responses import StreamingResponse
from starlette.requests import ClientDisconnect

from ...core.errors import InvalidParameter
from ...service.service import Service
from ..dependencies import ServiceDependency
from ..json_body import BadBody
from ..problem_responses import READS, problem_responses
from ..responses import ImportedOut
from ..strict_route import StrictRoute

router = APIRouter(prefix="/v1/records", tags=["records"], route_class=StrictRoute)
JSON_LINES = "application/jsonl"
_IN_MEMORY_BYTES = 8 << 20
_LINES = {"schema": {"type": "string", "description": "One JSON object a line (see ``db/json_lines.py``)."}}


@router.get(
    "",
    operation_id="exportRecords",
    response_class=StreamingResponse,
    responses={200: {"description": "The records.", "content": {JSON_LINES: _LINES}}, **READS},
)
def export_records(service: ServiceDependency) -> Response:
    """Export every record, with the workloads, devices, toolchains and jobs that it refers to, as JSON lines."""
    lines = service.export_records()
    first = next(lines, None)  # a database that cannot serve is a problem document, not half an answer

    def all_lines() -> Iterator[str]:
        if first is not None:
            yield first + "\n"
            yield from (line + "\n" for line in lines)

    return StreamingResponse(all_lines(), media_type=JSON_LINES)


@router.post(
    "",
    operation_id="importRecords",
    response_model=ImportedOut,
    responses=problem_responses(413, 415, 507),
    openapi_extra={"requestBody": {"required": True, "content": {JSON_LINES: _LINES}}},
)
async def import_records(request: Request, service: ServiceDependency) -> Response:
    """Add the records of such lines. Those that the database has already stay as they are. A line that is refused is
    named, and then nothing is added."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != JSON_LINES:
        raise BadBody(415, "UNSUPPORTED_MEDIA_TYPE", f"body of type {kind[:80]!a}; send {JSON_LINES}")
    with tempfile.SpooledTemporaryFile(_IN_MEMORY_BYTES, "w+b") as file:
        try:
            async for chunk in request.stream():  # before the transaction begins: a slow sender must not hold it open
                await anyio.to_thread.run_sync(file.write, chunk)
        except ClientDisconnect as error:
            raise BadBody(400, "INCOMPLETE_BODY", "the body ended before its last line") from error
        answer = await anyio.to_thread.run_sync(_imported, service, file)
    return Response(answer.model_dump_json(), 200, media_type="application/json")


def _imported(service: Service, file: IO[bytes]) -> ImportedOut:
    file.seek(0)
    imported, known = service.import_records(map(_text, file))
    return ImportedOut(imported=imported, known=known)


def _text(line: bytes) -> str:
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise InvalidParameter(f"a line is not UTF-8: {error.reason}", field="line") from error
