"""What one does on the pages of jobs and records, in a real browser."""

import re
from pathlib import Path

import httpx2
import pytest
from playwright.sync_api import Browser, expect

from tilewright.api.client import Client
from tilewright.db.store import RecordStore
from tilewright.tests.api.browser import CHROMIUM, drawn, watched
from tilewright.tests.api.filled import keep_job, operator_task
from tilewright.tests.api.recorded_job import TRIALS, keep_recorded_job

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(not CHROMIUM.exists(), reason="no Chromium from Debian's packages here"),
]


@pytest.fixture(scope="module", autouse=True)
def filled(store: RecordStore) -> None:
    matmul = operator_task("matmul", {"m": 1024, "n": 1024, "k": 1024})
    softmax = operator_task("softmax", {"rows": 4096, "columns": 1024})
    keep_job(store, "two", [matmul, softmax], 30, seed=5)
    keep_recorded_job(store, "recorded")


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
        page.mouse.move(box["x"] + 64, box["y"] + 60)  # the axis of the most important knob
        page.mouse.down()
        page.mouse.move(box["x"] + 64, box["y"] + 120, steps=6)
        page.mouse.move(box["x"] + 64, box["y"] + 150, steps=3)
        page.mouse.up()
        expect(page.locator("#settings")).to_have_attribute("data-chosen", re.compile(rf"^(?!{everything}$)\d+$"))
        chosen = page.locator("#settings tbody tr:not([hidden])").count()
        assert 0 < chosen < everything
        values = page.get_by_label("Only trials with")
        values.select_option("")
        expect(page.locator("#settings")).to_have_attribute("data-chosen", str(everything))
        name, _, value = values.locator("option").nth(1).inner_text().partition(" = ")
        values.focus()
        page.keyboard.press("ArrowDown")  # without a mouse
        column = page.locator("#settings thead th").all_inner_texts().index(name) + 1
        cells = page.locator(f"#settings tbody tr:not([hidden]) td:nth-child({column})")
        expect(page.locator("#settings")).to_have_attribute("data-chosen", re.compile(rf"^(?!{everything}$)\d+$"))
        assert set(cells.all_inner_texts()) == {value} and cells.count() < everything
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
        page.wait_for_url("**outcome=failed**")  # which waits for the whole page, beyond its address
        assert page.locator("#records tbody tr").count() == page.locator("#records .failed").count() > 0


@pytest.mark.parametrize("width", [400, 1280])
def test_names_of_bars_are_drawn_in_the_font_that_their_room_is_measured_in(
    browser: Browser, address: str, width: int
) -> None:
    """The room for the names begins 8 pixels from the edge of a chart; the longest name begins there."""
    first_painted = """plot => {
        const canvas = plot.querySelector("canvas");
        const { width, height } = canvas;
        const pixels = canvas.getContext("2d").getImageData(0, 0, width, height).data;
        const painted = x => [...Array(height).keys()].some(y => y > 34 && pixels[4 * (y * width + x) + 3] > 0);
        return [...Array(width).keys()].find(painted) * canvas.clientWidth / width;
    }"""
    with watched(browser, address, width=width) as seen:
        seen.page.goto("/jobs/recorded")
        drawn(seen.page)
        for figure in ("#importance", "#workers"):
            left = seen.page.locator(f"{figure} .plot").evaluate(first_painted)
            assert 7 <= left <= 10, figure


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
