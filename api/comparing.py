"""Reads what is to be compared, and shows how two sources differ."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from ..core.errors import InvalidParameter
from ..service.comparison import ComparedJob, ComparedRecord

MOST_ITEMS_TEXT = 800
_JOB = re.compile(r"job:([A-Za-z0-9_.-]{1,64})(?::(\d{1,4}))?")
_RECORD = re.compile(r"record:(\d{1,18})")
CONTEXT = 4
"""So many equal lines are shown around a difference."""


def items_of(texts: Iterable[str]) -> list[ComparedJob | ComparedRecord]:
    """Return what ``job:ID``, ``job:ID:TASK`` and ``record:ID`` ask for. Raises InvalidParameter."""
    found = list[ComparedJob | ComparedRecord]()
    for text in texts:
        job, record = _JOB.fullmatch(text), _RECORD.fullmatch(text)
        if job:
            found.append(ComparedJob(job[1], int(job[2] or 0)))
        elif record:
            found.append(ComparedRecord(int(record[1])))
        else:
            raise InvalidParameter(f"{text[:80]!r} is nothing to compare; allowed: job:ID, job:ID:TASK, record:ID")
    return found


def item_text(item: ComparedJob | ComparedRecord) -> str:
    """Return the text of which ``items_of`` makes the item."""
    return f"record:{item.record_id}" if isinstance(item, ComparedRecord) else f"job:{item.job_id}:{item.task}"


@dataclass(frozen=True, slots=True)
class DiffLine:
    """One line of a difference. ``kind`` is ``same``, ``left``, ``right`` or ``gap`` (lines that are left out). The
    numbers are those of the line in its text, from 1; None where it is not in it."""

    kind: str
    left: int | None
    right: int | None
    text: str


def difference(left: str, right: str) -> list[DiffLine]:
    """Return how two texts differ, with some equal lines around; none where they are equal."""
    a, b = left.splitlines(), right.splitlines()
    lines = list[DiffLine]()
    end = 0
    for group in SequenceMatcher(None, a, b, autojunk=False).get_grouped_opcodes(CONTEXT):
        skipped = group[0][1] - end
        if skipped:
            lines.append(DiffLine("gap", None, None, f"{skipped} equal lines"))
        for tag, i, i_end, j, j_end in group:
            if tag == "equal":
                lines += [DiffLine("same", i + n + 1, j + n + 1, a[i + n]) for n in range(i_end - i)]
            else:
                lines += [DiffLine("left", n + 1, None, a[n]) for n in range(i, i_end)]
                lines += [DiffLine("right", None, n + 1, b[n]) for n in range(j, j_end)]
            end = i_end
    if lines and end < len(a):
        lines.append(DiffLine("gap", None, None, f"{len(a) - end} equal lines"))
    return lines


def counts(lines: Sequence[DiffLine]) -> tuple[int, int]:
    """Return how many lines stand only on the left, and only on the right."""
    return sum(line.kind == "left" for line in lines), sum(line.kind == "right" for line in lines)
