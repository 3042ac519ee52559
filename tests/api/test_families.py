"""Shape families over HTTP and on the command line: made from records, chosen from, written as code."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tilewright.api.client import Client
from tilewright.api.client_errors import Missing
from tilewright.api.family_requests import DimensionIn, FamilyIn
from tilewright.cli.main import app
from tilewright.codegen.backends import backend_for
from tilewright.core.budget import Budget
from tilewright.core.record import MeasuredOn
from tilewright.core.target import Profile
from tilewright.core.trial import Timed, Trial
from tilewright.db.rows import NewJob, NewTrial
from tilewright.db.store import RecordStore
from tilewright.db.task import task_of
from tilewright.runtime.devices import device_info
from tilewright.schedule.sketches import sketches_for
from tilewright.te.operators import OPERATORS

SHAPES = (1, 3, 8, 16, 24, 48, 96)


def fill(store: RecordStore) -> MeasuredOn:
    """Time a few schedules of products with different m; which is best depends on m."""
    info = device_info()
    on = MeasuredOn(info, backend_for(info.target).toolchain(info.target), Profile())
    tasks = []
    for m in SHAPES:
        parameters = {"m": m, "n": 32, "k": 32}
        tasks.append((m, OPERATORS["matmul"].workload(parameters), parameters))
    rows = tuple(task_of(w, "matmul", p, field="/") for _, w, p in tasks)
    store.create_job(NewJob("family", "queued", rows, Budget(8), "random", 0, "llvm", "local", "warm"))
    for position, (m, workload, _) in enumerate(tasks):
        sketch = sketches_for(workload, info.target)[0]
        space = sketch.space(workload, info.target, limit=64)
        for sequence in range(min(6, len(space))):
            outcome = Timed((1e-6 * m * (1 + 0.3 * abs(sequence - m % 5)),))
            trial = Trial(space.schedule(sequence), outcome)
            store.add_trial(NewTrial("family", position, sequence, rows[position].workload_key, on, trial, 1.0))
    return on


def test_a_family_is_made_served_and_written(store: RecordStore, client: Client, address: str, tmp_path: Path) -> None:
    def command(*arguments: str) -> str:
        done = CliRunner().invoke(app, ["--url", address, *arguments])
        assert done.exit_code == 0, done.output
        return done.stdout

    on = fill(store)
    wanted = FamilyIn(
        name="small",
        operator="matmul",
        parameters={"n": 32, "k": 32},
        dimensions=[DimensionIn(name="m", low=8, high=96, step=8)],
        device_key=on.device.key,
        toolchain_key=on.toolchain.key,
        profile=str(on.profile),
    )
    family = client.make_family(wanted)
    assert [list(one.shape) for one in family.measured] == [[m] for m in SHAPES if m >= 8]
    assert 1 <= len(family.schedules) <= 8 and (family.regret is None or family.regret.shapes > 0)
    assert client.family("small") == family and list(client.families()) == [family]
    chosen = client.choose_of_family("small", "m=56")
    assert chosen.parameters == {"m": 56, "n": 32, "k": 32} and chosen.schedule == family.schedules[chosen.place]
    with pytest.raises(Exception, match="allowed: 8 to 96"):
        client.choose_of_family("small", "m=104")
    with pytest.raises(Missing, match="no record of matmul"):
        client.make_family(wanted.model_copy(update={"parameters": {"n": 32, "k": 31}}))
    for file in (tmp_path / "choose.c", tmp_path / "choose.py"):
        command("family", "code", "small", str(file))
    space: dict[str, object] = {}
    exec((tmp_path / "choose.py").read_text(), space)
    choose = space["choose_schedule"]
    assert callable(choose) and choose(56) == chosen.place
    assert "int choose_schedule(int64_t m)" in (tmp_path / "choose.c").read_text()
    answer = command("--json", "family", "choose", "small", "m=56")  # after what the server logs
    assert json.loads(answer[answer.index("{") :])["place"] == chosen.place
    assert "m 8..96/8" in command("family", "show", "small")
    assert "m 8..96/8" in command("family", "list")
