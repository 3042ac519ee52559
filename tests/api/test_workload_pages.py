"""The pages of workloads, comparisons and cost models, on schedules that compile: what they say, and that each number
is the API's."""

import io
import re
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx2
import numpy as np
import pytest
from playwright.sync_api import Browser, Page, expect

from tilewright.api import assets
from tilewright.api.comparing import counts, difference
from tilewright.core.budget import Budget
from tilewright.core.policy import DEFAULT_POLICY
from tilewright.core.record import MeasuredOn
from tilewright.core.streams import stream
from tilewright.core.target import Toolchain
from tilewright.core.trial import Clocks, Evidence, Timed, Trial
from tilewright.cost_model.dataset import Experience
from tilewright.db.recording import record_trial
from tilewright.db.rows import NewJob, NewTrial
from tilewright.db.store import RecordStore
from tilewright.service import wiring
from tilewright.te.operators import OPERATORS
from tilewright.tests.api.browser import CHROMIUM, chromium, expect_width, watched
from tilewright.tests.api.filled import HERE, operator_task
from tilewright.tests.api.page_numbers import compare
from tilewright.tests.db.fleets import move_job

SHAPE = {"m": 48, "n": 64, "k": 32}
NEWER = replace(HERE, toolchain=Toolchain({"llvm": "21", "tilewright": "0.1.0"}))
TASK = operator_task("matmul", dict(SHAPE))
needs_browser = pytest.mark.skipif(not CHROMIUM.exists(), reason="no Chromium from Debian's packages here")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if not assets.assets_present():
        assets.install_assets()
    with chromium() as found:
        yield found


def keep(store: RecordStore, name: str, on: MeasuredOn, trials: list[Trial]) -> None:
    """Store a job that has ended with these trials."""
    store.create_job(NewJob(name, "queued", (TASK,), Budget(len(trials)), "model", 1, "llvm", "local", "warm"))
    move_job(store, name, {"queued": ("running",)})
    store.set_device(name, on.device)
    store.begin_task(name, 0)
    store.note_task(name, 0, space_size=999, roofline_seconds=1e-6, roofline_by="flops")
    with store.database.writing() as connection:
        for sequence, trial in enumerate(trials):
            record_trial(connection, NewTrial(name, 0, sequence, TASK.workload_key, on, trial, 0.5 * (sequence + 1)))
    store.note_task(name, 0, stop_reason="trials", wall_seconds=0.5 * len(trials))
    move_job(store, name, {"running": ("succeeded",)})


@pytest.fixture(scope="module", autouse=True)
def filled(store: RecordStore) -> None:
    """A job, a cost model that knows it, and two later jobs, of which the last is slower."""
    workload = OPERATORS["matmul"].workload(SHAPE)
    pool = wiring.pool_of(workload, HERE.device, 0, DEFAULT_POLICY)
    rng = stream(1, "schedules")
    schedules = [pool.schedule(int(i)) for i in rng.permutation(len(pool))[:36]]

    def trials(first: int, count: int, scale: float) -> list[Trial]:
        seconds = scale * (1 + np.arange(count)[::-1] / 8)
        samples = [s * (1 + 0.01 * rng.random(12)) for s in seconds]
        outcomes = [Timed(tuple(map(float, values)), 10) for values in samples]
        chosen = schedules[first : first + count]
        return [Trial(s, o, Clocks(0.01, 0.1, 0.02, 0.2), Evidence()) for s, o in zip(chosen, outcomes, strict=True)]

    first = trials(0, 16, 1e-5)
    keep(store, "first", HERE, first)
    own = Experience(workload, HERE.device, [(trial.schedule, trial.outcome) for trial in first])
    trained = wiring.train([], own, 1)
    assert trained is not None
    metrics = {"pairwise_accuracy": 0.8, "top_8_score": 0.9, "until_record": store.newest_record()}
    store.keep_model(
        trained.kind, trained.feature_version, trained.data, records=16, metrics=metrics, device=HERE.device
    )
    keep(store, "second", HERE, trials(16, 10, 0.9e-5))
    keep(store, "third", NEWER, trials(26, 10, 1.3e-5))


def test_a_result_that_is_slower_is_a_regression_and_says_why(http: httpx2.Client) -> None:
    history = http.get(f"/v1/workloads/{TASK.workload_key}").json()
    assert [one["job_id"] for one in history["results"]] == ["first", "second", "third"]
    assert [one["is_regression"] for one in history["results"]] == [False, False, True]
    third = history["results"][2]
    assert third["ratio"] == pytest.approx(1.3 / 0.9, rel=0.02) and third["p_value"] < 1e-4
    assert third["against_record_id"] == history["results"][1]["record_id"]
    assert third["why"] == "another schedule, another toolchain (llvm 20 → 21)"
    assert [one["job_id"] for one in history["best"]] == ["second"] and history["regressions"] == 1
    (listed,) = http.get("/v1/workloads", params={"operator": "matmul"}).json()["workloads"]
    assert (listed["tasks"], listed["trials"], listed["devices"]) == (3, 36, 1)
    assert http.get("/v1/workloads", params={"operator": "softmax"}).json()["workloads"] == []
    assert http.get(f"/v1/workloads/{'0' * 64}").status_code == 404


