"""The part of the Python client for releases."""

from pathlib import Path
from typing import Any

from ..service.bundle import Bundle
from .release_responses import ChannelList, ChannelOut, ReleaseDiffOut, ReleaseKeyOut, ReleaseOut, ReleasePage
from .request_flow import Listing, RequestFlow, call, listed, parsed, path_part, request


class ReleaseMethods:
    """Describes the methods of a client that make, compare and fetch releases."""

    @call
    def freeze(
        self,
        name: str,
        *,
        device_key: str | None = None,
        toolchain_key: str | None = None,
        profile: str | None = None,
    ) -> RequestFlow[ReleaseOut]:
        """Make a release of the best schedules that are known now. Raises Contradiction when the name is taken."""
        parts = {"name": name, "device_key": device_key, "toolchain_key": toolchain_key, "profile": profile}
        body = {part: value for part, value in parts.items() if value is not None}
        return parsed(ReleaseOut, (yield request("POST", "/v1/releases", json=body)))

    @listed
    def releases(self) -> Listing[ReleaseOut]:
        """Yield all releases, newest first."""
        return Listing("/v1/releases", ReleasePage, lambda page: page.releases)

    @call
    def release_named(self, name: str) -> RequestFlow[ReleaseOut]:
        """Return a release."""
        return parsed(ReleaseOut, (yield request("GET", _path(name))))

    @call
    def compare(self, name: str, against: str) -> RequestFlow[ReleaseDiffOut]:
        """Return what is other in a release than in another one."""
        answer = yield (request("GET", f"{_path(name)}/diff", params={"against": against}))
        return parsed(ReleaseDiffOut, answer)

    @call
    def release_key(self) -> RequestFlow[ReleaseKeyOut]:
        """Return the public key of the service. Who pins it asks once, where the answer can be trusted."""
        return parsed(ReleaseKeyOut, (yield request("GET", "/v1/release_key")))

    @call
    def fetch_bundle(
        self, name: str, file: Path, *, public_key: str | None = None, key: bytes | None = None
    ) -> RequestFlow[ReleaseOut]:
        """Write the bundle of a release to a file, once it was found to be whole, and signed with ``public_key`` where
        that is given (``key``: the secret of a bundle of version 1). Raises BadBundle, and then writes nothing."""
        release = parsed(ReleaseOut, (yield request("GET", _path(name))))
        data = (yield request("GET", f"{_path(name)}/bundle")).content
        Bundle(data, public_key=public_key, key=key, sha256=release.sha256)
        made = file.with_name(f"{file.name}.part")
        made.write_bytes(data)
        made.replace(file)
        return release

    @call
    def channels(self) -> RequestFlow[tuple[ChannelOut, ...]]:
        """Return the channels with the releases that they point to."""
        return parsed(ChannelList, (yield request("GET", "/v1/channels"))).channels

    @call
    def channel(self, name: str) -> RequestFlow[ChannelOut]:
        """Return a channel."""
        return parsed(ChannelOut, (yield request("GET", f"/v1/channels/{path_part(name)}")))

    @call
    def promote(self, channel: str, release: str) -> RequestFlow[ChannelOut]:
        """Let a channel point to a release. Raises Contradiction where it may not."""
        return (yield from self._change(channel, "promote", json={"release": release}))

    @call
    def roll_back(self, channel: str) -> RequestFlow[ChannelOut]:
        """Let a channel point to the release before the present one."""
        return (yield from self._change(channel, "rollback"))

    @call
    def pin(self, channel: str) -> RequestFlow[ChannelOut]:
        """Pin a channel to the release that it points to."""
        return (yield from self._change(channel, "pin"))

    @call
    def unpin(self, channel: str) -> RequestFlow[ChannelOut]:
        """Let a channel take other releases again."""
        return (yield from self._change(channel, "unpin"))

    def _change(self, channel: str, verb: str, **options: Any) -> RequestFlow[ChannelOut]:
        answer = yield (request("POST", f"/v1/channels/{path_part(channel)}/{verb}", **options))
        return parsed(ChannelOut, answer)


def _path(name: str) -> str:
    return f"/v1/releases/{path_part(name)}"
