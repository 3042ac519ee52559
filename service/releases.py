"""The use cases of releases: a set of best schedules is frozen under a name, and reaches machines through channels.

    best records ─ freeze ─▶ release ─ promote ─▶ canary ─ promote ─▶ stable
                                                    ◀─ roll back ─

A release never changes: it is a bundle (``service.bundle``), signed and named by the hash of its content too. A
channel points to one release. ``stable`` takes what ``canary`` has pointed to. A pinned channel points where it does
until it is unpinned.
"""

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from ..core.errors import Conflict, InvalidParameter, NotFound
from ..db.artefact_store import ArtefactStore
from ..db.encode import now
from ..db.release_store import ReleaseStore
from ..db.rows import AnswerRow, PromotionRow, ReleaseRow
from .bundle import Bundle, BundleEntry, write_bundle
from .page_token import page_size as checked_size
from .page_token import read_token, write_token
from .settings import Settings
from .signing import SigningKey
from .views import ChangedEntry, ChannelView, Page, PromotionView, ReleaseDiff, ReleaseView

PROMOTED, ROLLED_BACK = "promoted", "rolled back"
CHANNELS = ("canary", "stable")
"""A release is promoted to the first one first."""
MOST_BYTES = 900 << 20
"""SQLite keeps no value that is much larger than this."""
MOST_CHANGES = 1_000
"""How many entries of each kind a difference lists; it counts all."""
KEPT_BUNDLES = 2
KEY_FILE = "release-key.pem"


