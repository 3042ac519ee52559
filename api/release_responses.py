"""Defines the models of what the service answers about releases. They are made from the frozen values of
``service.views``."""

from pydantic import Field

from .responses import ResponseModel


class ReleaseOut(ResponseModel):
    """Describes a release: best schedules that are frozen under a name. It never changes."""

    name: str
    created_at: str
    sha256: str = Field(description="The hash of what is in its bundle.")
    entries: int = Field(description="How many schedules it has.")
    bundle_bytes: int


class ReleasePage(ResponseModel):
    """This is a part of the list of releases, newest first. ``next_page_token`` is empty at the end, and only there."""

    releases: tuple[ReleaseOut, ...]
    next_page_token: str


class ReleaseKeyOut(ResponseModel):
    """Is the public key that the service's releases are signed for (Ed25519, RFC 8032)."""

    algorithm: str
    public_key: str = Field(description="32 bytes in hexadecimal digits. Clients pin it.")
    key_id: str = Field(description="A short name of it, which bundles have too.")


class ChangedEntryOut(ResponseModel):
    """Says what is other for one workload. A time is null where the release has no schedule for it."""

    workload_key: str
    device_key: str
    toolchain_key: str
    profile: str
    before_seconds: float | None
    after_seconds: float | None
    speedup: float | None = Field(description="How often the old time holds the new one.")


class ReleaseDiffOut(ResponseModel):
    """Says what is other in the release ``name`` than in ``against``. Each list has 1,000 entries at most; of the
    changes the greatest speed-ups come first."""

    name: str
    against: str
    added: int
    removed: int
    changed: int
    same: int
    added_entries: tuple[ChangedEntryOut, ...]
    removed_entries: tuple[ChangedEntryOut, ...]
    changed_entries: tuple[ChangedEntryOut, ...]


class PromotionOut(ResponseModel):
    """Says that a channel began to point to a release. ``how`` is ``promoted`` or ``rolled back``."""

    release: str
    how: str
    created_at: str


class ChannelOut(ResponseModel):
    """Shows a channel: the release that it points to, and those before, the newest first. A pinned channel takes no
    other release."""

    name: str
    release: str | None
    pinned: bool
    history: tuple[PromotionOut, ...]


class ChannelList(ResponseModel):
    """Lists the channels, in the order in which a release passes them."""

    channels: tuple[ChannelOut, ...]
