"""Defines the problem documents that routes declare in OpenAPI, by status.

Routes name no model for them: FastAPI would make a validator for each status of each route when a server starts.
"""

from typing import Any

DESCRIPTIONS = {
    400: "The body is not JSON, or the Host header is not one of this service's names.",
    401: "The service wants a key, and the request did not carry a good one: `Authorization: Bearer …`.",
    403: "The key has not the scope of this route or acts for another tenant, or a page of another origin asks.",
    404: "What was asked for does not exist.",
    408: "The body did not arrive in time.",
    409: "The request contradicts the present state.",
    413: "The body is too large: 1 MiB, or 4 GiB of records.",
    415: "The body has another media type than this route takes.",
    422: "The input is invalid; `field` says where.",
    429: "The key sent too many requests, or its tenant has as much in the queue as it may have; try again after "
    "`Retry-After` seconds.",
    503: "The database or a worker does not answer; try again after `Retry-After` seconds.",
    507: "The disk is full; nothing was stored.",
}


def problem_responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return OpenAPI responses for the given statuses and for those that any route may answer with."""
    return {
        status: {
            "description": DESCRIPTIONS[status],
            "content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/ProblemDetails"}}},
        }
        for status in sorted({400, 401, 403, 422, 429, 503, *statuses, *((408,) if 413 in statuses else ())})
    }


READS = problem_responses()
FINDS = problem_responses(404)
CREATES = problem_responses(404, 409, 413, 415, 507)
COMPUTES = problem_responses(404, 413, 415)
CHANGES = problem_responses(404, 409, 507)
EDITS = problem_responses(404, 409, 413, 415, 507)
