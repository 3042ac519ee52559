"""A record: a trial with its full identity, as it is kept."""

from dataclasses import dataclass

from .target import DeviceInfo, Profile, Toolchain
from .trial import Trial


@dataclass(frozen=True, slots=True)
class Identity:
    """The five parts that a lookup matches; the schedule carries the second (sketch and its version)."""

    workload_key: str
    device_key: str
    toolchain_key: str
    profile: str
    sketch: str
    sketch_version: int


@dataclass(frozen=True, slots=True)
class Record:
    """One trial of one job; ``sequence`` counts from 0 inside its task, without gaps."""

    id: int
    job_id: str
    task: int
    sequence: int
    identity: Identity
    trial: Trial
    created_at: str
    """RFC 3339, UTC."""


@dataclass(frozen=True, slots=True)
class MeasuredOn:
    """Where and how the trials of a task are taken: three of the five identity parts."""

    device: DeviceInfo
    toolchain: Toolchain
    profile: Profile


@dataclass(frozen=True, slots=True)
class RecordFilter:
    """Says which records are wanted; None or False asks for nothing. ``failed``: whether trials without a time are
    wanted, or those with one. ``reason`` is why a trial failed, ``own`` leaves out records that were adopted."""

    operator: str | None = None
    workload_key: str | None = None
    device_key: str | None = None
    sketch: str | None = None
    job_id: str | None = None
    failed: bool | None = None
    reason: str | None = None
    own: bool = False
