"""The score of the methodology: random search has about 0, an oracle 1, and budgets are those that are published."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tilewright.benchmarks import search_score
from tilewright.benchmarks.methodology import Scale
from tilewright.benchmarks.search_curves import Curve, Curves, play
from tilewright.benchmarks.suite import Options
from tilewright.search.recorded import read_table
from tilewright.search.strategies import STRATEGIES
from tilewright.search.strategy import SearchProblem

FOLDER = search_score.FOLDER
SCALE = Scale(read_table(FOLDER / "dedispersion_milo__A4000.csv.gz"))


def test_budgets_are_the_packages() -> None:
    """``autotuning_methodology`` 1.1.0 says 265 evaluations of 6.29 s for this table."""
    assert SCALE.evaluations[1] == 265
    assert SCALE.seconds[-1] == pytest.approx(265 * np.median(SCALE.table.cost_seconds))


def test_random_search_scores_about_nothing_and_an_oracle_one() -> None:
    runs = [play(SCALE.table, SCALE, STRATEGIES["random"](SearchProblem(SCALE.table.pool, n))).run for n in range(40)]
    assert abs(SCALE.score(runs)) < 0.2
    assert abs(SCALE.score(runs) - SCALE.score(runs, bags=False)) < 0.05
    oracle = [replace(run, best=np.full(len(run.best), SCALE.optimum)) for run in runs]
    assert SCALE.score(oracle) == 1
    late = [replace(run, seconds=run.seconds * 3) for run in runs]
    assert SCALE.score(late) < SCALE.score(runs)
    assert Scale(SCALE.table, True).score(late) == Scale(SCALE.table, True).score(runs)


def test_a_curve_is_kept_and_is_the_run_it_was_made_from(tmp_path: Path) -> None:
    curve = Curve.of([np.nan, 4.0, 5.0, 2.0, np.nan], [1.0] * 5, [0.5, 0.0, 0.0, 0.0, 0.0])
    run = curve.run
    np.testing.assert_array_equal(run.best, [np.nan, 4.0, 4.0, 2.0, 2.0])
    np.testing.assert_allclose(
        run.seconds, [1.25, 2.5, 3.5, 4.5, 5.5]
    )  # between improvements, moments are interpolated
    path = tmp_path / "curves.json"
    Curves(path).put("a", "space", 3, curve, "test")
    again = Curves(path)
    assert again.names == ["a"] and again.get("a", "space") == {3: curve} and again.get("a", "other") == {}


def test_the_suite_scores_what_it_played_once(tmp_path: Path) -> None:
    extra = {
        "runs": "2",
        "strategies": "random,warm",
        "history": "40",
        "curves": str(tmp_path / "c.json"),
        "peers": "none",
    }
    options = Options(rows="convolution_milo__W6600", extra=extra)
    first = search_score.run(options)
    assert [row["strategy"] for row in first.rows] == ["random with 40", "warm with 40"]
    assert search_score.run(options).rows == first.rows
