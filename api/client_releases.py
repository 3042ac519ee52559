"""The part of the Python client for releases."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..service.bundle import Bundle
from .connection import ServiceConnection, parsed, path_part
from .release_responses import ChannelList, ChannelOut, ReleaseDiffOut, ReleaseKeyOut, ReleaseOut, ReleasePage


class ReleaseMethods(ServiceConnection):
    """Is the part of ``Client`` that makes, compares and fetches releases."""

    def freeze(
        self,
        name: str,
        *,
        device_key: str | None = None,
        toolchain_key: str | None = None,
        profile: str | None = None,
    ) -> ReleaseOut:
        """Make a release of the best schedules that are known now. Raises Contradiction when the name is taken."""
        parts = {"name": name, "device_key": device_key, "toolchain_key": toolchain_key, "profile": profile}
        body = {part: value for part, value in parts.items() if value is not None}
        return parsed(ReleaseOut, self._send("POST", "/v1/releases", json=body))

    def releases(self) -> Iterator[ReleaseOut]:
        """Yield all releases, newest first."""
        for page in self._pages("/v1/releases", ReleasePage, {}):
            yield from page.releases

    def release_named(self, name: str) -> ReleaseOut:
        """Return a release."""
        return parsed(ReleaseOut, self._send("GET", _path(name)))

    def compare(self, name: str, against: str) -> ReleaseDiffOut:
        """Return what is other in a release than in another one."""
        answer = self._send("GET", f"{_path(name)}/diff", params={"against": against})
        return parsed(ReleaseDiffOut, answer)

    def release_key(self) -> ReleaseKeyOut:
        """Return the public key of the service. Who pins it asks once, where the answer can be trusted."""
        return parsed(ReleaseKeyOut, self._send("GET", "/v1/release_key"))

    def fetch_bundle(
        self, name: str, file: Path, *, public_key: str | None = None, key: bytes | None = None
    ) -> ReleaseOut:
        """Write the bundle of a release to a file, once it was found to be whole, and signed with ``public_key`` where
        that is given (``key``: the secret of a bundle of version 1). Raises BadBundle, and then writes nothing."""
        release = self.release_named(name)
        data = self._send("GET", f"{_path(name)}/bundle").content
        Bundle(data, public_key=public_key, key=key, sha256=release.sha256)
        made = file.with_name(f"{file.name}.part")
        made.write_bytes(data)
        made.replace(file)
        return release

    def channels(self) -> tuple[ChannelOut, ...]:
        """Return the channels with the releases that they point to."""
        return parsed(ChannelList, self._send("GET", "/v1/channels")).channels

    def channel(self, name: str) -> ChannelOut:
        """Return a channel."""
        return parsed(ChannelOut, self._send("GET", f"/v1/channels/{path_part(name)}"))

    def promote(self, channel: str, release: str) -> ChannelOut:
        """Let a channel point to a release. Raises Contradiction where it may not."""
        return self._change(channel, "promote", json={"release": release})

    def roll_back(self, channel: str) -> ChannelOut:
        """Let a channel point to the release before the present one."""
        return self._change(channel, "rollback")

    def pin(self, channel: str) -> ChannelOut:
        """Pin a channel to the release that it points to."""
        return self._change(channel, "pin")

    def unpin(self, channel: str) -> ChannelOut:
        """Let a channel take other releases again."""
        return self._change(channel, "unpin")

    def _change(self, channel: str, verb: str, **options: Any) -> ChannelOut:
        answer = self._send("POST", f"/v1/channels/{path_part(channel)}/{verb}", **options)
        return parsed(ChannelOut, answer)


def _path(name: str) -> str:
    return f"/v1/releases/{path_part(name)}"
