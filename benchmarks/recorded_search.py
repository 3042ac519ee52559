"""What search finds on recorded tables, of the fastest that is in them: every strategy, several seeds, no device.

Rows are tables (``folder``: ``benchmarks/data``); ``--trials``: of each search (100); ``--set seeds=N`` (5). A share is
(fastest recorded / fastest found), the mean over seeds. Bar: search led by the model finds 0.97 on every table.
"""

from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path

import numpy as np

from tilewright.benchmarks.recorded_tables import FOLDER, SUFFIX
from tilewright.benchmarks.suite import Options, Result
from tilewright.core.budget import Budget
from tilewright.core.trial import Timed
from tilewright.search.recorded import Recorded, read_table
from tilewright.search.strategies import STRATEGIES
from tilewright.search.strategy import SearchProblem
from tilewright.search.tuner import tune

BAR = 0.97
TRIALS, SEEDS = 100, 5


def run(options: Options) -> Result:
    """Return one row for each table."""
    folder = Path(options.extra.get("folder", FOLDER))
    trials, seeds = options.trials or TRIALS, int(options.extra.get("seeds", SEEDS))
    rows = []
    for path in sorted(folder.glob("*" + SUFFIX)):
        name = path.name.removesuffix(SUFFIX)
        if fnmatch(name, options.rows):
            table = read_table(path)
            shares = {s: _share(table, s, trials, range(options.seed, options.seed + seeds)) for s in STRATEGIES}
            rows.append({"row": name, "settings": len(table.space), **shares})
    summary = {f"least_{s}": min((float(str(row[s])) for row in rows), default=None) for s in STRATEGIES}
    passed = bool(rows) and all(float(str(row["model"])) >= BAR for row in rows)
    settings = {"trials": trials, "seeds": seeds, "folder": options.extra.get("folder", "benchmarks/data")}
    return Result(tuple(rows), {"tables": len(rows), **summary}, passed, settings)


def _share(table: Recorded, strategy: str, trials: int, seeds: Sequence[int]) -> float:
    """Return the mean over ``seeds`` of (fastest recorded / fastest of ``trials``); 0 where none could be timed."""
    found = []
    for seed in seeds:
        pool = table.pool
        steps = tune(pool, STRATEGIES[strategy](SearchProblem(pool, seed)), table.measure, Budget(trials))
        times = [s.trial.outcome.seconds for s in steps if isinstance(s.trial.outcome, Timed)]
        found.append(table.best_seconds / min(times) if times else 0.0)
    return float(np.mean(found))
