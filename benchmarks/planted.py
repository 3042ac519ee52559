"""Bar: every bug of a code generator that is planted in a kernel of a real sketch fails the checks of a tuning run, for
its reason, and the kernel without it is timed."""

import time
from fnmatch import fnmatch

from benchmarks.suite import Options, Result
from tilewright.core.trial import Failed, Timed
from tilewright.runtime.devices import host_target
from tilewright.tests.workers.planted import BUGS, NONE, is_written, schedule, workload_named
from tilewright.workers.local import LocalExecutor
from tilewright.workers.settings import Deadlines, ExecutorSettings


def run(options: Options) -> Result:
    settings = ExecutorSettings("tilewright.tests.workers.planted:build", Deadlines(check=2.0))
    target, started = host_target(), time.perf_counter()
    rows = []
    with LocalExecutor(target, seed=options.seed, settings=settings) as executor:
        for name, bug in BUGS.items():
            if not fnmatch(name, options.rows) or not is_written(bug.name, target):
                continue
            pair = [schedule(bug.name, target, planted) for planted in (name, NONE)]
            found = dict(executor.measure(workload_named(bug.name), pair))
            wrong, right = found[0].outcome, found[1].outcome
            said = f"{wrong.stage} {wrong.reason}: {wrong.detail}" if isinstance(wrong, Failed) else "timed"
            caught = isinstance(wrong, Failed) and wrong.reason is bug.reason and bug.says in wrong.detail
            met = caught and isinstance(right, Timed)
            rows.append(
                {
                    "row": name,
                    "workload": bug.name,
                    "sketch": pair[0].sketch,
                    "met": met,
                    "caught": caught,
                    "said": said,
                }
            )
        info = executor.measured_on.device
    summary = {
        "planted": len(rows),
        "caught": sum(bool(r["caught"]) for r in rows),
        "seconds": time.perf_counter() - started,
    }
    passed = all(r["met"] for r in rows)
    return Result(tuple(rows), summary, passed, device={"name": info.name, **info.hardware})
