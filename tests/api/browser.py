"""Drives Debian's Chromium, with pages that remember all that they should not have done."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from playwright.sync_api import Browser, ConsoleMessage, Error, Page, Request, expect, sync_playwright

CHROMIUM = Path("/usr/bin/chromium")
WAIT_MILLISECONDS = 60_000
"""So long a test waits for what a page is to show: the machine may be busy with other tests."""
expect.set_options(timeout=WAIT_MILLISECONDS)
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
)
VIOLATIONS = "addEventListener('securitypolicyviolation', e => console.error('violation: ' + e.violatedDirective))"


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start a browser for the block."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=FLAGS.split())
        try:
            yield browser
        finally:
            _pages.clear()
            browser.close()


@dataclass
class Watched:
    """A page with what went wrong on it: console errors, exceptions, violations of the content policy, and requests
    that were not for its own server or failed."""

    page: Page
    faults: list[str] = field(default_factory=list)

    def expect_no_faults(self) -> None:
        assert self.faults == []


_pages: dict[tuple[Browser, str, bool], Page] = {}
"""The page of each service, with scripts and without. Another page would be a process that takes a second to start."""


@contextmanager
def watched(
    browser: Browser, address: str, *, width: int = 1280, theme: str = "light", scripts: bool = True
) -> Iterator[Watched]:
    """Give a page for ``address``, as a new visitor has it. At the end, check that nothing went wrong."""
    key = browser, address, scripts
    if key not in _pages:
        context = browser.new_context(
            reduced_motion="reduce",  # what pulses is drawn sixty times a second
            java_script_enabled=scripts,
            base_url=address,
        )
        _pages[key] = context.new_page()
        _pages[key].add_init_script(VIOLATIONS)
    page = _pages[key]
    page.set_viewport_size({"width": width, "height": 900})
    page.emulate_media(color_scheme="dark" if theme == "dark" else "light")
    seen = Watched(page)
    host = urlsplit(address).netloc

    def console(message: ConsoleMessage) -> None:
        # beside ``/healthz``, which names no icon, Chromium asks for one, and may say so when the next test has begun
        if message.type in ("error", "warning") and message.location["url"] != f"{address}/favicon.ico":
            seen.faults.append(message.text)

    def error(found: Error) -> None:
        seen.faults.append(str(found))

    def request(made: Request) -> None:
        if urlsplit(made.url).netloc != host and not made.url.startswith("data:"):
            seen.faults.append(made.url)

    page.on("console", console)
    page.on("pageerror", error)
    page.on("request", request)
    try:
        yield seen
        seen.expect_no_faults()
    except BaseException:
        _pages.pop(key).context.close()
        raise
    page.remove_listener("console", console)
    page.remove_listener("pageerror", error)
    page.remove_listener("request", request)
    page.goto("/healthz")  # of the same origin: the page keeps its process
    session = page.context.new_cdp_session(page)
    session.send("Storage.clearDataForOrigin", {"origin": address, "storageTypes": "cookies,local_storage"})
    session.detach()


def expect_width(page: Page, pixels: int, seconds: float = 30.0) -> None:
    """Expect the page to be as narrow as this. Charts take the new width a moment after the window has it."""
    end = time.monotonic() + seconds
    while (width := page.evaluate("document.documentElement.scrollWidth")) > pixels:
        assert time.monotonic() < end, f"{page.url} is {width} pixels wide, not {pixels}"
        page.wait_for_timeout(50)


def drawn(page: Page) -> None:
    """Wait until each chart of the page is drawn."""
    expect(page.locator(".plot[data-drawn=no]")).to_have_count(0, timeout=60_000)
    if page.locator("#chart").count() and page.locator("#summary").get_attribute("data-trials") != "0":
        expect(page.locator("#chart")).not_to_have_attribute("data-last-sequence", "-1", timeout=60_000)
