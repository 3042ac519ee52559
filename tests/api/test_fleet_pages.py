"""The dashboard's pages of the fleet in a real browser: both themes, wide and narrow, with scripts and without."""

import pytest
from playwright.sync_api import Browser, expect

from tilewright.core.fleet import UnitState
from tilewright.db.store import RecordStore
from tilewright.tests.api.browser import CHROMIUM, watched
from tilewright.tests.db.fleets import LONG, claimed, gpus, submit, unseen

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(not CHROMIUM.exists(), reason="no Chromium from Debian's packages here"),
]
BUSY, QUARANTINED, GONE = "GPU-h1-0", "GPU-h1-1", "GPU-h1-2"


@pytest.fixture(scope="module", autouse=True)
def filled(store: RecordStore) -> None:
    gpus(store, 3)
    submit(store, "searched")
    assert store.fleet.lease_unit(BUSY, "0123456789abcdef", seconds=LONG) is not None
    claimed(store, "0123456789abcdef", unit=BUSY)
    reason = "its anchor kernel is 12 % slower than that of its class <b>since noon</b>"
    store.fleet.set_unit_state(QUARANTINED, UnitState.QUARANTINED, reason, anchor_seconds=0.0012)
    unseen(store, GONE)
    submit(store, "waiting", 2, tenant="a-tenant-with-quite-a-long-name", priority=-3)
    submit(store, "elsewhere", target="cuda:sm_100a")
    submit(store, "held")
    store.fleet.pause_job("held")


@pytest.mark.parametrize("scripts", [True, False])
def test_devices_say_what_they_do_and_why_not(browser: Browser, address: str, scripts: bool) -> None:
    with watched(browser, address, scripts=scripts) as seen:
        page = seen.page
        page.goto("/devices")
        row = page.locator(f"[data-unit={BUSY}]")
        expect(row.locator(".state")).to_have_text("ready")
        row.get_by_role("link", name="task 0 of job searched").click()
        expect(page.locator("h1")).to_contain_text("running")
        page.get_by_role("link", name="Devices", exact=True).click()
        row = page.locator(f"[data-unit={QUARANTINED}]")
        expect(row.locator(".state")).to_have_text("quarantined")
        expect(row).to_contain_text("<b>since noon</b>")  # shown, not obeyed
        expect(row).to_contain_text("1.200 ms")
        expect(page.locator(f"[data-unit={GONE}]")).to_contain_text("not seen since")
        expect(page.locator(".notice")).to_contain_text("1 task waits: no unit of the fleet serves cuda:sm_100a")


def test_the_queue_says_what_is_next_and_what_waits(browser: Browser, address: str) -> None:
    with watched(browser, address) as seen:
        page = seen.page
        page.goto("/queue")
        rows = page.locator("#queue tr[data-task]")
        expect(rows).to_have_count(5)
        expect(rows.first).to_contain_text(BUSY)
        expect(page.locator("[data-task='elsewhere/0']")).to_contain_text("no unit of the fleet serves cuda:sm_100a")
        expect(page.locator("[data-task='held/0']")).to_contain_text("its job is paused")
        expect(page.locator("#tenants-title ~ .scroll tbody tr")).to_have_count(2)
        page.locator("[data-task='elsewhere/0'] a").click()
        expect(page.locator(".notice").first).to_contain_text("no unit of the fleet serves cuda:sm_100a")
        expect(page.locator("#summary")).to_contain_text("Place in the queue")
        page.goto("/jobs/held")
        expect(page.locator("h1 .state-paused")).to_be_visible()


def test_the_tables_stay_current(browser: Browser, address: str, store: RecordStore) -> None:
    with watched(browser, address) as seen:
        seen.page.goto("/devices")
        seen.page.evaluate("window.mark = 1")
        store.fleet.set_unit_state(QUARANTINED, UnitState.READY, "it is well")
        expect(seen.page.locator(f"[data-unit={QUARANTINED}] .state")).to_have_text("ready", timeout=20_000)
        assert seen.page.evaluate("window.mark") == 1, "the page was loaded again"