class Releases:
    """Makes, promotes and serves releases. It is thread-safe. Every method raises StoreError when the database cannot
    serve."""

    def __init__(
        self,
        store: ReleaseStore,
        artefacts: ArtefactStore,
        sketches: Mapping[str, int],
        settings: Settings,
        beside: Path | None,
    ) -> None:
        """``beside`` is the folder of an embedded database."""
        self._store = store
        self._beside = beside
        self._artefacts = artefacts
        self._sketches = sketches
        self._settings = settings
        self._opened = lru_cache(maxsize=KEPT_BUNDLES)(self._open)

    def freeze(
        self,
        name: str,
        *,
        device_key: str | None = None,
        toolchain_key: str | None = None,
        profile: str | None = None,
    ) -> ReleaseView:
        """Make a release of the best schedules that are known now, of all conditions or of those that are given.

        Raises Conflict for a name that is taken, NotFound where there is nothing to release, and InvalidParameter when
        the service has no key to sign with.
        """
        wanted = {"device_key": device_key, "toolchain_key": toolchain_key, "profile": profile}

        def chosen(row: AnswerRow) -> bool:
            return all(value is None or getattr(row, part) == value for part, value in wanted.items())

        key = self.signing_key()
        rows = self._store.winners(self._sketches, chosen)
        if not rows:
            raise NotFound("no best schedule is known that could be released")
        entries = (
            BundleEntry(row.device_key, row.toolchain_key, row.profile, row.workload_key, row.answer) for row in rows
        )
        at = now()
        bundle = write_bundle({"name": name, "created_at": at}, entries, key)
        if len(bundle) > MOST_BYTES:
            raise InvalidParameter(
                f"the bundle would have {len(bundle)} bytes; allowed: {MOST_BYTES}. Release fewer conditions at once",
                field="device_key",
            )
        records = [row.record_id for row in rows]
        made = self._store.add(name, Bundle(bundle).sha256, bundle, at, records)
        self._artefacts.pin(records)
        return release_view(made)

    def signing_key(self) -> SigningKey:
        """Return the key pair of this service. Raises InvalidParameter where it has none."""
        named = self._settings.release_key_file
        if named:
            return SigningKey.kept_in(Path(named))
        if self._beside is None:
            raise InvalidParameter(
                "the service has no key to sign releases with: set TILEWRIGHT_RELEASE_KEY_FILE to a file that all "
                "hosts of the service share",
                field="release_key_file",
            )
        return SigningKey.kept_in(self._beside / KEY_FILE)

    def release(self, name: str) -> ReleaseView:
        """Return a release. Raises NotFound."""
        return release_view(self._store.release(name))

    def releases(self, *, page_size: int = 50, token: str = "") -> Page[ReleaseView]:
        """Return releases, newest first. Raises InvalidParameter for a bad page size or token."""
        size = checked_size(page_size)
        cursor = read_token(token, ("releases",), (int,))
        rows = self._store.releases(before=None if cursor is None else int(cursor[0]), limit=size + 1)
        following = write_token(("releases",), [rows[size - 1].number]) if len(rows) > size else ""
        return Page(tuple(release_view(row) for row in rows[:size]), following)

    def bundle(self, name: str) -> bytes:
        """Return the bundle of a release. Raises NotFound."""
        return self._store.bundle(name)

    def _open(self, name: str) -> Bundle:
        return Bundle(self._store.bundle(name))

    def diff(self, name: str, against: str) -> ReleaseDiff:
        """Return what is other in the release ``name`` than in ``against``. Raises NotFound."""
        new, old = self._opened(name), self._opened(against)
        before = {(*entry.place, entry.workload_key): entry for entry in old.items()}
        added, changed, same = [], [], 0
        for entry in new.items():
            known = before.pop((*entry.place, entry.workload_key), None)
            if known is None:
                added.append(_change(None, entry))
            elif known.record != entry.record:
                changed.append(_change(known, entry))
            else:
                same += 1
        removed = [_change(entry, None) for entry in before.values()]
        changed.sort(key=lambda change: change.speedup or 0.0, reverse=True)
        return ReleaseDiff(
            name,
            against,
            len(added),
            len(removed),
            len(changed),
            same,
            tuple(added[:MOST_CHANGES]),
            tuple(removed[:MOST_CHANGES]),
            tuple(changed[:MOST_CHANGES]),
        )

    # channels

    def channel(self, name: str) -> ChannelView:
        """Return a channel. Raises NotFound for one that there is not."""
        row = self._store.channel(_channel(name))
        history = tuple(PromotionView(at.release, at.how, at.created_at) for at in row.history)
        return ChannelView(name, history[0].release if history else None, row.pinned, history)

    def channels(self) -> tuple[ChannelView, ...]:
        """Return all channels, in the order in which a release passes them."""
        return tuple(self.channel(name) for name in CHANNELS)

    def promote(self, channel: str, release: str) -> ChannelView:
        """Let a channel point to a release. Raises NotFound, and Conflict where the channel is pinned or the channel
        before has never pointed to the release."""
        with self._store.changing(_channel(channel)) as change:
            _refuse_pinned(channel, change.before.pinned)
            earlier = CHANNELS[: CHANNELS.index(channel)]
            for name in earlier:
                if release not in change.pointed_to(name):
                    self._store_known(release)
                    raise Conflict(f"release {release!r} was never on {name}; promote it there first", field="release")
            if not change.before.history or change.before.history[0].release != release:
                change.point(release, PROMOTED)
        return self.channel(channel)

    def _store_known(self, release: str) -> None:
        """Raise NotFound for a release that there is not."""
        self._store.release(release)

    def roll_back(self, channel: str) -> ChannelView:
        """Let a channel point to the release that it pointed to before the present one. Raises Conflict where there is
        none, or the channel is pinned."""
        with self._store.changing(_channel(channel)) as change:
            _refuse_pinned(channel, change.before.pinned)
            earlier = _stack(change.before.history)[:-1]
            if not earlier:
                raise Conflict(f"channel {channel} pointed to no other release before this one")
            change.point(earlier[-1], ROLLED_BACK)
        return self.channel(channel)

    def pin(self, channel: str, pinned: bool) -> ChannelView:
        """Pin a channel to the release that it points to, or unpin it. Raises Conflict where it points to none."""
        with self._store.changing(_channel(channel)) as change:
            if pinned and not change.before.history:
                raise Conflict(f"channel {channel} points to no release yet")
            change.pin(pinned)
        return self.channel(channel)


def release_view(row: ReleaseRow) -> ReleaseView:
    """Return a release as it is answered."""
    return ReleaseView(row.name, row.created_at, row.sha256, row.entries, row.bundle_bytes)


def _stack(history: Sequence[PromotionRow]) -> list[str]:
    """Return the releases that a channel would be rolled back to, the present one last."""
    stack: list[str] = []
    for at in reversed(history):
        if at.how == PROMOTED:
            stack.append(at.release)
        elif len(stack) > 1:
            stack.pop()
    return stack


def _channel(name: str) -> str:
    if name not in CHANNELS:
        raise NotFound(f"there is no channel {name[:80]!r}; there are {', '.join(CHANNELS)}", field="channel")
    return name


def _refuse_pinned(channel: str, pinned: bool) -> None:
    if pinned:
        raise Conflict(f"channel {channel} is pinned; unpin it first")


def _change(before: BundleEntry | None, after: BundleEntry | None) -> ChangedEntry:
    known = after or before
    assert known is not None
    old, new = (None if entry is None else float(json.loads(entry.record)["seconds"]) for entry in (before, after))
    speedup = None if old is None or new is None else old / new
    return ChangedEntry(known.workload_key, *known.place, old, new, speedup)
