"""Shows and changes the fleet: units, the queue, tenants."""

from typing import Annotated

from fastapi import APIRouter, Query

from ...service.fleet import MAX_QUEUE
from ..dependencies import ServiceDependency, TenantName, UnitId
from ..fleet_responses import QueueEntryOut, QueueList, TenantList, TenantOut, UnitList, UnitOut
from ..problem_responses import EDITS, READS
from ..requests import ReasonIn, TenantIn
from ..strict_route import StrictRoute

router = APIRouter(prefix="/v1", tags=["fleet"], route_class=StrictRoute)


@router.get("/units", operation_id="listUnits", responses=READS)
def list_units(service: ServiceDependency) -> UnitList:
    """List the physical devices of the fleet: their state, who holds them, and what they do."""
    return UnitList(units=tuple(UnitOut.model_validate(unit) for unit in service.fleet.units()))


@router.post("/units/{uuid}/drain", operation_id="drainUnit", responses=EDITS)
def drain(uuid: UnitId, body: ReasonIn, service: ServiceDependency) -> UnitOut:
    """Take a unit out. The task in hand is given back after the trial that runs, and no other begins."""
    return UnitOut.model_validate(service.fleet.drain(uuid, body.reason))


@router.post("/units/{uuid}/release", operation_id="releaseUnit", responses=EDITS)
def release(uuid: UnitId, body: ReasonIn, service: ServiceDependency) -> UnitOut:
    """Let a unit take tasks again that was drained, quarantined or suspect."""
    return UnitOut.model_validate(service.fleet.release(uuid, body.reason))


@router.post("/units/{uuid}/quarantine", operation_id="quarantineUnit", responses=EDITS)
def quarantine(uuid: UnitId, body: ReasonIn, service: ServiceDependency) -> UnitOut:
    """Use a unit no more until it is released."""
    return UnitOut.model_validate(service.fleet.quarantine(uuid, body.reason))


@router.get("/queue", operation_id="listQueue", responses=READS)
def list_queue(
    service: ServiceDependency,
    limit: Annotated[int, Query(ge=1, le=MAX_QUEUE, description="How many tasks to answer with at most.")] = 200,
) -> QueueList:
    """List the tasks that run or wait, in the order in which they are to be claimed."""
    return QueueList(tasks=tuple(QueueEntryOut.model_validate(task) for task in service.fleet.queue(limit=limit)))


@router.get("/tenants", operation_id="listTenants", responses=READS)
def list_tenants(service: ServiceDependency) -> TenantList:
    """List the tenants with their weights, their quotas and what they have now."""
    return TenantList(tenants=tuple(TenantOut.model_validate(tenant) for tenant in service.fleet.tenants()))


@router.put("/tenants/{tenant}", operation_id="setTenant", responses=EDITS)
def set_tenant(tenant: TenantName, body: TenantIn, service: ServiceDependency) -> TenantOut:
    """Add a tenant, or change its weight and quotas."""
    changed = service.fleet.set_tenant(
        tenant, weight=body.weight, most_units=body.most_units, most_queued=body.most_queued
    )
    return TenantOut.model_validate(changed)
