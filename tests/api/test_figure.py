"""Figures of the Python client, and the view of a job over the whole terminal: both show what the job's page shows."""

import builtins
import io
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from tilewright.api.client import Client
from tilewright.api.figure import MissingExtra
from tilewright.cli.watch import chart_lines, watch
from tilewright.core.errors import InvalidParameter
from tilewright.db.store import RecordStore
from tilewright.tests.api.filled import keep_job, operator_task


@pytest.fixture(scope="module", autouse=True)
def filled(store: RecordStore) -> None:
    keep_job(store, "drawn", [operator_task("matmul", {"m": 64, "n": 64, "k": 64})], 40)


@pytest.mark.parametrize("across", ["trials", "seconds", "device"])
def test_a_figure_shows_every_trial(client: Client, across: str) -> None:
    pytest.importorskip("matplotlib")
    job = client.job("drawn")
    progress = client.progress("drawn")
    (axes,) = job.plot(across=across).axes
    points, failed = (np.asarray(axes.collections[i].get_offsets()) for i in (0, -1))
    assert len(points) == sum(s is not None for s in progress.seconds)
    assert len(failed) == sum(job.tasks[0].failures.values())
    (best,) = (line for line in axes.lines if line.get_label() == "best so far")
    assert float(np.asarray(best.get_ydata()).min()) == pytest.approx(
        1e3 * min(s for s in progress.seconds if s)
    )  # milliseconds
    assert {text.get_text().split()[0] for text in axes.texts} == {"NumPy", "roofline,"}


def test_without_matplotlib_the_error_says_how_to_get_it(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    imports = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return imports(name, *rest)

    job = client.job("drawn")
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingExtra, match=r"pip install 'tilewright\[plot\]'"):
        job.plot()
    with pytest.raises(InvalidParameter, match="allowed: trials, seconds, device"):
        job.plot(across="height")
    with pytest.raises(InvalidParameter, match="has 1 tasks, none with index 3"):
        job.plot(task=3)
    with pytest.raises(InvalidParameter, match="did not come from a client"):
        job.model_copy(update={}).model_validate(job.model_dump()).plot()


def test_a_job_is_watched_over_the_whole_terminal(client: Client) -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=120, height=40)
    job = watch(client, client.job("drawn"), console)
    text = out.getvalue()
    assert job.state.value == "succeeded" and "\x1b[?1049h" in text and "\x1b[?1049l" in text
    assert "40 of 40" in text and "best so far" in text and "GFLOP/s" in text
    task = job.tasks[0]
    progress = client.progress("drawn")
    lines = chart_lines(list(zip(progress.sequence, progress.seconds, strict=True)), task, 60, 12)
    drawn = "\n".join(line.plain for line in lines)
    assert len(lines) == 13 and drawn.count("█") >= 55 and "x" in drawn and "= roofline" in drawn
    assert chart_lines([(0, None)], task, 60, 12)[0].plain == "no trial has been timed yet"
