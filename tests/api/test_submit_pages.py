"""The form that submits a job, in a real browser and without scripts, and the estimate behind it."""

import re
from typing import Any

import httpx2
import pytest
from playwright.sync_api import Browser, expect

from tilewright.api.client import Client, operator_task
from tilewright.api.requests import ExpressionIn
from tilewright.core.budget import Budget
from tilewright.db.store import RecordStore
from tilewright.te.operators import OPERATORS
from tilewright.tests.api.browser import CHROMIUM, expect_width, watched
from tilewright.tests.api.filled import keep_job
from tilewright.tests.api.filled import operator_task as stored_task

needs_browser = pytest.mark.skipif(not CHROMIUM.exists(), reason="no Chromium from Debian's packages here")
SHAPE = {"m": 96, "n": 64, "k": 32}
TEXT = "A: float32[8, 4]\nB[i, j] = A[i, j] * 2\n"


@pytest.fixture(scope="module", autouse=True)
def ended(store: RecordStore) -> None:
    task = stored_task("matmul", dict(SHAPE))
    keep_job(store, "ended", [task], 10)
    store.note_task("ended", 0, wall_seconds=5.0, timing_seconds=2.0)


def test_an_estimate_goes_by_what_earlier_tasks_took(http: httpx2.Client) -> None:
    def estimate(task: object, **more: object) -> Any:
        answer = http.post("/v1/jobs/estimate", json={"tasks": [task], **more})
        assert answer.status_code == 200, answer.text
        return answer.json()

    same = {"operator": "matmul", "parameters": SHAPE}
    (task,) = estimate(same, budget={"trials": 20})["tasks"]
    assert (task["seconds"], task["basis"], task["basis_tasks"]) == (10.0, "workload", 1)
    assert task["known"]["job_id"] == "ended" and task["flops"] == 2 * 96 * 64 * 32
    assert [(t["name"], t["role"], t["shape"], t["bytes"]) for t in task["tensors"]] == [
        ("A", "input", [96, 32], 12288),
        ("B", "input", [32, 64], 8192),
        ("C", "output", [96, 64], 24576),
    ]
    (task,) = estimate({"operator": "matmul", "parameters": {**SHAPE, "m": 7}}, budget={"seconds": 3})["tasks"]
    assert (task["seconds"], task["basis"], task["known"]) == (3.0, "operator", None)
    two = estimate({"text": TEXT}, budget={"trials": 4})
    assert two["device_seconds"] == 2.0 and two["tasks"][0]["basis"] == "target"
    refused = http.post("/v1/jobs/estimate", json={"tasks": [same, {"text": "A: float32[8]\nB[i] = Z[i]"}]})
    assert refused.status_code == 422 and refused.json()["field"] == "/tasks/1/text"
    assert "line 2: Z is not known here" in refused.json()["detail"]


def test_every_operator_has_a_form_whose_first_filling_is_legal(http: httpx2.Client) -> None:
    for name in OPERATORS:
        page = http.get("/submit", params={"operator": name}, headers={"Accept": "text/html"})
        assert page.status_code == 200 and "Tensors</h3>" in page.text, name
    unknown = http.get("/submit", params={"operator": "matmul", "p.q": "1"}, headers={"Accept": "text/html"})
    assert unknown.status_code == 422 and "p.q" in unknown.text


def test_a_foreign_page_cannot_submit(http: httpx2.Client) -> None:
    filled = {"operator": "matmul", "p.m": "8", "p.n": "8", "p.k": "8"}
    answer = http.post("/submit", data=filled, headers={"Origin": "http://elsewhere.example"})
    assert answer.status_code == 403 and answer.json()["code"] == "FOREIGN_ORIGIN"


