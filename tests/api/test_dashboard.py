"""The dashboard in a real browser: every page, both themes, wide and narrow, with scripts and without."""

import re

import pytest
from playwright.sync_api import Browser, Page, expect

from tilewright.api import rendering
from tilewright.core.budget import Budget
from tilewright.db.recording import record_trial
from tilewright.db.rows import NewJob
from tilewright.db.store import RecordStore
from tilewright.db.tables import jobs
from tilewright.service.dashboard import MOST_VALUES
from tilewright.service.service import Service
from tilewright.tests.api.browser import CHROMIUM, watched
from tilewright.tests.api.filled import keep_job, new_trial, operator_task, outcomes, repeat_trials
from tilewright.tests.db.fleets import move_job

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(not CHROMIUM.exists(), reason="no Chromium from Debian's packages here"),
]
TRIALS_IN_ALL = 10_000


@pytest.fixture(scope="module")
def filled(store: RecordStore) -> None:
    matmul = operator_task("matmul", {"m": 1024, "n": 1024, "k": 1024})
    softmax = operator_task("softmax", {"rows": 4096, "columns": 1024})
    keep_job(store, "small", [matmul], 60)
    keep_job(store, "two", [matmul, softmax], 12, seed=5)
    keep_job(store, "broken", [softmax], 6, state="failed")
    keep_job(store, "large", [matmul], 100, seed=9)
    repeat_trials(store, "large", TRIALS_IN_ALL // 100)
    new = NewJob("waiting", "queued", (softmax,), Budget(), "model", 1, "llvm", "local", "warm")
    store.create_job(new)


def settled(page: Page, trials: int = 0) -> None:
    """Wait until the chart has all it can have: the last of so many ``trials``, where that is given."""
    expect(page.locator("#chart")).to_have_attribute("data-live", "ended")
    if trials:
        expect(page.locator("#chart")).to_have_attribute("data-last-sequence", str(trials - 1))


@pytest.mark.usefixtures("filled")
def test_a_problem_is_shown_as_a_page(browser: Browser, address: str) -> None:
    with watched(browser, address) as seen:
        with seen.page.expect_console_message(lambda message: "404" in message.text):  # else the next test may get it
            seen.page.goto("/jobs/nobody")
        expect(seen.page.locator("h1")).to_have_text("Not found")
        expect(seen.page.locator("main")).to_contain_text("NOT_FOUND")
        assert [fault for fault in seen.faults if "404" not in fault] == []
        seen.faults.clear()


@pytest.mark.usefixtures("filled")
def test_the_figures_of_a_job_stand_with_their_units(browser: Browser, address: str) -> None:
    with watched(browser, address) as seen:
        seen.page.goto("/jobs/small")
        expect(seen.page.locator("link[rel=icon]")).to_have_attribute("href", "/static/mark.svg")
        tiles = seen.page.locator(".tile")
        for number, pattern in enumerate(
            (r"[\d.]+ ms", r"[\d.]+ GFLOP/s", r"[\d.]+ ×", r"[\d.]+ %", "60", r"[\d.]+ s")
        ):
            expect(tiles.nth(number).locator("dd").first).to_have_text(_pattern(pattern))
        expect(seen.page.locator("#failures tbody tr").first).to_be_visible()
        expect(seen.page.locator("#failures")).to_contain_text("<b>17 of 1024</b>")  # shown, not obeyed
        settled(seen.page, 60)
        chart = seen.page.locator("#chart")
        points, failed = chart.get_attribute("data-points"), chart.get_attribute("data-failed")
        assert points and failed and int(points) + int(failed) == 60


@pytest.mark.usefixtures("filled")
def test_the_axes_switch_by_keyboard_and_the_theme_by_its_button(browser: Browser, address: str) -> None:
    with watched(browser, address) as seen:
        page = seen.page
        page.goto("/jobs/small")
        settled(page)
        chart = page.locator("#chart")
        page.locator("input[name=across][value=trials]").focus()
        page.keyboard.press("ArrowRight")
        expect(chart).to_have_attribute("data-across", "seconds")
        page.locator("input[name=scale][value=log]").focus()
        page.keyboard.press("ArrowLeft")
        expect(chart).to_have_attribute("data-scale", "linear")
        page.locator("#theme").click()
        page.locator("#theme").click()
        expect(page.locator("html")).to_have_attribute("data-theme", "dark")
        page.reload()
        expect(page.locator("html")).to_have_attribute("data-theme", "dark")
        page.keyboard.press("Tab")
        expect(page.locator(".skip")).to_be_focused()


@pytest.mark.usefixtures("filled")
def test_trials_are_paged_and_opened_in_place(browser: Browser, address: str) -> None:
    with watched(browser, address) as seen:
        page = seen.page
        page.goto("/jobs/small")
        page.evaluate("window.mark = 1")
        first = page.locator("#trials tbody tr").first.inner_text()
        page.get_by_role("link", name="Next page").click()
        expect(page.locator("#trials")).to_have_attribute("data-first", "no")
        expect(page.locator("#trials tbody tr").first).not_to_have_text(first)
        page.get_by_role("link", name="Newest first").click()
        expect(page.locator("#trials tbody tr td a").first).to_have_text("59")
        page.locator("#trials tbody tr td a").nth(3).click()
        expect(page.locator("#schedule-title")).to_contain_text("Schedule of trial 56")
        assert page.evaluate("window.mark") == 1, "the page was loaded again"


@pytest.mark.usefixtures("filled")
def test_a_part_of_a_page_is_neither_made_again_from_the_same_text_nor_while_nobody_sees_it(
    browser: Browser, address: str
) -> None:
    refresh = "document.getElementById('failures').dispatchEvent(new Event('refresh'))"
    hidden = "hidden => Object.defineProperty(document, 'hidden', { get: () => hidden, configurable: true })"
    with watched(browser, address) as seen:
        page = seen.page
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url) if "/failures" in request.url else None)
        page.goto("/jobs/small")
        settled(page)
        page.evaluate("window.swaps = 0; document.addEventListener('htmx:after:swap', () => { window.swaps += 1 })")
        for hide in (False, False, True, False):
            page.evaluate(hidden, hide)
            if hide:
                page.evaluate(refresh)
                continue
            with page.expect_response(lambda answer: "/failures" in answer.url) as found:
                page.evaluate(refresh)
            found.value.finished()
        assert len(asked) == 3
        page.wait_for_function("window.swaps === 1")


