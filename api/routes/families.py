"""Makes shape families, lists and shows them, chooses schedules by shape, and writes dispatchers as code."""

from typing import Annotated, Literal

from fastapi import APIRouter, Path, Query, Response

from ...service.family_views import FamilySpec
from ..dependencies import FunctionName, PageSize, PageToken, ServiceDependency
from ..family_requests import FamilyIn
from ..family_responses import FamilyChoiceOut, FamilyOut, FamilyPage
from ..limits import NAME_PATTERN
from ..problem_responses import CREATES, FINDS, READS
from ..strict_route import StrictRoute

router = APIRouter(prefix="/v1/families", tags=["families"], route_class=StrictRoute)
FamilyName = Annotated[str, Path(pattern=NAME_PATTERN, description="The family's name.")]
Extents = Annotated[
    str,
    Query(
        pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,63}=[0-9]{1,13}(,[A-Za-z_][A-Za-z0-9_]{0,63}=[0-9]{1,13}){0,2}$",
        description="The extent of every dimension, such as m=64,n=128.",
    ),
]


@router.post("", operation_id="makeFamily", status_code=201, responses=CREATES)
def make(body: FamilyIn, service: ServiceDependency) -> FamilyOut:
    """Make a family from the records that there are. It takes the place of one that has its name."""
    ranges = tuple((one.name, one.low, one.high, one.step) for one in body.dimensions)
    spec = FamilySpec(body.name, body.operator, body.parameters, ranges, body.most, body.target_regret)
    parts = {"device_key": body.device_key, "toolchain_key": body.toolchain_key, "profile": body.profile}
    return FamilyOut.of(service.families.make(spec, **parts, target=body.target))


@router.get("", operation_id="listFamilies", responses=READS)
def list_families(service: ServiceDependency, page_size: PageSize = 20, page_token: PageToken = "") -> FamilyPage:
    """List families, newest first."""
    page = service.families.list(page_size=page_size, token=page_token)
    return FamilyPage(families=tuple(map(FamilyOut.of, page.items)), next_page_token=page.next_token)


@router.get("/{name}", operation_id="getFamily", responses=FINDS)
def get_family(name: FamilyName, service: ServiceDependency) -> FamilyOut:
    """Show a family: its schedules, its decision tree, and its regret."""
    return FamilyOut.of(service.families.get(name))


@router.get("/{name}/schedule", operation_id="chooseOfFamily", responses=FINDS)
def choose(name: FamilyName, shape: Extents, service: ServiceDependency) -> FamilyChoiceOut:
    """Choose the schedule of a family for a shape."""
    extents = {one.partition("=")[0]: int(one.partition("=")[2]) for one in shape.split(",")}
    return FamilyChoiceOut.model_validate(service.families.choose(name, extents))


@router.get(
    "/{name}/dispatcher",
    operation_id="getDispatcher",
    response_class=Response,
    responses={200: {"description": "The code.", "content": {"text/plain": {"schema": {"type": "string"}}}}, **FINDS},
)
def dispatcher(
    name: FamilyName,
    service: ServiceDependency,
    language: Annotated[Literal["c", "python"], Query(description="What it is written in.")] = "c",
    function: FunctionName = "choose_schedule",
) -> Response:
    """Write the dispatcher as a function of the extents, which returns the place of the schedule."""
    return Response(service.families.code(name, language, function), media_type="text/plain; charset=utf-8")
