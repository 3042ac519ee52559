"""Models that a service tunes: one job, kernels exchanged between calls, and schedules kept for the next process."""

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.torch_backend.models import check, compiled, latest, newest_shape  # noqa: E402
from tilewright.api.app import create_app  # noqa: E402
from tilewright.api.client import Client  # noqa: E402
from tilewright.core.cache_folder import cache_folder  # noqa: E402
from tilewright.core.schedule import Schedule  # noqa: E402
from tilewright.schedule.defaults import default_schedule  # noqa: E402
from tilewright.schedule.sketches import sketches_for  # noqa: E402
from tilewright.service.service import Service  # noqa: E402
from tilewright.service.settings import Settings  # noqa: E402
from tilewright.tests.api.serving import running  # noqa: E402
from tilewright.torch_backend.devices import opened, toolchain_of  # noqa: E402
from tilewright.torch_backend.schedule_cache import ScheduleCache  # noqa: E402
from tilewright.torch_backend.service_schedules import ServiceSchedules  # noqa: E402

WAIT_SECONDS = 300


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def layers(x: Any) -> Any:
    return torch.softmax(torch.relu(x @ x) @ x, 1)


def test_a_service_tunes_a_model_once_and_its_kernels_are_exchanged(tmp_path: Path) -> None:
    x = torch.randn(24, 24)
    settings = Settings(database_url=f"sqlite:///{tmp_path}/t.sqlite3")
    with Service.open(settings) as service, running(create_app(service, settings)) as address:
        options = {"service": address, "tune": 6, "name": "layers", "verify": "first"}
        run = compiled(layers, **options)
        check(layers, run, x)
        shape, status = newest_shape(), latest()
        assert status.state == "ready" and status.tuned == 0
        with Client(address) as client:
            follower = next(t for t in __import__("threading").enumerate() if t.name == "tilewright-tune")
            follower.join(WAIT_SECONDS)
            assert not follower.is_alive()
            (model,) = client.models()
            job = client.job(model.jobs[0])
            assert (model.name, model.tuned, job.state.value) == ("layers", len(model.kernels), "succeeded")
            assert sum(task.trials for task in job.tasks) == 6
        assert status.tuned == len(shape._bound.program.tasks)
        check(layers, run, x)  # the kernels that are new are compared in this call
        assert not shape._unchecked and not status.reports and status.state == "ready"
        chosen = dict(shape._chosen)
        again = compiled(layers, **options)
        check(layers, again, x)
        assert newest_shape()._chosen == chosen  # what the first process found, without a job
        assert len(Client(address).model(model.key).jobs) == 1
        program = shape._bound.program
        (first, *others) = program.tasks  # as on a GPU, where torch computes what no kernel class takes
        part_of_it = {first: program.tasks[first].workload}
        assert others and list(ServiceSchedules(address).tune(program, part_of_it, "a part", 1))
        (part,) = (one for one in Client(address).models() if one.name == "a part")
        assert [kernel.workload_key for kernel in part.kernels] == [first] and part.foreign_calls
    alone = compiled(layers)  # no service is there any more
    check(layers, alone, x)
    assert newest_shape()._chosen == chosen and latest().tuned == len(chosen)


def test_an_exchanged_kernel_that_is_wrong_is_replaced_in_its_first_call() -> None:
    x = torch.randn(16, 16)
    run = compiled(layers, verify="first")
    check(layers, run, x)
    shape = newest_shape()
    device = opened(torch.device("cpu"))
    others = {}
    for key, task in shape._bound.program.tasks.items():
        space = sketches_for(task.workload, device.target)[0].space(task.workload, device.target, limit=16)
        default = default_schedule(task.workload, device.target)
        others[key] = next(s for s in (space.schedule(row) for row in range(len(space))) if s != default)
    assert shape.swap(dict(shape._chosen))  # a default that is the best is tuned, and not exchanged
    assert shape.status.swaps == 0 and shape.status.tuned == len(others)
    assert shape.swap(others)
    assert shape.status.swaps == 1 and shape._unchecked == set(others) and shape.status.tuned == len(others)
    key = next(iter(others))
    shape._bound._kernels[key] = Broken(shape._kernels[key])
    check(layers, run, x)
    assert [report.workload_key for report in shape.status.reports] == [key] and not shape._unchecked
    check(layers, run, x)
    assert shape.swap(others)  # nothing is new
    assert shape.status.swaps == 1


class Broken:
    """A kernel that writes nothing: its output is what the arena held."""

    has_prologue = False

    def __init__(self, kernel: Any) -> None:
        self.parameters = kernel.parameters

    def bind_at(self, addresses: Any) -> Any:
        import ctypes

        return lambda stream: ctypes.memset(addresses[-1], 0x7E, 64)


def test_what_is_kept_is_read_again_and_what_is_broken_is_ignored() -> None:
    device = opened(torch.device("cpu"))
    cache = ScheduleCache("ab" * 32, device.info.key, toolchain_of(device).key)
    assert cache.load() == {}
    known = {"cd" * 32: Schedule.of("cpu_loops", 1, {"order": "ij", "tile": 4})}
    cache.store(known)
    assert cache.load() == known
    assert ScheduleCache("ab" * 32, "another", toolchain_of(device).key).load() == {}
    (file,) = cache_folder("programs").iterdir()
    for text in ("{", "[]", '{"a": {"sketch": 3}}'):
        file.write_text(text)
        assert cache.load() == {}