def test_schedules_are_compared_with_a_test_and_a_correction(http: httpx2.Client) -> None:
    found = http.get("/v1/comparisons", params={"items": "job:first,job:second:0,record:36"}).json()
    assert [one["label"] for one in found["items"]] == ["A", "B", "C"] and found["same_workload"]
    second = found["items"][1]
    assert second["ratio"] == pytest.approx(0.9, rel=0.02) and second["effect"] == -1 and second["p_value"] < 1e-3
    assert "times as fast as A" in second["says"] and "corrected for 2 comparisons" in second["says"]
    assert {point["label"] for point in found["curves"]} == {"A", "B"}, "a record alone has no curve"
    assert found["curves"][0]["trials"] == 1 and found["knobs"][0]["differs"]
    bad = {"job:first": 422, "job:first,job:first": 422, "this,that": 422, "job:first,job:nobody": 404}
    for items, status in bad.items():
        assert http.get("/v1/comparisons", params={"items": items}).status_code == status, items


def test_a_schedule_is_exported_as_a_download(http: httpx2.Client) -> None:
    page = http.get(f"/workloads/{TASK.workload_key}", headers={"Accept": "text/html"}).text
    (address,) = set(re.findall(r"/trials/\d+/kernel\.zip", page))
    answer = http.get(address)
    assert answer.status_code == 200 and "attachment" in answer.headers["content-disposition"]
    with zipfile.ZipFile(io.BytesIO(answer.content)) as archive:
        assert {"kernel.o", "kernel.h"} <= set(archive.namelist())
    assert http.get("/trials/99999/kernel.zip").status_code == 404


def test_a_difference_has_line_numbers_and_leaves_equal_lines_out() -> None:
    left = "\n".join(map(str, range(40)))
    lines = difference(left, left.replace("20", "twenty"))
    assert counts(lines) == (1, 1) and [line.text for line in lines if line.kind == "right"] == ["twenty"]
    assert (lines[0].text, lines[-1].text) == ("16 equal lines", "15 equal lines")
    assert difference(left, left) == []


def test_a_model_is_judged_by_what_it_has_not_seen(http: httpx2.Client) -> None:
    found = http.get("/v1/cost-models").json()
    assert [one["job_id"] for one in found["tasks"]] == ["second", "third"] and len(found["records"]) == 20
    assert sum(one["share"] for one in found["importance"]) == pytest.approx(1, abs=0.01)
    errors = [abs(one["predicted"] - one["measured"]) for one in found["records"]]
    assert errors == sorted(errors, reverse=True)
    assert http.get("/v1/cost-models", params={"model": 99}).status_code == 404


PAGES = (
    "/workloads",
    "/workloads?operator=softmax",
    f"/workloads/{TASK.workload_key}",
    "/compare",
    "/compare?job=first&job=second:0&record=36&across=seconds",
    "/cost-models",
)


@pytest.fixture(scope="module")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    return assets.fetch_checker(Path(tmp_path_factory.mktemp("axe"))).read_text()


@pytest.mark.browser
@needs_browser
def test_the_pages_are_clean_and_their_numbers_are_the_apis(
    browser: Browser, address: str, http: httpx2.Client, axe: str
) -> None:
    with watched(browser, address, width=1400) as seen:
        for path in (*PAGES, "/submit", "/submit?operator=te"):
            seen.page.goto(path)
            expect(seen.page.locator(".plot[data-drawn=no]")).to_have_count(0, timeout=60_000)
            seen.page.evaluate(axe)
            for theme in ("light", "dark"):
                seen.page.emulate_media(color_scheme="dark" if theme == "dark" else "light")
                assert _serious(seen.page) == [], f"{path} in {theme}"
            if not path.startswith("/submit"):
                compare(seen.page, http)
            seen.page.set_viewport_size({"width": 390, "height": 900})
            expect_width(seen.page, 390)
            seen.page.set_viewport_size({"width": 1400, "height": 900})
            seen.expect_no_faults()


@pytest.mark.browser
@needs_browser
def test_jobs_of_a_workload_are_compared_down_to_their_sources_without_scripts(browser: Browser, address: str) -> None:
    with watched(browser, address, scripts=False) as seen:
        page = seen.page
        page.goto("/workloads")
        page.get_by_role("link", name="matmul").click()
        expect(page.locator(".regression")).to_contain_text("another toolchain (llvm 20 → 21)")
        page.get_by_role("button", name="Compare the chosen jobs").click()  # the two newest are chosen
        expect(page.locator(".results")).to_contain_text("times as fast as A")
        page.get_by_role("button", name="Show the difference").click()
        expect(page.locator(".diff .left").first).to_be_attached()
        page.get_by_role("link", name="knobs", exact=True).click()
        expect(page.locator(".diff .right").first).to_be_attached()
        page.goto("/compare?job=first")
        expect(page.locator("main")).to_contain_text("choose another to compare it with")


def _serious(page: Page) -> list[str]:
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{one['id']}: {node['html'][:160]}"
        for one in found["violations"]
        if one["impact"] in ("serious", "critical")
        for node in one["nodes"]
    ]