@pytest.mark.usefixtures("filled")
def test_ten_thousand_trials_are_usable(browser: Browser, address: str) -> None:
    with watched(browser, address) as seen:
        page = seen.page
        page.goto("/jobs/large")
        settled(page, TRIALS_IN_ALL)
        chart = page.locator("#chart")
        points, failed = chart.get_attribute("data-points"), chart.get_attribute("data-failed")
        assert points and failed and 5_000 <= int(points) + int(failed) < 6_000  # every second one, and every best
        page.locator("label", has_text="time").first.click()
        expect(chart).to_have_attribute("data-across", "seconds")
        page.get_by_role("link", name="Newest first").click()
        expect(page.locator("#trials tbody tr td a").first).to_have_text(str(TRIALS_IN_ALL - 1))
        page.get_by_role("link", name="Next page").click()
        expect(page.locator("#trials tbody tr td a").first).to_have_text(str(TRIALS_IN_ALL - 26))


@pytest.mark.usefixtures("filled")
def test_a_slice_shows_the_values_that_did_best(store: RecordStore, service: Service) -> None:
    found = service.dashboard.knobs("large", x="number", y="tile_j").slice
    assert found is not None
    best = next(iter(store.trials_by_seconds("large", 0, limit=1))).record.trial.schedule
    assert len({cell.x for cell in found.cells}) == MOST_VALUES and best["number"] in {cell.x for cell in found.cells}


