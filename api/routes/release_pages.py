"""Renders the dashboard's pages of releases: best schedules that are frozen, and the channels that point to them."""

from collections.abc import Mapping
from typing import Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Query
from fastapi.responses import Response

from ...service.service import Service
from ..dependencies import PageToken, ServiceDependency
from ..limits import NAME_PATTERN
from ..rendering import render
from ..strict_route import StrictRoute
from .releases import ReleaseName

router = APIRouter(include_in_schema=False, route_class=StrictRoute)
RELEASES_ON_A_PAGE = 20
MOST_CHANGES = 50
"""So many entries of each kind a difference shows; it counts all."""


@router.get("/releases")
def releases_page(service: ServiceDependency, page_token: PageToken = "") -> Response:
    """Show the channels and all releases, newest first."""
    page = service.releases.releases(page_size=RELEASES_ON_A_PAGE, token=page_token)
    query = urlencode({"page_size": RELEASES_ON_A_PAGE, "page_token": page_token})
    return render(
        "releases.html",
        page=page,
        page_token=page_token,
        api=f"/v1/releases?{query}",
        channels=service.releases.channels(),
        pointing=_pointing(service),
    )


@router.get("/releases/{name}")
def release_page(
    name: ReleaseName,
    service: ServiceDependency,
    against: Annotated[str | None, Query(pattern=NAME_PATTERN, description="The release to compare with.")] = None,
) -> Response:
    """Show one release, and what is other in it than in the release ``against``."""
    others = [one.name for one in service.releases.releases(page_size=RELEASES_ON_A_PAGE).items if one.name != name]
    return render(
        "release.html",
        release=service.releases.release(name),
        pointing=_pointing(service),
        others=others,
        against=against,
        diff=None if against is None else service.releases.diff(name, against),
        most=MOST_CHANGES,
        devices={device.key: device.info.name for device in service.devices()},
    )


def _pointing(service: Service) -> Mapping[str, list[str]]:
    """Return release -> the channels that point to it."""
    found: dict[str, list[str]] = {}
    for channel in service.releases.channels():
        if channel.release is not None:
            found.setdefault(channel.release, []).append(channel.name)
    return found
