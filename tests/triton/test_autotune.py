"""The drop-in for ``triton.autotune``: what it makes of a call, and what it does with the service's answer."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import tilewright.triton  # type: ignore[import-not-found]  # a second name of tilewright.triton_backend
from tilewright.api.app import create_app
from tilewright.core.budget import Budget
from tilewright.core.errors import InvalidParameter
from tilewright.core.trial import Clocks, Evidence, Timed, Trial
from tilewright.db.rows import NewJob, NewTrial
from tilewright.db.store import RecordStore
from tilewright.db.task import task_of
from tilewright.schedule.gpu.triton import CUDA_TRITON
from tilewright.service.service import Service
from tilewright.service.settings import Settings
from tilewright.te.json import workload_from_json, workload_to_json
from tilewright.te.key import workload_key
from tilewright.te.triton import TritonScalar, TritonWorkload
from tilewright.tests.api.serving import running
from tilewright.tests.db.fleets import move_job
from tilewright.tests.triton.test_service import THERE
from tilewright.triton_backend import autotune

torch: Any = pytest.importorskip("torch")
triton: Any = pytest.importorskip("triton")
if triton:  # these import it
    from tilewright.tests.triton import jitted
    from tilewright.triton_backend.call import CallTraits, KernelFunction, call_workload
    from tilewright.triton_backend.source import UnsupportedKernel, kernel_source
    from tilewright.triton_backend.tuner import ServiceAutotuner

N = 1000


def add_call() -> dict[str, Any]:
    tensors = {name: torch.zeros(N) for name in ("x_ptr", "y_ptr", "out_ptr")}
    return {**tensors, "n": N, "ACTIVATION": "leaky"}


def grid(meta: dict[str, Any]) -> tuple[int]:
    return (triton.cdiv(meta["n"], meta["BLOCK"]),)


def workload_of(
    function: Any, named: dict[str, Any], configs: Any = jitted.ADD_CONFIGS, **traits: Any
) -> TritonWorkload:
    given = {"key": ("n",), "zero": frozenset(), "ranges": {}} | traits
    return call_workload(KernelFunction.of(function, ()), CallTraits(**given), configs, named, grid)


def test_the_second_name() -> None:
    assert tilewright.triton.autotune is autotune


def test_a_source_has_all_that_the_kernel_uses() -> None:
    text = kernel_source(jitted.add)
    for part in ("SLOPE = triton.language.constexpr(0.25)", "NEGATIVE", "def leaky(x)", "def keep(", "def add("):
        assert part in text
    assert text.count("@triton.jit") == 3 and text.index("def keep(") < text.index("def add(")
    assert kernel_source(jitted.add) == text


def test_a_call_becomes_a_workload() -> None:
    workload = workload_of(jitted.add, add_call())
    kernel = workload.triton
    assert [b.name for b in workload.inputs] == ["x_ptr", "y_ptr"] and workload.outputs == ("out_ptr",)
    assert kernel.constants == (("ACTIVATION", "leaky"),) and kernel.version == triton.__version__
    assert [kernel.blocks(n)[0] for n in range(3)] == [8, 2, 1]
    assert workload_from_json(workload_to_json(workload)) == workload
    zero = workload_of(jitted.add, add_call(), zero=frozenset({"out_ptr"}))
    assert zero.triton.pointers[2].zero and workload_key(zero) != workload_key(workload)


def test_numbers_are_specialised_as_triton_does() -> None:
    a = torch.zeros((96, 128), dtype=torch.float16)
    c = torch.zeros((96, 256), dtype=torch.float16)[:, 3:131]
    named = dict(zip(jitted.matmul.arg_names, (a, a.T, c, 96, 96, 128, 128, 1, 1, 128, 256, 1), strict=False))
    workload = call_workload(
        KernelFunction.of(jitted.matmul, ()),
        CallTraits(("M", "N", "K"), frozenset(), {}),
        jitted.MATMUL_CONFIGS,
        named,
        lambda meta: (triton.cdiv(meta["M"], meta["BLOCK_M"]), 1),
    )
    scalars = {s.name: s for s in workload.triton.arguments if isinstance(s, TritonScalar)}
    assert scalars["M"].in_key and not scalars["stride_am"].in_key
    assert scalars["stride_ak"].is_one and scalars["stride_am"].is_divisible
    assert [p.aligned for p in workload.triton.pointers] == [True, True, False]
    assert [p.elements for p in workload.triton.pointers] == [96 * 128, 96 * 128, 95 * 256 + 128]


def test_heuristics_become_values_of_each_configuration() -> None:
    rule = triton.heuristics({"ACTIVATION": lambda args: "leaky" if args["BLOCK"] > 200 else ""})
    named = add_call()
    del named["ACTIVATION"]
    found = workload_of(rule(jitted.add), named).triton.configurations
    assert [found.row(n)["ACTIVATION"] for n in range(3)] == ["", "leaky", "leaky"]


def test_what_cannot_be_sent_is_said() -> None:
    for change, words in (
        ({"x_ptr": torch.zeros(N, dtype=torch.int16)}, "a tensor of int16"),
        ({"n": [1, 2]}, "n is a list"),
        ({"extra": 1}, "option extra"),
    ):
        with pytest.raises(UnsupportedKernel, match=words):
            workload_of(jitted.add, {**add_call(), **change})
    hooked = [triton.Config({"BLOCK": 128}, pre_hook=print), *jitted.ADD_CONFIGS]
    with pytest.raises(UnsupportedKernel, match="pre_hook"):
        workload_of(jitted.add, add_call(), hooked)
    with pytest.raises(InvalidParameter, match="first"):
        autotune(jitted.ADD_CONFIGS, ["n"], meanwhile="later")


@contextmanager
def served(folder: Path) -> Iterator[tuple[str, RecordStore]]:
    settings = Settings(database_url=f"sqlite:///{folder}/it.sqlite3", run_jobs=False, accept_code=True)
    store = RecordStore(settings.database_url)
    with Service(settings, store) as service, running(create_app(service, settings)) as address:
        yield address, store


def asked(tuner: ServiceAutotuner, named: dict[str, Any]) -> Any:
    """Do what a call does before anything is launched: there is no device here."""
    tuner.nargs = {}
    tuner._call = (), {**named, "grid": grid, "warmup": False}
    return tuner.cache.get("key") if "key" in tuner.cache else None


def test_a_call_takes_the_configuration_that_the_service_knows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    workload = workload_of(jitted.add, add_call())
    with served(tmp_path) as (address, store):
        options: dict[str, Any] = {"service": address, "target": "cuda:sm_90a"}
        tuner = autotune(jitted.ADD_CONFIGS, ["n"], meanwhile="first", **options)(jitted.add)
        assert asked(tuner, add_call()) is tuner.configs[0]  # a job was submitted
        (job,) = store.jobs(limit=10)
        assert job.tasks[0].workload_key == workload_key(workload) and job.budget == Budget(3)
        keep_best(store, workload)
        again = autotune(jitted.ADD_CONFIGS, ["n"], **options)(jitted.add)
        assert asked(again, add_call()) is again.configs[2]
    away = autotune(jitted.ADD_CONFIGS, ["n"], **options)(jitted.add)
    assert asked(away, add_call()) is away.configs[2]  # as it answered before
    other = autotune(jitted.ADD_CONFIGS, ["n"], **options)(jitted.add)
    assert asked(other, {**add_call(), "ACTIVATION": ""}) is None


def keep_best(store: RecordStore, workload: TritonWorkload) -> None:
    """Store a job that has found the third configuration to be the best."""
    task = task_of(workload)
    store.create_job(NewJob("done", "queued", (task,), Budget(3), "random", 1, "cuda", "local", "cold"))
    move_job(store, "done", {"queued": ("running",)})
    store.set_device("done", THERE.device)
    store.begin_task("done", 0)
    schedule = CUDA_TRITON.space(workload, THERE.device.target).schedule(2)
    made = Trial(schedule, Timed((1e-5, 1e-5, 1e-5)), Clocks(), Evidence(3, 0.0, 1e-4, 1e-4, True, True))
    store.add_trial(NewTrial("done", 0, 0, task.workload_key, THERE, made, 1.0))


def test_without_an_answer_triton_decides_and_the_log_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    tuner = autotune(jitted.ADD_CONFIGS, ["n"], service="http://127.0.0.1:9")(jitted.add)
    with caplog.at_level(logging.WARNING, "tilewright"):
        assert asked(tuner, add_call()) is None
        assert asked(tuner, add_call()) is None
    assert caplog.text.count("Triton's own autotuning is used") == 1
