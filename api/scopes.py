"""Says which scope a key needs for each route: ``read`` to see something, ``submit`` to change something, and what the
table says where that is not so. A route that nobody thought of can therefore be read, or asks for ``submit``."""

from collections.abc import Collection

from ..service.callers import ADMIN, READ, SUBMIT, WORKER

COMPUTED = (
    "/v1/jobs/estimate",
    "/v1/models/{model_key}/jobs/estimate",
    "/v1/operators/{name}/workload",
    "/v1/schedules/batch_lookup",
    "/v1/schedules/explain",
    "/v1/schedules/export",
    "/v1/schedules/lookup",
    "/sign-in",
    "/sign-out",
    "/submit/check",
)
"""These take a body and change nothing."""
ADMINISTERED = (
    "/v1/channels/{channel}/",
    "/v1/keys",
    "/v1/releases",
    "/v1/tenants/",
    "/v1/units/",
)
"""Changes below these paths concern all tenants."""
MEASURED = ("/v1/models/{model_key}/timings", "/v1/records")
"""These take what was measured elsewhere."""
PRIVATE = ("/v1/audit", "/v1/keys")
"""These are not even seen without ``admin``."""


def scope_of(methods: Collection[str], path: str) -> str:
    """Return the scope that a route needs; ``path`` is its template."""
    if path.startswith(PRIVATE):
        return ADMIN
    if set(methods) <= {"GET", "HEAD"} or path in COMPUTED:
        return READ
    if path.startswith(ADMINISTERED):
        return ADMIN
    return WORKER if path in MEASURED else SUBMIT
