"""Every page of the dashboard in a real browser: nothing goes wrong on it, everybody can use it, and each number is the
API's."""

import re
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from playwright.sync_api import Browser, Page, expect

from tilewright.api import assets
from tilewright.api.client import Client
from tilewright.core.budget import Budget
from tilewright.db.rows import NewJob
from tilewright.db.store import RecordStore
from tilewright.tests.api.browser import CHROMIUM, chromium, expect_width, watched
from tilewright.tests.api.filled import keep_job, operator_task
from tilewright.tests.api.page_numbers import compare
from tilewright.tests.api.recorded_job import TRIALS, keep_recorded_job
from tilewright.tests.db.fleets import LONG, claimed, gpus, submit

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(not CHROMIUM.exists(), reason="no Chromium from Debian's packages here"),
]
PAGES = (
    "/",
    "/jobs",
    "/jobs?state=cancelling",
    "/jobs/recorded",
    "/jobs/two?task=1&across=device&scale=linear",
    "/jobs/broken",
    "/jobs/searched",
    "/queue",
    "/devices",
    "/models",
    "/data",
    "/data?outcome=failed&operator=softmax",
    "/data?operator=matmul&outcome=timed&sketch=cuda_gemm",
    "/jobs/nobody",
    "/sign-in",
)
NUMBERED = ("/", "/jobs", "/jobs/recorded", "/jobs/two?task=1", "/jobs/broken", "/devices", "/data", "/queue")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if not assets.assets_present():
        assets.install_assets()
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    return assets.fetch_checker(Path(tmp_path_factory.mktemp("axe"))).read_text()


@pytest.fixture(scope="module", autouse=True)
def filled(store: RecordStore) -> None:
    matmul = operator_task("matmul", {"m": 1024, "n": 1024, "k": 1024})
    softmax = operator_task("softmax", {"rows": 4096, "columns": 1024})
    keep_job(store, "two", [matmul, softmax], 30, seed=5)
    keep_job(store, "broken", [softmax], 6, state="failed")
    keep_recorded_job(store, "recorded")
    gpus(store, 2)
    submit(store, "searched")
    assert store.fleet.lease_unit("GPU-h1-0", "0123456789abcdef", seconds=LONG) is not None
    claimed(store, "0123456789abcdef", unit="GPU-h1-0")
    store.create_job(NewJob("waiting", "queued", (softmax,), Budget(), "model", 1, "cuda:sm_100a", "local", "warm"))


def drawn(page: Page) -> None:
    """Wait until each chart of the page is drawn."""
    expect(page.locator(".plot[data-drawn=no]")).to_have_count(0, timeout=60_000)
    if page.locator("#chart").count():
        expect(page.locator("#chart")).not_to_have_attribute("data-last-sequence", "-1", timeout=60_000)


@pytest.mark.parametrize(("theme", "width"), [("light", 1400), ("dark", 390)])
def test_every_page_is_clean_and_everybody_can_use_it(
    browser: Browser, address: str, axe: str, theme: str, width: int
) -> None:
    with watched(browser, address, theme=theme, width=width) as seen:
        page = seen.page
        for path in PAGES:
            page.goto(path)
            expect(page.locator("h1, .empty h2").first).to_be_visible()
            if path.startswith("/jobs/") and path not in ("/jobs/nobody", "/jobs/searched"):
                drawn(page)
            page.evaluate(axe)
            assert _serious(page, colours_only=theme == "dark") == [], path
            for dark, pixels in ((False, 390), (True, 1400)):
                page.emulate_media(color_scheme="dark" if dark else "light")
                page.set_viewport_size({"width": pixels, "height": 900})
                expect_width(page, pixels)
            page.set_viewport_size({"width": width, "height": 900})
            page.emulate_media(color_scheme="dark" if theme == "dark" else "light")
            if path == "/jobs/nobody":
                seen.faults[:] = [fault for fault in seen.faults if "404" not in fault]
            seen.expect_no_faults()


def _serious(page: Page, *, colours_only: bool) -> list[str]:
    """What axe finds; ``colours_only``: another theme has the same elements in other colours."""
    rules = "runOnly: ['color-contrast'], " if colours_only else ""
    found = page.evaluate(f"axe.run({{{rules}resultTypes: ['violations']}})")
    return [
        f"{one['id']}: {one['nodes'][0]['html'][:200]} {one['nodes'][0]['failureSummary'][:300]}"
        for one in found["violations"]
        if one["impact"] in ("serious", "critical")
    ]


def test_every_number_is_the_apis(browser: Browser, address: str, http: httpx2.Client) -> None:
    with watched(browser, address) as seen:
        numbers = {}
        for path in NUMBERED:
            seen.page.goto(path)
            compared = compare(seen.page, http)
            numbers[path] = compared
        assert numbers["/"].numbers >= 20 and numbers["/"].cells >= 10
        assert numbers["/jobs/recorded"].numbers >= 100 and numbers["/jobs/recorded"].cells >= 500
        assert numbers["/devices"].numbers >= 8 and numbers["/data"].numbers >= 80