@pytest.mark.usefixtures("filled")
def test_a_long_job_is_followed_without_growing(browser: Browser, address: str, store: RecordStore) -> None:
    softmax = operator_task("softmax", {"rows": 4096, "columns": 1024})
    keep_job(store, "followed", [softmax], 100, state="succeeded", seed=4)
    repeat_trials(store, "followed", 60)
    with store.database.writing() as connection:  # it goes on
        connection.execute(jobs.update().where(jobs.c.id == "followed").values(state="running", finished_at=None))
    with watched(browser, address) as seen:
        page = seen.page
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url) if "/events" in request.url else None)
        page.goto("/jobs/followed")
        chart = page.locator("#chart")
        expect(chart).to_have_attribute("data-live", "on", timeout=60_000)
        before, heap = int(chart.get_attribute("data-points") or 0), _heap_bytes(page)
        found = outcomes(8, 1200, 0.02)
        for first in range(0, len(found), 40):
            with store.database.writing() as connection:
                for sequence, outcome in enumerate(found[first : first + 40], 6_000 + first):
                    record_trial(connection, new_trial("followed", 0, sequence, softmax.workload_key, outcome))
            store.note_task("followed", 0, space_size=first)  # as a worker does: whoever waits is told
        expect(chart).to_have_attribute("data-last-sequence", str(6_000 + len(found) - 1), timeout=120_000)
        points = int(chart.get_attribute("data-points") or 0) + int(chart.get_attribute("data-failed") or 0)
        assert points <= 6_000 and points != before
        assert _heap_bytes(page) - heap < 20e6
        assert asked and all("after=0" not in url for url in asked), "events were told again from the start"
        move_job(store, "followed", {"running": ("succeeded",)})
        expect(chart).to_have_attribute("data-live", "ended", timeout=60_000)


def _heap_bytes(page: Page) -> float:
    session = page.context.new_cdp_session(page)
    session.send("HeapProfiler.collectGarbage")
    session.send("Performance.enable")
    metrics = session.send("Performance.getMetrics")["metrics"]
    return float(next(metric["value"] for metric in metrics if metric["name"] == "JSHeapUsedSize"))


@pytest.mark.usefixtures("filled")
def test_all_numbers_are_there_without_scripts(browser: Browser, address: str) -> None:
    with watched(browser, address, scripts=False) as seen:
        page = seen.page
        page.goto("/jobs")
        page.locator("[data-job=small] a").first.click()
        expect(page.locator(".tile").first).to_contain_text("ms")
        expect(page.locator("#trials tbody tr")).to_have_count(25)
        page.get_by_role("link", name="Next page").click()
        expect(page.locator("#trials")).to_have_attribute("data-first", "no")
        page.locator("#trials tbody tr td a").first.click()
        expect(page.locator("#schedule")).to_contain_text("Median time")


@pytest.mark.usefixtures("filled")
def test_without_the_scripts_installed_the_page_says_so(
    browser: Browser, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rendering, "assets_present", lambda: False)
    with watched(browser, address) as seen:
        seen.page.goto("/jobs/small")
        expect(seen.page.locator(".notice").first).to_contain_text("python -m tilewright.api.assets")
        expect(seen.page.locator(".tile").first).to_contain_text("ms")
        expect(seen.page.locator("#chart")).to_have_count(0)


@pytest.mark.usefixtures("filled")
def test_a_waiting_job_is_cancelled_by_its_button(browser: Browser, address: str) -> None:
    with watched(browser, address) as seen:
        seen.page.goto("/jobs/waiting")
        seen.page.get_by_role("button", name="Cancel job").click()
        expect(seen.page.locator(".state")).to_have_text("cancelled")
        expect(seen.page.get_by_role("button", name="Cancel job")).to_have_count(0)
        page = seen.page.locator("main")
        expect(page).to_contain_text("of 64, then cancelled")
        expect(page.get_by_text("The job ended without a trial.")).to_have_count(10)
        for promise in ("yet", "Appears", "All trials as CSV"):
            expect(page).not_to_contain_text(promise)


def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(f"^{text}$")
