"""The pages of workloads, comparisons and cost models, on schedules that compile: what they say, and that each number
is the API's."""

import io
import re
import zipfile

import httpx2
import pytest
from playwright.sync_api import Browser, expect

from tilewright.api.comparing import counts, difference
from tilewright.db.store import RecordStore
from tilewright.tests.api.browser import CHROMIUM, watched
from tilewright.tests.api.tuned_thrice import TASK, keep_three_jobs

needs_browser = pytest.mark.skipif(not CHROMIUM.exists(), reason="no Chromium from Debian's packages here")


@pytest.fixture(scope="module", autouse=True)
def filled(store: RecordStore) -> None:
    keep_three_jobs(store)


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
