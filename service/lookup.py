"""Looks the best schedule up.

A look-up is strict: it serves records of this workload, device, toolchain and measuring profile, of sketches in the
version that this program has. ``relax`` names what may give way. Of the records that are left, those that differ in the
fewest parts win; a device weighs more than a toolchain, which weighs more than a profile. Times of different devices
or profiles are never compared: where several are left, the one with the newest record is taken. Another device must
have the architecture of the one that was asked for. Where the shape may give way, too, and nothing else helps, the
nearest workload of the operator that has a schedule which is legal for the one asked for is served: its record, with
its times.

    rows = records of the workload of current sketches that differ in relaxed parts alone
    group = the rows of least weight, of one device and one profile
    answer = the fastest of the group
"""

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..core.errors import InvalidParameter
from ..core.schedule import Schedule
from ..core.target import DeviceInfo
from ..db.rows import AnswerRow
from ..db.store import RecordStore
from ..db.visibility import record_tenant
from .identity import LocalIdentity
from .near_shapes import NearShapes, Origin, near_shapes
from .views import ExpectedLoss

CONDITIONS: tuple[str, ...] = ("profile", "toolchain", "device")
"""The conditions that may give way, the least important first."""
RELAXABLE: tuple[str, ...] = (*CONDITIONS, "shape")
"""All that may give way: the shape of the workload is the last that does."""
_WEIGHTS = {name: 1 << place for place, name in enumerate(RELAXABLE)}


@dataclass(frozen=True, slots=True)
class Conditions:
    """Says under which conditions records are looked up, and which of these may give way. ``code`` is the (kind,
    architecture) that the device runs, where that is known without the database."""

    device_key: str
    toolchain_key: str
    profile: str
    relax: frozenset[str] = frozenset()
    code: tuple[str, str] | None = None
    tenant: str | None = None
    """Only records of this tenant are served; None: those of all."""

    @classmethod
    def of(
        cls,
        local: LocalIdentity,
        device_key: str | None = None,
        toolchain_key: str | None = None,
        profile: str | None = None,
        relax: Iterable[str] = (),
    ) -> "Conditions":
        """Fill parts that are not given from ``local``. Raises InvalidParameter for a part that cannot give way."""
        chosen = frozenset(relax)
        for name in sorted(chosen - set(RELAXABLE)):
            raise InvalidParameter(f"{name[:80]!r} cannot give way; allowed: {', '.join(RELAXABLE)}", field="relax")
        # no record has an empty key: there is no device here, and none was given
        device, toolchain = device_key or local.device_key or "", toolchain_key or local.toolchain_key or ""
        return cls(device, toolchain, profile or local.profile, chosen, local.code, record_tenant())


@dataclass(frozen=True, slots=True)
class Answer:
    """Holds what a look-up found. ``record`` is the record as a JSON object in text, and ``relaxed`` the identity parts
    in which it differs from what was asked for; none: it matches exactly."""

    record: str
    relaxed: tuple[str, ...] = ()
    expected_loss: ExpectedLoss | None = None

    @property
    def match(self) -> tuple[str, ...]:
        """Return ``exact``, or the parts that were relaxed."""
        return self.relaxed or ("exact",)

    def parsed(self) -> dict[str, Any]:
        """Return the record as a mapping."""
        found: dict[str, Any] = json.loads(self.record)
        return found


@dataclass(frozen=True, slots=True)
class Miss:
    """Says why a look-up found nothing: ``reason`` is a part of a sentence."""

    reason: str = "no timed record has this device, toolchain and profile"


_UNKNOWN, _ONLY_EARLIER = Miss(), Miss("its records are of earlier versions of their sketches")


@dataclass(frozen=True, slots=True)
class Asked:
    """Names what was asked for, to the estimate of a loss."""

    workload_key: str
    device_key: str
    operator: str | None = None


LossOf = Callable[[str, frozenset[str], Asked], ExpectedLoss]
"""Returns the expected loss of an answer: of the kind of its device, of what was relaxed, and of what was asked for."""


