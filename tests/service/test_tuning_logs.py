"""What another program timed: searches learn from it, and no look-up serves it."""

import json
from pathlib import Path

import pytest

from tilewright.core.errors import NotFound
from tilewright.cost_model.similarity import Situation
from tilewright.db.encode import device_to_json
from tilewright.schedule.sketches import sketches_for
from tilewright.service.history import experiences, related_groups
from tilewright.service.service import Service
from tilewright.service.settings import Settings
from tilewright.service.tuning_logs import device_named, read_tuning_log
from tilewright.service.views import TaskSpec
from tilewright.te.key import workload_key
from tilewright.te.operators import OPERATORS
from tilewright.tests.api.filled import HERE
from tilewright.tests.db.fleets import migrated

SHAPE = {"m": 192, "n": 256, "k": 256}
PRODUCT = OPERATORS["matmul"].workload(SHAPE)


def log() -> str:
    """Nine records of MetaSchedule with tiles of their own, and one without a time."""
    lines = []
    arguments = [
        ["TENSOR", "float32", [192, 256]],
        ["TENSOR", "float32", [256, 256]],
        ["TENSOR", "float32", [192, 256]],
    ]
    tiles = [(i, j, kc) for i, j in ((4, 8), (4, 16), (6, 8), (6, 16), (8, 8)) for kc in (128, 256)]
    for place, (i, j, kc) in enumerate(tiles):
        factors = [[4, 192 // (4 * i), 1, i], [2, 256 // (2 * j), 1, j], [256 // kc, kc]]
        instructions: list[object] = [["GetLoops", ["b0"], [], ["l1", "l2", "l3"]]]
        instructions += [["SamplePerfectTile", [f"l{n + 1}"], [4, 64], []] for n in range(3)]
        decisions = [[n + 1, found] for n, found in enumerate(factors)]
        seconds = None if place == len(tiles) - 1 else [1e-3 / (place + 1)]
        lines.append(json.dumps([0, [[instructions, decisions], seconds, {"kind": "llvm"}, arguments]]))
    return "\n".join(lines)


def test_imported_records_are_history_and_no_answer(tmp_path: Path) -> None:
    settings = Settings(database_url=f"sqlite:///{tmp_path}/t.sqlite3", run_jobs=False)
    read = read_tuning_log(log(), "metaschedule", TaskSpec(PRODUCT, "matmul", SHAPE), HERE.device)
    assert read.taken == 9 and read.refused == {"the log does not say how fast its configuration is": 1}
    with migrated(f"sqlite:///{tmp_path}/t.sqlite3") as store:
        assert store.import_lines(read.lines) == (9, 0)
        assert store.import_lines(read.lines) == (0, 9)
        assert store.devices() == ()
        (stand_in,) = store.devices(imported=True)
        assert stand_in.imported and stand_in.key != HERE.device.key and stand_in.target == HERE.device.target
        situation = Situation(PRODUCT, HERE.device, HERE.toolchain.key, str(HERE.profile))
        groups = related_groups(store, situation, operator="matmul", until=99, but=None, limit=99)
        (learned,) = experiences(store, store.history(groups, until=99))
        assert learned.device == stand_in and len(learned.results) == 9
        sketch = sketches_for(PRODUCT, HERE.device.target)[0].name
        assert {schedule.sketch for schedule, _ in learned.results} == {sketch}
    with Service.open(settings) as service:
        everything = ("profile", "toolchain", "device", "shape")
        with pytest.raises(NotFound):
            service.best(
                workload_key(PRODUCT),
                device_key=HERE.device.key,
                toolchain_key=HERE.toolchain.key,
                relax=everything,
            )
        assert [device.info.name for device in service.devices() if device.info.imported] == [stand_in.name]


def test_a_device_is_named_by_its_key_or_by_a_target() -> None:
    known = [{"key": HERE.device.key, "present": True, **device_to_json(HERE.device)}]
    assert device_named(HERE.device.key, known) == HERE.device
    assert device_named("cuda:sm_90a", known).target.arch == "sm_90a"
