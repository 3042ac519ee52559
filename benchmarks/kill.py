"""Bar: after 200 ``kill -9`` of the server at random moments of running jobs, every job ends, and every trial that was
ever shown is there once, unchanged. ``--set kills=N`` for another number."""

import tempfile
from dataclasses import asdict
from pathlib import Path

from benchmarks.suite import Options, Result
from tilewright.tests.service.killing import kill_again_and_again


def run(options: Options) -> Result:
    kills = int(options.extra.get("kills", "200"))
    with tempfile.TemporaryDirectory() as folder:
        outcome = kill_again_and_again(Path(folder), kills, options.seed, trials=options.trials or 100)
    row = {"row": "server", **asdict(outcome), "faults": list(outcome.faults)}
    summary = {"kills": kills, "faults": len(outcome.faults), "orphans": outcome.orphans}
    return Result((row,), summary, passed=not outcome.faults and outcome.orphans == 0, settings={"kills": kills})
