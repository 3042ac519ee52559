"""Suites of which several devices measure parts judge the rows of all parts together."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("torch")

from benchmarks import prior_check, reproducibility
from benchmarks.suite import NoRows, Options, Result, Row

Judged = Callable[..., Result]


@pytest.fixture
def judged(tmp_path: Path) -> Judged:
    """Return a function that writes parts of a suite, and has it judge them."""

    def judge(run: Callable[[Options], Result], *parts: list[Row], devices: tuple[str, ...] = ("H100",) * 9) -> Result:
        paths = []
        for number, (rows, device) in enumerate(zip(parts, devices, strict=False)):
            about = {"suite": "x", "command": "", "commit": "", "started": "", "settings": {}, "summary": {}}
            path = tmp_path / f"{number}.json"
            path.write_text(json.dumps({**about, "device": {"name": device}, "toolchain": {}, "rows": rows}))
            paths.append(str(path))
        return run(Options(extra={"parts": ",".join(paths)}))

    return judge


def test_rows_that_are_not_there_are_refused() -> None:
    rows = {"matmul-512": 1, "matmul-1024": 2}
    assert Options(rows="*-512").chosen(rows) == {"matmul-512": 1}
    with pytest.raises(NoRows, match=r"'matmul-512,matmul-1024', a glob; there are matmul-512, matmul-1024"):
        Options(rows="matmul-512,matmul-1024").chosen(rows)


def twice(row: str, apart: float | None, *, judged: bool = True, **more: object) -> Row:
    return {"row": row, "same": apart == 0.0, "apart": apart, "judged": judged, "tuning_s": 5.0, **more}


def test_winners_of_two_seeds_are_to_be_within_the_band(judged: Judged) -> None:
    first, second = [twice("b-1024x1024x1024", 0.029)], [twice("a-6144x6144x6144-float16", 0.0)]
    result = judged(reproducibility.run, first, second)
    assert result.passed
    assert [row["row"] for row in result.rows] == [
        "a-6144x6144x6144-float16",
        "b-1024x1024x1024",
    ]  # the order of the table
    assert (result.summary["band"], result.summary["same_schedule"], result.summary["most_apart"]) == (0.03, 1, 0.029)
    beyond = judged(reproducibility.run, first, [twice("a-6144x6144x6144-float16", 0.031)])
    assert not beyond.passed and beyond.summary["beyond_band"] == ["a-6144x6144x6144-float16"]
    failed = judged(
        reproducibility.run, first, [twice("a-6144x6144x6144-float16", None, failed="no schedule could be timed")]
    )
    assert not failed.passed and failed.summary["failed"] == ["a-6144x6144x6144-float16"]


def test_rows_that_are_too_noisy_to_be_judged_pass_only_beside_others(judged: Judged) -> None:
    noisy = twice("b-512x512x512", 0.2, judged=False)
    assert judged(reproducibility.run, [noisy, twice("b-1024x1024x1024", 0.0)]).passed
    alone = judged(reproducibility.run, [noisy])
    assert not alone.passed and alone.summary["not_judged"] == {"b-512x512x512": 0.2}


def test_searches_without_the_prior_are_judged_by_the_geometric_mean(judged: Judged) -> None:
    a, b = prior_check.CHOSEN[:2]
    first: Row = {"row": a, "tuning_s": 50.0, "prune_off": 1.01, "prior_off": 0.9}
    result = judged(prior_check.run, [{**first, "row": b, "prior_off": 0.97}], [first])
    assert result.passed and result.summary["prior_off_geomean"] == pytest.approx((0.9 * 0.97) ** 0.5)
    assert (result.summary["prior_off_below_bar"], result.summary["prune_off_below_bar"]) == ([a], [])
    assert not judged(prior_check.run, [{**first, "prior_off": 1.0, "prune_off": 0.98}]).passed
    assert not judged(prior_check.run, [{**first, "prior_off": 1.0, "whole": 1.04}]).passed


def test_parts_that_share_a_row_or_come_from_two_devices_or_tables_are_refused(judged: Judged) -> None:
    row = twice("b-512x512x512", 0.0)
    with pytest.raises(ValueError, match=r"more than one part has: .*b-512x512x512"):
        judged(reproducibility.run, [row], [row])
    with pytest.raises(ValueError, match=r"does not have: .*cpu-row"):
        judged(reproducibility.run, [row], [twice("cpu-row", 0.0)])
    with pytest.raises(ValueError, match="several devices"):
        judged(reproducibility.run, [row], [twice("b-1024x1024x1024", 0.0)], devices=("H100", "H200"))
