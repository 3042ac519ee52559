"""Values that ``history`` makes of rows: earlier tasks, and groups of their records."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HistoryTask:
    """Names an earlier task, and what it was about."""

    job_id: str
    task: int
    workload_key: str
    operator: str | None
    flops: int
    minimum_bytes: int


@dataclass(frozen=True, slots=True)
class HistoryGroup:
    """Names records of one task that were measured on the same: what may be compared. ``newest``: the id of the last
    one."""

    job_id: str
    task: int
    workload_key: str
    device_key: str
    toolchain_key: str
    profile: str
    records: int
    newest: int

    @property
    def identity(self) -> tuple[str, int, str, str, str, str]:
        """What a record has in common with its group."""
        return self.job_id, self.task, self.workload_key, self.device_key, self.toolchain_key, self.profile
