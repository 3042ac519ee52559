"""The token of a service: what needs it, who shows it, and where it never appears."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from playwright.sync_api import Browser, expect
from pydantic import SecretStr, ValidationError

from tilewright.api import assets
from tilewright.api.access import COOKIE, is_loopback, is_open
from tilewright.api.app import create_app
from tilewright.api.client import Client, operator_task
from tilewright.api.client_errors import TokenRefused
from tilewright.service.service import Service
from tilewright.service.settings import Settings
from tilewright.tests.api.browser import CHROMIUM, chromium, expect_width, watched
from tilewright.tests.api.serving import running

TOKEN = "correct-horse-battery"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("guarded")
    settings = Settings(database_url=f"sqlite:///{folder}/t.sqlite3", run_jobs=False, token=SecretStr(TOKEN))
    with Service.open(settings) as service, running(create_app(service, settings)) as address:
        yield address


@pytest.fixture(scope="module")
def anonymous(guarded: str) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=guarded, trust_env=False, follow_redirects=False, timeout=60) as http:
        yield http


@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/units", "/metrics", "/version", "/openapi.json", "/v1/nothing", "/"])
def test_without_the_token_there_is_no_answer(anonymous: httpx2.Client, path: str) -> None:
    for given in (
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": f"Basic {TOKEN}"},
        {"Cookie": f"{COOKIE}=x"},
    ):
        refused = anonymous.get(path, headers=given)
        assert (refused.status_code, refused.json()["code"]) == (401, "KEY_REQUIRED")
        assert refused.headers["WWW-Authenticate"].startswith("Bearer")
        assert refused.headers["content-type"] == "application/problem+json" and TOKEN not in refused.text


@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/units/x/drain", "/v1/jobs/x/cancel", "/jobs/x/cancel"])
def test_without_the_token_nothing_is_changed(anonymous: httpx2.Client, path: str) -> None:
    assert anonymous.post(path, json={}).status_code == 401


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/static/style.css", "/sign-in"])
def test_health_and_the_form_are_open(anonymous: httpx2.Client, path: str) -> None:
    assert anonymous.get(path).status_code == 200


def test_a_client_with_the_token_is_served(guarded: str) -> None:
    with Client(guarded, token=TOKEN) as client:
        job = client.submit(operator_task("matmul", {"m": 4, "n": 4, "k": 4}))
        assert client.cancel(job.id).state == "cancelled" and [event.kind for event in client.events(job.id)]
    with Client(guarded, token="another-token-of-16") as client, pytest.raises(TokenRefused):
        client.jobs().__next__()


def test_the_token_is_never_told(guarded: str) -> None:
    settings = Settings(token=SecretStr(TOKEN))
    assert TOKEN not in repr(settings) and TOKEN not in str(settings.model_dump())
    with pytest.raises(ValidationError) as refused:
        Settings(token=SecretStr("short token"))
    assert "short token" not in str(refused.value)
    with httpx2.Client(
        base_url=guarded, headers={"Authorization": f"Bearer {TOKEN}"}, trust_env=False, timeout=60
    ) as http:
        for path in ("/metrics", "/readyz", "/openapi.json", "/version", "/v1/jobs", "/", "/devices", "/queue"):
            assert TOKEN not in http.get(path, headers={"Accept": "text/html"}).text


def test_the_cookie_is_not_the_token_and_is_for_this_site_alone(anonymous: httpx2.Client) -> None:
    wrong = anonymous.post("/sign-in", data={"token": "no", "next": "/queue"})
    assert wrong.status_code == 403 and "Set-Cookie" not in wrong.headers and "not a good key" in wrong.text
    right = anonymous.post("/sign-in", data={"token": TOKEN, "next": "/queue"})
    assert (right.status_code, right.headers["Location"]) == (303, "/queue")
    cookie = right.headers["Set-Cookie"]
    assert "HttpOnly" in cookie and "SameSite=strict" in cookie and TOKEN not in cookie
    anonymous.cookies.clear()
    value = cookie.partition(";")[0]
    assert anonymous.get("/v1/jobs", headers={"Cookie": f"other=1; {value}"}).status_code == 200


@pytest.mark.parametrize("next_page", ["//evil.example", "https://evil.example", "/\\evil.example", "\x01", ""])
def test_signing_in_leads_to_no_other_site(anonymous: httpx2.Client, next_page: str) -> None:
    right = anonymous.post("/sign-in", data={"token": TOKEN, "next": next_page})
    anonymous.cookies.clear()
    assert right.headers["Location"] == "/"


def test_a_service_that_others_reach_needs_a_token(tmp_path: Path) -> None:
    for host in ("0.0.0.0", "::", "", "10.1.2.3", "tilewright.example"):
        assert not is_open(Settings(host=host))
    assert is_open(Settings()) and not is_open(Settings(token=SecretStr(TOKEN)))
    for settings in (Settings(allowed_hosts=("tilewright.example",)), Settings(oidc_issuer="https://id.example")):
        assert not is_open(settings)  # a proxy stands before it, or people sign in
    assert all(map(is_loopback, ("127.0.0.1", "127.9.9.9", "::1", "localhost")))
    surroundings = {**os.environ, "TILEWRIGHT_DATABASE_URL": f"sqlite:///{tmp_path}/t.sqlite3", "TILEWRIGHT_PORT": "0"}
    command = [sys.executable, "-m", "tilewright.cli", "serve", "--host", "0.0.0.0"]
    ran = subprocess.run(command, env=surroundings, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 2 and "TILEWRIGHT_TOKEN" in ran.stderr and len(ran.stderr.splitlines()) == 1


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if not CHROMIUM.exists():
        pytest.skip("no Chromium from Debian's packages here")
    if not assets.assets_present():
        assets.install_assets()
    with chromium() as found:
        yield found


@pytest.mark.browser
@pytest.mark.parametrize(("theme", "width"), [("light", 1400), ("dark", 390)])
def test_people_sign_in_to_the_dashboard(browser: Browser, guarded: str, theme: str, width: int) -> None:
    with watched(browser, guarded, theme=theme, width=width) as seen:
        page = seen.page
        page.goto("/queue")
        expect(page.locator("h1")).to_have_text("Sign in")
        expect_width(page, width)
        seen.expect_no_faults()
        page.get_by_label("Key or token of this service").fill("a wrong one")
        page.get_by_role("button", name="Sign in").click()
        expect(page.locator(".notice.bad")).to_contain_text("not a good key")
        assert [fault for fault in seen.faults if "403" not in fault] == []
        seen.faults.clear()
        page.get_by_label("Key or token of this service").fill(TOKEN)
        page.get_by_role("button", name="Sign in").click()
        expect(page.locator("h1")).to_have_text("Queue")
        page.get_by_role("link", name="Jobs").click()
        expect(page.locator("h1")).to_have_text("Jobs")
        assert page.evaluate("document.cookie") == ""