@pytest.mark.browser
@needs_browser
def test_a_job_is_submitted_without_scripts(browser: Browser, address: str, client: Client) -> None:
    with watched(browser, address, scripts=False) as seen:
        page = seen.page
        page.goto("/submit")
        page.get_by_label("Operator").select_option("softmax")
        page.get_by_role("button", name="Show its parameters").click()
        page.get_by_label("rows", exact=True).fill("77")
        page.get_by_text("more, which have defaults").click()
        page.get_by_label("dtype").select_option("float16")
        page.get_by_role("button", name="Check and estimate").click()
        expect(page.locator(".cost")).to_contain_text("77 × 1024")
        page.get_by_label("Trials").fill("0")
        page.locator("#job-form").evaluate("form => form.noValidate = true")
        page.get_by_role("button", name="Submit job").click()
        expect(page.locator(".cost [role=alert]")).to_contain_text("greater than or equal to 1")
        expect(page.locator("#trials")).to_have_attribute("aria-invalid", "true")
        assert [fault for fault in seen.faults if "422" not in fault] == []
        seen.faults.clear()
        page.get_by_label("Trials").fill("5")
        page.get_by_text("Search, queue and measuring").click()
        units = page.get_by_label("Devices at once")
        expect(units).to_have_value("1")
        units.fill("9")
        page.locator("#job-form").evaluate("form => form.noValidate = true")
        page.get_by_role("button", name="Submit job").click()
        expect(page.locator("#units")).to_have_attribute("aria-invalid", "true")
        seen.faults.clear()
        units.fill("2")
        page.get_by_role("button", name="Submit job").click()
        expect(page.locator("h1")).to_contain_text("softmax")
        job = client.job(page.url.rpartition("/")[2])
        page.goto(f"/submit?job={job.id}")
        expect(units).to_have_value("2")
    assert job.tasks[0].parameters == {
        **{"rows": 77, "columns": 1024, "inner": 1, "dtype": "float16", "accumulate": "auto"}
    }
    assert (job.budget.trials, job.units) == (5, 2)


@pytest.mark.browser
@needs_browser
def test_an_expression_is_checked_while_it_is_written(browser: Browser, address: str, client: Client) -> None:
    with watched(browser, address, theme="dark", width=390) as seen:
        page = seen.page
        page.goto("/submit?operator=te")
        editor = page.locator("#text")
        editor.fill("A: float32[8, 4]\nB[i, j] = A[i, j] * Z\n")
        expect(page.locator(".cost [role=alert]")).to_contain_text("line 2: Z is not known here; known: A, i, j")
        expect(page.locator("#gutter .wrong")).to_have_text("2\n")
        expect(editor).to_have_attribute("aria-invalid", "true")
        editor.fill(TEXT)
        expect(page.locator(".cost table")).to_contain_text("8 × 4")
        expect(page).to_have_url(re.compile(r"/submit\?operator=te&text=A%3A"))
        page.reload()
        expect(editor).to_have_value(TEXT)
        expect_width(page, 390)
        page.get_by_role("button", name="Submit job").click()
        expect(page.locator("h1")).to_contain_text("workload")
        job = client.job(page.url.rpartition("/")[2])
        page.goto(f"/submit?job={job.id}")
        expect(page.locator("#text")).to_contain_text("B[i, j] = A[i, j] * 2.0")
    assert client.estimate(ExpressionIn(text=TEXT), budget=Budget(3)).tasks[0].workload_key == job.tasks[0].workload_key


@pytest.mark.browser
@needs_browser
def test_the_same_job_is_submitted_again_with_changes(browser: Browser, address: str, client: Client) -> None:
    before = client.submit(
        operator_task("reduce", {"shape": [9, 7], "axes": [1], "kind": "max"}), budget=Budget(7), seed=3
    )
    with watched(browser, address) as seen:
        page = seen.page
        page.goto(f"/submit?job={before.id}&task=0")
        expect(page.locator("[name='p.shape']")).to_have_value("9, 7")
        expect(page.locator("[name='p.kind']")).to_have_value("max")
        page.get_by_label("Trials").fill("8")
        expect(page.locator("#checking")).to_have_text("checked")
        page.get_by_role("button", name="Submit job").click()
        expect(page.locator("h1")).to_contain_text("reduce")
        after = client.job(page.url.rpartition("/")[2])
    assert after.tasks[0].workload_key == before.tasks[0].workload_key
    assert (after.budget.trials, after.seed) == (8, 3)
