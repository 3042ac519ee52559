"""A real tuning job, followed live in a real browser and by the client, on a real database."""

import zipfile
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from tilewright.api.app import create_app
from tilewright.api.client import Client, operator_task
from tilewright.core.budget import Budget
from tilewright.service.service import Service
from tilewright.service.settings import Settings
from tilewright.service.views import JobState
from tilewright.tests.api.browser import CHROMIUM, watched
from tilewright.tests.api.serving import running

SHAPE = {"m": 48, "n": 8, "k": 8}
MATMUL = operator_task("matmul", SHAPE)


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    settings = Settings(database_url=f"sqlite:///{tmp_path_factory.mktemp('live')}/t.sqlite3")
    with Service.open(settings) as service, running(create_app(service, settings)) as address:
        yield address


@pytest.mark.slow
def test_a_job_is_followed_to_its_end_and_its_best_is_served(live: str) -> None:
    with Client(live) as client:
        job = client.submit(MATMUL, budget=Budget(trials=6), strategy="random", seed=3)
        events = list(client.events(job.id))
        assert [event.id for event in events] == sorted({event.id for event in events})
        trials = [event.data for event in events if event.kind == "trial"]
        assert [trial["sequence"] for trial in trials] == list(range(6))
        assert events[-1].data["state"] == "succeeded"
        done = client.job(job.id)
        best = client.best(done.tasks[0].workload_key)
        ranked = list(client.trials(job.id, order="best"))
        assert best.record_id == ranked[0].record_id  # the fastest may have been measured again since its event
        assert sorted(t.record_id for t in ranked) == sorted(trial["record_id"] for trial in trials)
        assert done.tasks[0].best == best and best.match == ("exact",)
        layers = {section.language for section in client.source(best.record_id).sections}
        assert {"ir", "llvm-ir", "assembly"} <= layers
        assert client.explain(MATMUL).schedule == best.schedule


@pytest.mark.browser
@pytest.mark.slow
@pytest.mark.skipif(not CHROMIUM.exists(), reason="no Chromium from Debian's packages here")
def test_the_chart_grows_while_the_job_runs(live: str, browser: Browser) -> None:
    with Client(live) as client, watched(browser, live) as seen:
        page = seen.page
        page.goto("/")
        job = client.submit(MATMUL, budget=Budget(trials=100_000), strategy="random", seed=4, fresh=True)
        page.goto(f"/jobs/{job.id}")
        page.evaluate(GROWTH)
        while len(page.evaluate("window.lengths")) < 3:  # pytest's time-out ends a wait in vain
            page.wait_for_timeout(100)
        client.cancel(job.id)
        expect(page.locator("#chart")).to_have_attribute("data-live", "ended", timeout=120_000)
        expect(page.locator("#summary")).to_have_attribute("data-state", "cancelled")
        (task,) = client.job(job.id).tasks
        expect(page.locator("#chart")).to_have_attribute("data-last-sequence", str(task.trials - 1))
        expect(page.locator("#summary")).to_have_attribute("data-trials", str(task.trials))
        lengths = page.evaluate("window.lengths")  # gone, had the page been loaded again
        assert lengths == sorted(set(lengths))
        record = task.best
        assert record is not None
        expect(page.locator("#schedule")).to_have_attribute("data-record", str(record.record_id))
        # the rows were changed in place while the job ran: their links must lead where they say
        row = page.locator("#trials tbody tr td a").first
        number = row.inner_text()
        row.click()
        expect(page.locator("#schedule-title")).to_contain_text(f"Schedule of trial {number} ")
        expect(page.locator("#schedule")).to_have_attribute("data-record", str(record.record_id))
        page.locator(".tabs").get_by_role("link", name="assembly").click()
        expect(page.locator("pre[data-language=assembly]")).to_contain_text("ret")


@pytest.mark.browser
@pytest.mark.slow
@pytest.mark.skipif(not CHROMIUM.exists(), reason="no Chromium from Debian's packages here")
def test_a_new_user_submits_sees_why_the_best_won_exports_it_and_compares(live: str, browser: Browser) -> None:
    """Everything is found by what stands on the pages, without a word of the documents."""
    with Client(live) as client, watched(browser, live, width=1400) as seen:
        page = seen.page
        page.set_default_timeout(120_000)
        earlier = client.submit(MATMUL, budget=Budget(trials=2), strategy="random", fresh=True)  # to compare with
        assert list(client.events(earlier.id)) and client.job(earlier.id).state is JobState.SUCCEEDED
        page.goto("/")
        page.get_by_role("link", name="Submit a job").first.click()
        page.get_by_label("Operator").select_option("matmul")
        for name, extent in SHAPE.items():
            page.locator(f"[name='p.{name}']").fill(str(extent))
        page.get_by_label("Trials").fill("4")
        page.get_by_role("button", name="Submit job").click()
        expect(page.locator("h1")).to_contain_text("matmul")
        expect(page.locator("#chart")).to_have_attribute("data-live", "ended", timeout=120_000)
        job = client.job(page.url.rpartition("/")[2])
        (task,) = job.tasks
        assert job.state is JobState.SUCCEEDED and task.best is not None
        best = page.locator(f"#schedule[data-record='{task.best.record_id}']")
        expect(best).to_contain_text("Why it won.")
        with page.expect_download() as download:
            best.get_by_role("link", name="Export").click()
        with zipfile.ZipFile(download.value.path()) as archive:
            assert {"kernel.o", "kernel.h"} <= set(archive.namelist())
        best.get_by_role("link", name="Every layer").click()
        expect(page.locator("#layers[data-ready=true]")).to_be_visible()
        page.get_by_role("group", name="What to do with this schedule").get_by_role("link", name="Compare").click()
        expect(page.locator(".notice")).to_contain_text("Jobs of the same workload stand first")
        page.locator(".chooser tbody tr").filter(has_not_text=job.id).first.get_by_role("checkbox").check()
        page.get_by_role("button", name="Compare").click()
        expect(page.locator(".results tbody tr")).to_have_count(2)
        expect(page.locator(".results")).to_contain_text("samples)")


GROWTH = """
window.lengths = [];
new MutationObserver(() => {
  const last = Number(document.getElementById("chart").dataset.lastSequence);
  if (last >= 0 && last !== window.lengths.at(-1)) window.lengths.push(last);
}).observe(document.getElementById("chart"), { attributes: true });
"""