class Lookups:
    """Answers look-ups from a database. ``sketches`` maps each sketch to its version: others are never served."""

    def __init__(self, store: RecordStore, sketches: Mapping[str, int], expected_loss: LossOf) -> None:
        self._store = store
        self._sketches = sketches
        self._expected_loss = expected_loss
        self._devices: dict[str, DeviceInfo] = {}

    def find(
        self, workload_keys: Sequence[str], wanted: Conditions, origin: Origin | None = None
    ) -> list[Answer | Miss]:
        """Return the answer for every key, in order. This takes one statement; where keys without an exact record may
        relax a part, it takes another, and some for each key whose shape may give way. ``origin`` helps there where the
        only workload was never seen."""
        rows = self._store.answers(
            workload_keys,
            device_key=wanted.device_key,
            toolchain_key=wanted.toolchain_key,
            profile=wanted.profile,
            tenant=wanted.tenant,
        )
        by_key = _by_workload(rows)
        found: dict[str, Answer | Miss] = {key: self._exact(by_key.get(key, ())) for key in workload_keys}
        missing = [key for key, answer in found.items() if isinstance(answer, Miss)]
        if missing and wanted.relax:
            by_key = _by_workload(self._store.answers_anywhere(missing, tenant=wanted.tenant))
            alike = self._alike(wanted) if "device" in wanted.relax else frozenset()
            for key in missing:
                asked = Asked(key, wanted.device_key, None if origin is None else origin.operator)
                found[key] = self._relaxed(by_key.get(key, ()), wanted, alike, asked)
                if isinstance(found[key], Miss) and "shape" in wanted.relax:
                    found[key] = self._of_near_shape(key, wanted, alike, origin)
        return [found[key] for key in workload_keys]

    def _exact(self, rows: Sequence[AnswerRow]) -> Answer | Miss:
        current = [row for row in rows if self._sketches.get(row.sketch) == row.sketch_version]
        if current:
            return Answer(current[0].answer if len(current) == 1 else min(current, key=lambda row: row.rank).answer)
        return _ONLY_EARLIER if rows else _UNKNOWN

    def _of_near_shape(
        self, key: str, wanted: Conditions, alike: Collection[str], origin: Origin | None
    ) -> Answer | Miss:
        near = near_shapes(self._store, key, origin)
        if near is None:
            return Miss("no timed record matches, and of what operator it is, is not known; look its expression up")
        by_key = _by_workload(self._store.answers_anywhere(near.keys, tenant=wanted.tenant)) if near.keys else {}
        asked = Asked(key, wanted.device_key, near.operator)
        for other in near.keys:
            answer = self._relaxed(by_key.get(other, ()), wanted, alike, asked, near)
            if isinstance(answer, Answer):
                return answer
        return Miss("no timed record matches, though parts may give way")

    def _relaxed(
        self,
        rows: Sequence[AnswerRow],
        wanted: Conditions,
        alike: Collection[str],
        asked: Asked,
        near: NearShapes | None = None,
    ) -> Answer | Miss:
        groups: dict[tuple[tuple[str, ...], str, str], list[AnswerRow]] = {}
        for row in rows:
            parts = differing(row, wanted)
            if self._sketches.get(row.sketch) != row.sketch_version or not wanted.relax.issuperset(parts):
                continue
            if "device" in parts and row.device_key not in alike:
                continue
            if near is not None and not self._fits(row, near):
                continue
            groups.setdefault((parts, row.device_key, row.profile), []).append(row)
        if not groups:
            return Miss("no timed record matches, though parts may give way")
        parts, device_key, _ = chosen = min(
            groups, key=lambda group: (_weight(group[0]), -max(row.record_id for row in groups[group]))
        )
        best = min(groups[chosen], key=lambda row: row.rank)
        kind = self._known(device_key)
        relaxed = parts if near is None else (*parts, "shape")
        loss = self._expected_loss("" if kind is None else kind.target.kind, frozenset(relaxed), asked)
        return Answer(best.answer, relaxed, loss)

    def _fits(self, row: AnswerRow, near: NearShapes) -> bool:
        device = self._known(row.device_key)
        return device is not None and near.fits(Schedule.from_json(json.loads(row.answer)["schedule"]), device.target)

    def _alike(self, wanted: Conditions) -> frozenset[str]:
        """Return the keys of known devices that run the same code as the one that is asked for."""
        asked = self._known(wanted.device_key)
        code = wanted.code if asked is None else (asked.target.kind, asked.target.arch)
        return frozenset(k for k, info in self._devices.items() if (info.target.kind, info.target.arch) == code)

    def _known(self, device_key: str) -> DeviceInfo | None:
        if device_key not in self._devices:
            self._devices.update({info.key: info for info in self._store.devices()})
        return self._devices.get(device_key)


def differing(row: AnswerRow, wanted: Conditions) -> tuple[str, ...]:
    """Return the identity parts in which a record differs from what is wanted, the least important first."""
    pairs = (
        (row.profile, wanted.profile),
        (row.toolchain_key, wanted.toolchain_key),
        (row.device_key, wanted.device_key),
    )
    return tuple(name for name, (has, asked) in zip(CONDITIONS, pairs, strict=True) if has != asked)


def _weight(parts: Iterable[str]) -> int:
    return sum(_WEIGHTS[name] for name in parts)


def _by_workload(rows: Iterable[AnswerRow]) -> dict[str, list[AnswerRow]]:
    found: dict[str, list[AnswerRow]] = {}
    for row in rows:
        found.setdefault(row.workload_key, []).append(row)
    return found
