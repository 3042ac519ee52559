"""Figures of the Python client, and the view of a job over the whole terminal: both show what the job's page shows."""

import builtins
import io
import re
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from tilewright.api.client import Client
from tilewright.api.figure import MissingExtra
from tilewright.cli.tables import WIDE
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
    assert np.asarray(best.get_ydata()).min() == pytest.approx(1e3 * min(s for s in progress.seconds if s))
    assert {text.get_text().split()[0] for text in axes.texts} == {"NumPy", "roofline,"}
    low, high = job.plot(across=across, log=False).axes[0].get_ylim()
    assert low == 0 and high > 1e3 * max(s for s in progress.seconds if s)


def test_other_figures_show_what_the_service_answers(client: Client) -> None:
    pytest.importorskip("matplotlib")
    job, knobs, quality = client.job("drawn"), client.knobs("drawn"), client.model_quality("drawn")

    def widths(kind: str) -> list[float]:
        bars: list[Any] = list(job.plot(kind).axes[0].patches)
        return [bar.get_width() for bar in bars]

    assert widths("knobs") == [100 * k.importance for k in knobs.knobs if k.importance is not None]
    points = np.asarray(job.plot("model").axes[0].collections[0].get_offsets()) if quality.points else np.empty((0, 2))
    assert points.tolist() == [[100 * p.predicted, 100 * p.measured] for p in quality.points]
    spent = sum(widths("workers"))
    workers = client.task_workers("drawn").workers
    assert spent == pytest.approx(sum(w.search + w.compile + w.check + w.time + w.overhead for w in workers)) and spent
    health = client.device_health("drawn")
    (line, *_) = job.plot("health").axes[0].lines
    assert np.asarray(line.get_xdata()).tolist() == [row.sequence for row in health.rows if row.anchor_seconds]
    for figure in ("knobs", "model", "workers", "health"):
        job.plot(figure).savefig(io.BytesIO(), format="png")


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
    with pytest.raises(InvalidParameter, match="allowed: progress, knobs, model, workers, health"):
        job.plot("pie")
    with pytest.raises(InvalidParameter, match="has 1 tasks, none with index 3"):
        job.plot(task=3)
    with pytest.raises(InvalidParameter, match="did not come from a client"):
        job.model_copy(update={}).model_validate(job.model_dump()).plot()


@pytest.mark.parametrize(("width", "height"), [(120, 36), (80, 24)])
def test_a_job_is_watched_over_the_whole_terminal(client: Client, width: int, height: int) -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=width, height=height, color_system=None)
    job = watch(client, client.job("drawn"), console)
    assert job.state.value == "succeeded"
    assert "\x1b[?1049h" in out.getvalue() and "\x1b[?1049l" in out.getvalue()
    screen = ESCAPES.sub("", out.getvalue().rpartition(HOME)[2]).splitlines()
    assert len(screen) == height and all(len(line) <= width for line in screen)
    text = "\n".join(screen)
    for part in ("40 of 40", "vs. baseline", "█ best", "x failed", " baseline 21.6 ms ─", " roofline 7.44 ms ="):
        assert part in text, part
    assert ("GFLOP/s" in text) == (width >= WIDE)
    newest = [line.split("│")[-2] for line in screen if line.count("│") >= 3]
    numbers = [int(found[1]) for line in newest if (found := re.match(r"\s+(\d+)  ", line))]
    assert numbers[0] == 40 and numbers == sorted(numbers, reverse=True) and len(numbers) > height // 3


def test_the_chart_of_a_terminal_shows_every_trial_and_both_limits(client: Client) -> None:
    task, progress = client.job("drawn").tasks[0], client.progress("drawn")
    lines = chart_lines(list(zip(progress.sequence, progress.seconds, strict=True)), task, 60, 12)
    drawn = "\n".join(line.plain for line in lines)
    assert len(lines) == 13 and drawn.count("█") >= 55 and "x" in drawn and "= roofline" in drawn
    assert chart_lines([(0, None)], task, 60, 12)[0].plain.startswith("no trial has been timed yet")
    assert client.progress("drawn", after=36).sequence == (37, 38, 39)


ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
HOME = "\x1b[H"
"""Each drawing of a terminal begins with it."""
