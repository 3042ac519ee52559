"""The problem answers that routes declare in OpenAPI, by status."""

from typing import Any

from .problem import Problem

DESCRIPTIONS = {
    400: "The body is not JSON, or the Host header is not one of this service's names.",
    403: "A change asked for by a page of another origin.",
    404: "What was asked for does not exist.",
    409: "The request contradicts the present state.",
    413: "The body is larger than 1 MiB.",
    415: "The body is not application/json.",
    422: "The input is invalid; `field` says where.",
    503: "The database or a worker is away; try again after `Retry-After` seconds.",
    507: "The disk is full; nothing was stored.",
}


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """OpenAPI responses for the given statuses, beside those that any route may answer with."""
    return {
        status: {
            "model": Problem,
            "description": DESCRIPTIONS[status],
            "content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}},
        }
        for status in sorted({400, 422, 503, *statuses})
    }


READS = problems()
FINDS = problems(404)
CREATES = problems(403, 404, 409, 413, 415, 507)
COMPUTES = problems(403, 404, 413, 415)
CHANGES = problems(403, 404, 409, 507)
