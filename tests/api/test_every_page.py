"""Every page of the dashboard in a real browser, on a job that ran here and on jobs that were recorded on a GPU:
nothing goes wrong on it in either theme, wide or narrow, everybody can use it, and each number is the API's."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import httpx2
import pytest
from playwright.sync_api import Browser, Page, expect

from tilewright.api import assets
from tilewright.api.app import create_app
from tilewright.db.store import RecordStore
from tilewright.service.service import Service
from tilewright.tests.api.browser import CHROMIUM, drawn, expect_width, watched
from tilewright.tests.api.dashboard_contents import Contents, fill
from tilewright.tests.api.page_numbers import compare
from tilewright.tests.api.serving import running

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(not CHROMIUM.exists(), reason="no Chromium from Debian's packages here"),
    pytest.mark.timeout(900),  # on a loaded machine it looks at thirty pages slowly
]
PAGES = {
    "/": 25,
    "/jobs": 60,
    "/jobs?state=cancelling": 0,
    "/jobs/{cpu}": 80,
    "/jobs/{gpu}": 50,
    "/jobs/{model_job}": 6,
    "/jobs/recorded": 600,
    "/jobs/two?task=1&across=device&scale=linear": 400,
    "/jobs/broken": 40,
    "/jobs/searched": 4,
    "/jobs/{cpu}/trials/{cpu_record}": 10,
    "/trials/{gpu_record}/layers?a=1&b=-1": 60,
    "/trials/{cpu_record}/layers?a=0&b=1&c=-1": 30,
    "/queue": 1,
    "/submit": 0,
    "/submit?operator=te": 0,
    "/workloads": 30,
    "/workloads?operator=conv2d": 0,
    "/workloads/{workload}": 15,
    "/models": 5,
    "/models/{model}": 12,
    "/models/{alone}": 4,
    "/releases": 4,
    "/releases/second?against=first": 6,
    "/compare": 20,
    "/compare?job=first&job=second:0&record={gpu_record}&across=seconds": 40,
    "/devices": 12,
    "/cost-models": 8,
    "/data": 40,
    "/data?outcome=failed&operator=softmax": 0,
    "/sign-in": 0,
    "/jobs/nobody": 0,
}
"""Address -> how many numbers of it are the API's at least."""
SAME_AGAIN = [[f"{rows}:nth-child(n+8)"] for rows in (".l", "tbody tr", ".chooser label", ".units li")]
"""What is like those before it is not looked at: pages of code have thousands of lines."""

PHONE = ("color-contrast", "scrollable-region-focusable", "target-size")
"""The rules that may find more in a small window and in other colours; the elements are the same."""


@pytest.fixture(scope="module")
def contents(tmp_path_factory: pytest.TempPathFactory) -> Contents:
    return fill(tmp_path_factory.mktemp("every"))


@pytest.fixture(scope="module")
def address(contents: Contents) -> Iterator[str]:
    with Service(contents.settings, RecordStore(contents.settings.database_url)) as service:
        with running(create_app(service, contents.settings)) as found:
            yield found


def test_every_page_is_clean_and_its_numbers_are_the_apis(
    browser: Browser, address: str, contents: Contents, http: httpx2.Client, tmp_path: Path
) -> None:
    axe = assets.fetch_checker(tmp_path).read_text()
    with watched(browser, address, width=1400) as seen:
        page = seen.page
        page.set_default_timeout(120_000)
        for template, numbers in PAGES.items():
            path = template.format_map(contents.names)
            page.goto(path)
            expect(page.locator("h1, .empty h2").first).to_be_visible()
            drawn(page)
            if not path.startswith("/submit"):  # its numbers answer a question that was never kept
                found = compare(page, http)
                assert found.numbers + found.cells >= numbers, (template, found)
            page.evaluate(axe)
            assert _serious(page) == [], template
            for dark, width in ((True, 1400), (False, 390), (True, 390)):
                page.emulate_media(color_scheme="dark" if dark else "light")
                page.set_viewport_size({"width": width, "height": 900})
                expect_width(page, width)
            assert _serious(page, PHONE) == [], f"{template} on a phone, dark"
            page.emulate_media(color_scheme="light")
            page.set_viewport_size({"width": 1400, "height": 900})
            if path == "/jobs/nobody":
                seen.faults[:] = [fault for fault in seen.faults if "404" not in fault]
            seen.expect_no_faults()


def _serious(page: Page, rules: Sequence[str] = ()) -> list[str]:
    options = {"resultTypes": ["violations"], **({"runOnly": list(rules)} if rules else {})}
    found = page.evaluate("([exclude, options]) => axe.run({ exclude }, options)", [SAME_AGAIN, options])
    return [
        f"{one['id']}: {one['nodes'][0]['html'][:200]} {one['nodes'][0]['failureSummary'][:300]}"
        for one in found["violations"]
        if one["impact"] in ("serious", "critical")
    ]
