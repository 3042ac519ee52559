"""Freezes best schedules as releases, compares and downloads them, and lets channels point to them."""

from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response

from ...service.signing import key_id
from ..dependencies import PageSize, PageToken, ServiceDependency
from ..limits import CHANNEL_PATTERN, NAME_PATTERN
from ..problem_responses import CHANGES, CREATES, EDITS, FINDS, READS
from ..release_responses import ChannelList, ChannelOut, ReleaseDiffOut, ReleaseKeyOut, ReleaseOut, ReleasePage
from ..requests import PromotionIn, ReleaseIn
from ..strict_route import StrictRoute

router = APIRouter(tags=["releases"], route_class=StrictRoute)
ReleaseName = Annotated[str, Path(pattern=NAME_PATTERN, description="The release's name.")]
ChannelName = Annotated[str, Path(pattern=CHANNEL_PATTERN, description="The channel: canary or stable.")]


@router.post("/v1/releases", operation_id="createRelease", status_code=201, responses=CREATES)
def freeze(body: ReleaseIn, service: ServiceDependency) -> ReleaseOut:
    """Freeze the best schedules that are known now under a name. A release never changes."""
    parts = {"device_key": body.device_key, "toolchain_key": body.toolchain_key, "profile": body.profile}
    return ReleaseOut.model_validate(service.releases.freeze(body.name, **parts))


@router.get("/v1/release_key", operation_id="getReleaseKey", responses=FINDS)
def release_key(service: ServiceDependency) -> ReleaseKeyOut:
    """Answer with the public key that releases are signed for."""
    public_key = service.releases.signing_key().public_key
    return ReleaseKeyOut(algorithm="ed25519", public_key=public_key, key_id=key_id(public_key))


@router.get("/v1/releases", operation_id="listReleases", responses=READS)
def releases(service: ServiceDependency, page_size: PageSize = 50, page_token: PageToken = "") -> ReleasePage:
    """List releases, newest first."""
    page = service.releases.releases(page_size=page_size, token=page_token)
    shown = tuple(ReleaseOut.model_validate(view) for view in page.items)
    return ReleasePage(releases=shown, next_page_token=page.next_token)


@router.get("/v1/releases/{name}", operation_id="getRelease", responses=FINDS)
def release(name: ReleaseName, service: ServiceDependency) -> ReleaseOut:
    """Describe a release."""
    return ReleaseOut.model_validate(service.releases.release(name))


@router.get(
    "/v1/releases/{name}/bundle",
    operation_id="getBundle",
    response_class=Response,
    responses={
        200: {
            "description": "The file.",
            "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
        },
        304: {"description": "The client has the file that the ETag in If-None-Match names."},
        **FINDS,
    },
)
def bundle(name: ReleaseName, request: Request, service: ServiceDependency) -> Response:
    """Download a release as one file that answers look-ups without a service."""
    tag = f'"{service.releases.release(name).sha256}"'
    headers = {"ETag": tag, "Cache-Control": "private, no-cache"}
    if tag in request.headers.get("if-none-match", ""):
        return Response(None, 304, headers)
    return Response(service.releases.bundle(name), 200, headers, "application/octet-stream")


@router.get("/v1/releases/{name}/diff", operation_id="compareReleases", responses=FINDS)
def diff(
    name: ReleaseName,
    against: Annotated[str, Query(pattern=NAME_PATTERN, description="The release to compare with.")],
    service: ServiceDependency,
) -> ReleaseDiffOut:
    """Say what is other in a release than in another one, and by how much it is faster."""
    return ReleaseDiffOut.model_validate(service.releases.diff(name, against))


@router.get("/v1/channels", operation_id="listChannels", responses=READS)
def channels(service: ServiceDependency) -> ChannelList:
    """List the channels with the releases that they point to."""
    return ChannelList(channels=tuple(ChannelOut.model_validate(view) for view in service.releases.channels()))


@router.get("/v1/channels/{channel}", operation_id="getChannel", responses=FINDS)
def show(channel: ChannelName, service: ServiceDependency) -> ChannelOut:
    """Show a channel with its history."""
    return ChannelOut.model_validate(service.releases.channel(channel))


@router.post("/v1/channels/{channel}/promote", operation_id="promoteRelease", responses=EDITS)
def promote(channel: ChannelName, body: PromotionIn, service: ServiceDependency) -> ChannelOut:
    """Let a channel point to a release. The channel stable takes what canary has pointed to."""
    return ChannelOut.model_validate(service.releases.promote(channel, body.release))


@router.post("/v1/channels/{channel}/rollback", operation_id="rollBackChannel", responses=CHANGES)
def roll_back(channel: ChannelName, service: ServiceDependency) -> ChannelOut:
    """Let a channel point to the release before the present one."""
    return ChannelOut.model_validate(service.releases.roll_back(channel))


@router.post("/v1/channels/{channel}/pin", operation_id="pinChannel", responses=CHANGES)
def pin(channel: ChannelName, service: ServiceDependency) -> ChannelOut:
    """Pin a channel to the release that it points to."""
    return ChannelOut.model_validate(service.releases.pin(channel, True))


@router.post("/v1/channels/{channel}/unpin", operation_id="unpinChannel", responses=CHANGES)
def unpin(channel: ChannelName, service: ServiceDependency) -> ChannelOut:
    """Let a channel take other releases again."""
    return ChannelOut.model_validate(service.releases.pin(channel, False))
