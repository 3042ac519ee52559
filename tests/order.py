"""The order of the tests when several processes run them: the files that take longest come first.

``--dist worksteal`` gives every process one part of the list, each as long as the others, and a process that is done
takes tests from the end of another one's part. So a part begins with long files. They came last before, when there was
nothing left to run beside them.
"""

from collections.abc import Sequence

LONG: tuple[tuple[str, ...], ...] = (
    (  # these mostly wait, and several clusters of Ray at once would take much memory
        "workers/test_ray_cluster.py",
        "service/test_ray_cluster.py",
        "workers/test_ray.py",
        "workers/test_ray_new_head.py",
    ),
    (
        "contracts/test_executors.py",
        "service/test_task_workers.py",
        "workers/test_program_builders.py",
    ),
    (
        "service/test_jobs.py",
        "service/test_pauses.py",
        "service/test_kill.py",
        "service/test_fleet_faults.py",
    ),
    (
        "api/test_every_page.py",
        "api/test_fuzz.py",
        "cli/test_running_service.py",
        "workers/test_planted.py",
    ),
)
"""Files that take half a minute or more, in groups that run one file after the other."""


def long_files_first(files: Sequence[str], processes: int) -> list[int]:
    """Return the positions of tests in the order in which they should run. ``files`` has the file of each test, within
    the folder of the tests."""
    first: list[list[int]] = [[] for _ in range(processes)]
    long: set[int] = set()
    for number, group in enumerate(LONG):
        found = [position for name in group for position, file in enumerate(files) if file == name]
        first[number % processes] += found
        long.update(found)
    others = [position for position in range(len(files)) if position not in long]
    order: list[int] = []
    for process, part in enumerate(first):
        size = (len(files) - len(order)) // (processes - process)
        taken = max(size - len(part), 0)
        order += part + others[:taken]
        del others[:taken]
    return order + others