def test_brushing_the_axes_filters_the_table_and_csv_holds_what_is_shown(browser: Browser, address: str) -> None:
    with watched(browser, address, width=1400) as seen:
        page = seen.page
        page.goto("/jobs/recorded")
        drawn(page)
        rows = page.locator("#settings tbody tr")
        everything = rows.count()
        assert 20 < everything <= TRIALS
        plot = page.locator("#settings .plot")
        plot.scroll_into_view_if_needed()
        box = plot.bounding_box()
        assert box is not None
        page.mouse.move(box["x"] + 40, box["y"] + 60)  # the axis of the most important knob
        page.mouse.down()
        page.mouse.move(box["x"] + 40, box["y"] + 120, steps=6)
        page.mouse.move(box["x"] + 40, box["y"] + 150, steps=3)
        page.mouse.up()
        expect(page.locator("#settings")).to_have_attribute("data-chosen", re.compile(rf"^(?!{everything}$)\d+$"))
        chosen = page.locator("#settings tbody tr:not([hidden])").count()
        assert 0 < chosen < everything
        with page.expect_download() as download:
            page.locator("#importance .csv").click()
        lines = Path(download.value.path()).read_text().splitlines()
        assert lines[0] == "name,importance [fraction],values,best_value"
        shares = [float(line.split(",")[1]) for line in lines[1:]]
        assert sum(shares) == pytest.approx(1.0) and shares == sorted(shares, reverse=True)


def test_the_state_of_a_page_is_in_its_address(browser: Browser, address: str) -> None:
    with watched(browser, address) as seen:
        page = seen.page
        page.goto("/jobs/recorded")
        drawn(page)
        page.locator("label", has_text="device seconds").click()
        expect(page.locator("#chart")).to_have_attribute("data-across", "device")
        page.select_option("#slice select[name=x]", index=2)
        chosen = page.locator("#slice select[name=x]").input_value()
        page.locator("#slice button", has_text="Show").click()
        expect(page.locator("#slice select[name=x]")).to_have_value(chosen)
        page.goto("/jobs/recorded?across=seconds&scale=linear")
        expect(page.locator("#chart")).to_have_attribute("data-scale", "linear")
        page.goto("/data")
        page.select_option("select[name=outcome]", "failed")
        page.get_by_role("button", name="Search").click()
        assert "outcome=failed" in page.url
        assert page.locator("#records tbody tr").count() == page.locator("#records .failed").count() > 0


def test_a_job_is_tuned_further(browser: Browser, address: str, client: Client) -> None:
    with watched(browser, address, scripts=False) as seen:
        seen.page.goto("/jobs/two")
        assert "/submit?job=two" in (seen.page.get_by_role("link", name="Same again").get_attribute("href") or "")
        seen.page.get_by_role("button", name="Tune further").click()
        seen.page.wait_for_url("**/jobs/*")
        new = client.job(seen.page.url.rsplit("/", 1)[1])
        old = client.job("two")
        assert new.id != old.id and new.budget.trials == 2 * old.budget.trials
        assert [task.workload_key for task in new.tasks] == [task.workload_key for task in old.tasks]
        assert (new.seed, new.strategy, new.cache) == (old.seed, old.strategy, old.cache)


def test_csv_of_records_and_of_a_job(http: httpx2.Client) -> None:
    lines = http.get("/v1/trials.csv", params={"job_id": "recorded"}).text.splitlines()
    assert len(lines) == TRIALS + 1 and lines[0].startswith("record_id,job_id,task,trial,workload_key")
    trials = http.get("/v1/jobs/recorded/trials.csv").text.splitlines()
    assert len(trials) == TRIALS + 1
    series = http.get("/v1/jobs/recorded/series").json()
    timed = next(i for i, seconds in enumerate(series["seconds"]) if seconds is not None)
    assert float(trials[timed + 1].split(",")[3]) == series["seconds"][timed]
    page = http.get("/v1/trials", params={"outcome": "failed", "page_size": 2}).json()
    following = http.get(
        "/v1/trials", params={"outcome": "failed", "page_size": 2, "page_token": page["next_page_token"]}
    ).json()
    ids = [record["record_id"] for record in (*page["records"], *following["records"])]
    assert ids == sorted(set(ids), reverse=True) and len(ids) == 4
    assert http.get("/v1/trials", params={"outcome": "perhaps"}).status_code == 422


def test_what_the_model_foretold_is_compared_with_what_was_measured(http: httpx2.Client) -> None:
    quality = http.get("/v1/jobs/recorded/model-quality").json()
    rounds = [one["learned_from"] for one in quality["rounds"]]
    assert len(rounds) >= 2 and rounds == sorted(set(rounds)) and rounds[0] >= 16
    assert sum(one["timed"] for one in quality["rounds"]) == quality["timed"] == len(quality["points"])
    assert all(point["measured"] > 0 for point in quality["points"])
    assert -1 <= quality["rank_correlation"] <= 1
