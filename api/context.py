"""What routes are handed: the service, and the check that a query has no parameters that nobody reads."""

from typing import Annotated

from fastapi import Depends, Path, Query, Request

from ..service.service import Service
from .limits import KEY_PATTERN, MAX_ID, MAX_PAGE_SIZE, NAME_PATTERN
from .problems import Refused


async def service_of(request: Request) -> Service:
    """The service that this application was made for."""
    service: Service = request.app.state.service
    return service


async def closed_query(request: Request) -> None:
    """Refuses (422) query parameters that the route does not have, and any given twice."""
    known = {parameter.alias for parameter in request.scope["route"].dependant.query_params}
    given = [name for name, _ in request.query_params.multi_items()]
    for name in given:
        if name not in known:
            allowed = ", ".join(sorted(known)) or "none"
            raise Refused(
                422, "UNKNOWN_PARAMETER", f"unknown query parameter; allowed: {allowed}", ascii(name)[1:-1][:64]
            )
    if len(given) != len(set(given)):
        twice = next(name for name in given if given.count(name) > 1)
        raise Refused(422, "REPEATED_PARAMETER", "a query parameter is given twice", twice)


Serving = Annotated[Service, Depends(service_of)]
JobId = Annotated[str, Path(pattern=NAME_PATTERN, description="The job's id.")]
RecordId = Annotated[int, Path(ge=1, le=MAX_ID, description="The record's id.")]
OperatorName = Annotated[str, Path(pattern=NAME_PATTERN, description="The operator's name.")]
PageSize = Annotated[int, Query(ge=1, le=MAX_PAGE_SIZE)]
PageToken = Annotated[str, Query(max_length=512, description="next_page_token of the page before; empty: the first.")]
TaskIndex = Annotated[int, Query(ge=0, le=1_000, description="Which task of the job.")]
KeyQuery = Annotated[str, Query(pattern=KEY_PATTERN)]
OptionalKey = Annotated[str | None, Query(pattern=KEY_PATTERN)]
