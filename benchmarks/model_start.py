"""How soon a model runs on our kernels in a new process on one NVIDIA GPU, alone and with a service that knows it.

The models are those of ``models``. Every figure is that of a new process with empty caches, which says what it saw:

    aot_eager     seconds to the first answer of ``torch.compile(model, backend="aot_eager")``
    alone         seconds to the first answer of ``backend="tilewright"``, and until our kernels are there
    with_service  the same, and from the start of the process until all kernels have the service's schedules
    ranks         two such processes that start at once

The first two take turns, ``--set runs=N`` (3) times, and their medians are compared: one start differs from the next by
up to a second. Before the others, a job of the service tunes the model with ``--trials`` trials (one for each task by
default). Bars: a first answer no later than aot_eager's and 0.5 s; default kernels within 30 s; tuned ones within 30 s
of the start of the process; both ranks hold the same schedules, and no process has anything measured.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path
from statistics import median

import torch

from benchmarks.models import MODELS
from benchmarks.suite import Options, Result, kept_result
from tilewright.api.client import Client
from tilewright.api.local_service import local_service
from tilewright.core.keys import content_key
from tilewright.runtime.devices import open_device
from tilewright.service.settings import Settings
from tilewright.torch_backend import backend
from tilewright.torch_backend.compiled import CompiledShape

_LATER_SECONDS, _KERNELS_SECONDS, _TUNED_SECONDS = 0.5, 30.0, 30.0
_USUAL = "resnet50-1 vit_b_16-8 bert-8x128 unet-2x320x64x64"
_POLL_SECONDS = 0.02
_RUNS = 3
_MOST_SECONDS = 240


def run(options: Options) -> Result:
    """Start processes for every model whose name matches; by default for four of them."""
    runs = int(options.extra.get("runs", _RUNS))
    wanted = _USUAL.split() if options.rows == "*" else [n for n in MODELS if fnmatch(n, options.rows)]
    return kept_result((_row(name, options.trials or 0, runs) for name in wanted), _judged, options)


def _judged(rows: list[dict[str, object]]) -> Result:
    passed = all(row.get("passed", False) for row in rows)
    figures = ("later_s", "kernels_s", "tuned_s")
    summary = {f"most_{f}": max((float(str(r[f])) for r in rows if f in r), default=None) for f in figures}
    device = open_device("cuda").info
    return Result(tuple(rows), summary, passed, {}, {"name": device.name, **device.hardware})


def _row(name: str, trials: int, runs: int) -> dict[str, object]:
    row: dict[str, object] = {"row": name}
    try:
        with tempfile.TemporaryDirectory() as folder:
            row |= _measured(name, trials, runs, Path(folder))
    except Exception as error:  # one model must not cost the others
        row["error"] = f"{type(error).__name__}: {str(error)[:300]}"
    print(row, flush=True)
    return row


def _measured(name: str, trials: int, runs: int, folder: Path) -> dict[str, object]:
    starts: dict[str, list[dict[str, object]]] = {"aot_eager": [], "tilewright": []}
    for _ in range(runs):
        for backend_name, found in starts.items():
            found += _processes([[name, backend_name, ""]], folder)
    eager, alone = starts.values()
    settings = Settings(database_url=f"sqlite:///{folder / 'start.sqlite3'}")
    with local_service(settings, runs_jobs=True) as service, Client(service.url) as client:
        began = time.perf_counter()
        _processes([[name, "tune", service.url, str(trials)]], folder)
        tuning_s = time.perf_counter() - began
        before = [job.id for job in client.jobs()]
        (one,) = _processes([[name, "tilewright", service.url]], folder)
        ranks = _processes([[name, "tilewright", service.url]] * 2, folder)
        measured = [job.id for job in client.jobs()] != before
    later = _median(alone, "first_s") - _median(eager, "first_s")
    kernels_s = _median(alone, "kernels_s")
    same = len({str(r["schedules"]) for r in ranks}) == 1
    tuned = one["tuned"] == one["kernels"] and all(r["tuned"] == r["kernels"] for r in ranks)
    within = later <= _LATER_SECONDS and kernels_s <= _KERNELS_SECONDS
    within = within and float(str(one["since_start_s"])) <= _TUNED_SECONDS
    return {
        "aot_eager": eager,
        "alone": alone,
        "with_service": one,
        "ranks": ranks,
        "tuning_s": tuning_s,
        "later_s": later,
        "kernels_s": kernels_s,
        "tuned_s": one["since_start_s"],
        "same": same,
        "measured": measured,
        "passed": within and same and tuned and not measured,
    }


def _median(seen: Sequence[Mapping[str, object]], name: str) -> float:
    return median(float(str(one[name])) for one in seen)


def _processes(commands: Sequence[Sequence[str]], folder: Path) -> list[dict[str, object]]:
    """Return what new processes say that start at once, each with a cache of its own."""
    started = []
    for command in commands:
        cache = tempfile.mkdtemp(dir=folder)
        environment = {**os.environ, "XDG_CACHE_HOME": cache, "TORCHINDUCTOR_CACHE_DIR": cache}
        arguments = [sys.executable, "-m", "benchmarks.model_start", *command]
        started.append(subprocess.Popen(arguments, env=environment, stdout=subprocess.PIPE, text=True))
    said = [process.communicate(timeout=_MOST_SECONDS)[0] for process in started]
    if any(process.returncode for process in started):
        raise RuntimeError(f"a process of {commands[0]} ended with {[p.returncode for p in started]}: {said}")
    return [json.loads(text.splitlines()[-1]) for text in said]


def _child(name: str, kind: str, address: str, trials: int = 0) -> Mapping[str, object]:
    """Return what one process sees."""
    torch.manual_seed(0)
    module, inputs = MODELS[name].make()
    torch.cuda.synchronize()
    if kind == "aot_eager":
        compiled = torch.compile(module, backend="aot_eager", dynamic=False)
        return {"first_s": _first(compiled, inputs)}
    wanted: dict[str, object] = {"service": address, "name": name} if address else {}
    if kind == "tune":
        wanted |= {"tune": max(trials, 1), "wait": True}
    began = time.perf_counter()
    compiled = torch.compile(module, backend=backend.tilewright, dynamic=False, options=wanted)
    first = _first(compiled, inputs)
    shapes = [shape for graph in list(backend._graphs) for shape in graph.shapes()]
    while any(s.status.state == "building" for s in shapes):
        time.sleep(_POLL_SECONDS)
    kernels_s = time.perf_counter() - began
    if kind == "tune":
        _wait_for_job(address)
        return {}
    with torch.no_grad():
        compiled(*inputs)
        torch.cuda.synchronize()
    return {
        "first_s": first,
        "kernels_s": kernels_s,
        "since_start_s": time.time() - _started(),
        "states": [s.status.state for s in shapes],
        "kernels": sum(len(s._chosen) for s in shapes),
        "tuned": sum(s.status.tuned for s in shapes),
        "schedules": _digest(shapes),
    }


def _first(compiled: object, inputs: tuple[torch.Tensor, ...]) -> float:
    """Seconds until the first answer."""
    began = time.perf_counter()
    with torch.no_grad():
        compiled(*inputs)  # type: ignore[operator]
    torch.cuda.synchronize()
    return time.perf_counter() - began


def _wait_for_job(address: str) -> None:
    with Client(address) as client:
        while not (jobs := list(client.jobs())):
            time.sleep(_POLL_SECONDS)
        for _ in client.events(jobs[0].id):
            pass


def _digest(shapes: Sequence[CompiledShape]) -> str:
    """Return a key of all schedules that a process holds."""
    held = [[key, s.sketch, s.version, dict(s.knobs)] for shape in shapes for key, s in sorted(shape._chosen.items())]
    return content_key(held)


def _started() -> float:
    """When this process was started, in seconds since the epoch."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    uptime = float(Path("/proc/uptime").read_text().split()[0])
    return time.time() - uptime + ticks / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    name, kind, address, *rest = sys.argv[1:]
    print(json.dumps(_child(name, kind, address, *map(int, rest))))
