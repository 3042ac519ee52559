"""Defines the dependencies of routes: the service, and the parameters that several routes take."""

from typing import Annotated

from fastapi import Depends, Path, Query, Request

from ..service.service import Service
from .limits import FUNCTION_PATTERN, KEY_PATTERN, MAX_ID, MAX_PAGE_SIZE, NAME_PATTERN, UNIT_PATTERN


async def service_of(request: Request) -> Service:
    """Return the service that this application was made for.

    This is a coroutine though it waits for nothing: FastAPI runs plain functions in a thread, which costs more than
    everything else in a short request.
    """
    service: Service = request.app.state.service
    return service


ServiceDependency = Annotated[Service, Depends(service_of)]
JobId = Annotated[str, Path(pattern=NAME_PATTERN, description="The job's id.")]
UnitId = Annotated[str, Path(pattern=UNIT_PATTERN, description="The unit's UUID.")]
TenantName = Annotated[str, Path(pattern=NAME_PATTERN, description="The tenant's name.")]
TaskNumber = Annotated[int, Path(ge=0, le=1_000, description="Which task of the job.")]
FunctionName = Annotated[
    str, Query(pattern=FUNCTION_PATTERN, description="What its functions for other programs are called.")
]
WithLibrary = Annotated[bool, Query(description="Whether a shared library is linked as well.")]
RecordId = Annotated[int, Path(ge=1, le=MAX_ID, description="The record's id.")]
WorkloadKey = Annotated[str, Path(pattern=KEY_PATTERN, description="The workload's key.")]
OperatorName = Annotated[str, Path(pattern=NAME_PATTERN, description="The operator's name.")]
PageSize = Annotated[int, Query(ge=1, le=MAX_PAGE_SIZE)]
PageToken = Annotated[
    str, Query(max_length=512, description="The next_page_token of the page before; empty: the first page.")
]
TaskIndex = Annotated[int, Query(ge=0, le=1_000, description="Which task of the job.")]
