"""Lists devices: those that records were measured on, and those attached now."""

from fastapi import APIRouter

from ...service.views import DeviceView
from ..dependencies import ServiceDependency
from ..problem_responses import READS
from ..responses import DeviceList, DeviceOut, TargetOut
from ..strict_route import StrictRoute

router = APIRouter(prefix="/v1/devices", tags=["devices"], route_class=StrictRoute)


@router.get("", operation_id="listDevices", responses=READS)
def list_devices(service: ServiceDependency) -> DeviceList:
    """List all devices that records were measured on, and those attached to this service now."""
    return DeviceList(devices=tuple(_device(view) for view in service.devices()))


def _device(view: DeviceView) -> DeviceOut:
    return DeviceOut(
        key=view.key,
        name=view.info.name,
        target=TargetOut.model_validate(view.info.target),
        hardware=dict(view.info.hardware),
        measured=dict(view.info.measured),
        present=view.present,
    )
