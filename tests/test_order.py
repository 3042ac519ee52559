"""The order of the tests: every process begins with files that take long."""

from pathlib import Path

import pytest

from tests.order import LONG, long_files_first

TESTS = Path(__file__).parent


@pytest.mark.parametrize("processes", [1, 2, 3, 4, 7])
def test_every_part_of_the_list_begins_with_long_files(processes: int) -> None:
    named = [name for group in LONG for name in group]
    files = sorted([name for name in named for _ in range(3)] + [f"other/test_{n}.py" for n in range(400)])
    order = long_files_first(files, processes)
    assert sorted(order) == list(range(len(files)))
    for process in range(min(processes, len(LONG))):  # as xdist divides the list
        begin = sum((len(files) - done) // (processes - k) for k, done in _parts(len(files), processes)[:process])
        assert files[order[begin]] == LONG[process][0]
        assert [files[p] for p in order[begin : begin + 3 * len(LONG[process])]] == [
            name for name in LONG[process] for _ in range(3)
        ]


def _parts(tests: int, processes: int) -> list[tuple[int, int]]:
    """Return (number of the process, tests of the processes before it)."""
    found, done = [], 0
    for k in range(processes):
        found.append((k, done))
        done += (tests - done) // (processes - k)
    return found


def test_other_tests_keep_their_order_and_long_files_are_there() -> None:
    files = ["a.py", "workers/test_ray.py", "b.py", "b.py", "c.py"]
    assert [p for p in long_files_first(files, 2) if p != 1] == [0, 2, 3, 4]
    assert long_files_first(["workers/test_ray.py"] * 5, 2) == [0, 1, 2, 3, 4]
    assert long_files_first([], 3) == []
    assert [name for group in LONG for name in group if not (TESTS / name).is_file()] == []
