"""People sign in to the dashboard with OpenID Connect, and nobody signs in with a forged token."""

import time
from collections.abc import Callable, Iterator

import httpx2
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from pydantic import SecretStr

from tilewright.api.access import COOKIE
from tilewright.api.app import create_app
from tilewright.service.service import Service
from tilewright.service.settings import Settings
from tilewright.tests.api.identity_provider import CLIENT, SECRET, IdentityProvider, identity_provider
from tilewright.tests.api.serving import running


@pytest.fixture(scope="module")
def provider() -> Iterator[IdentityProvider]:
    with identity_provider() as found:
        yield found


@pytest.fixture(scope="module")
def address(provider: IdentityProvider, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    settings = Settings(
        database_url=f"sqlite:///{tmp_path_factory.mktemp('oidc')}/t.sqlite3",
        run_jobs=False,
        oidc_issuer=provider.address,
        oidc_client_id=CLIENT,
        oidc_client_secret=SecretStr(SECRET),
        oidc_admins=("root",),
    )
    with Service.open(settings) as service, running(create_app(service, settings)) as found:
        yield found


@pytest.fixture
def browser(address: str, provider: IdentityProvider) -> Iterator[httpx2.Client]:
    before = dict(vars(provider))
    with httpx2.Client(base_url=address, trust_env=False, timeout=60, follow_redirects=True) as http:
        yield http
    vars(provider).update(before)


PAGE = {"Accept": "text/html"}
BEGIN = "/sign-in/oidc?next=/queue"


def test_people_sign_in_and_out(browser: httpx2.Client, provider: IdentityProvider) -> None:
    form = browser.get("/queue", headers=PAGE)
    assert form.url.path == "/sign-in" and "Sign in with your organisation" in form.text
    came = browser.get(BEGIN, headers=PAGE)
    assert (came.status_code, came.url.path) == (200, "/queue")
    (given,) = [h for r in came.history for h in r.headers.get_list("set-cookie") if h.startswith(f"{COOKIE}=")]
    assert "HttpOnly" in given and "SameSite=lax" in given and "Path=/;" in given and "eyJ" not in given
    who = browser.get("/v1/caller").json()
    assert who == {"name": "ada@example.com", "tenant": "team-a", "scopes": ["read", "submit"], "key_id": who["key_id"]}
    body = {"tasks": [{"operator": "matmul", "parameters": {"m": 4, "n": 4, "k": 4}}]}
    own = {"Origin": str(browser.base_url).rstrip("/")}
    made = browser.post("/v1/jobs", json=body, headers=own)
    assert (made.status_code, made.json()["owner"], made.json()["tenant"]) == (201, "ada@example.com", "team-a")
    foreign = browser.post("/v1/jobs", json=body, headers={"Origin": "http://evil.example"})
    assert (foreign.status_code, foreign.json()["code"]) == (403, "FOREIGN_ORIGIN")
    assert browser.get("/v1/audit").status_code == 403
    session, page = browser.cookies[COOKIE], browser.get("/jobs", headers=PAGE).text
    assert '<form method="post" action="/sign-out"><button' in page and "Signed in as ada@example.com" in page
    left = browser.post("/sign-out", headers={**own, **PAGE})
    assert left.url.path == "/sign-in" and "Sign out" not in left.text
    again = browser.get("/v1/caller", headers={"Cookie": f"{COOKIE}={session}"})
    assert again.status_code == 401
    provider.claims = {"sub": "root", "tilewright_tenant": None}
    browser.get(BEGIN, headers=PAGE)
    assert browser.get("/v1/caller").json()["scopes"] == ["read", "submit", "worker", "admin"]
    (gone,) = [entry for entry in browser.get("/v1/audit").json()["entries"] if entry["path"] == "/sign-out"]
    assert (gone["name"], gone["key_id"], gone["status"]) == ("ada@example.com", who["key_id"], 303)


OTHER_KEY = generate_private_key(SECP256R1())
FORGERIES: dict[str, Callable[[IdentityProvider], object]] = {
    "another key": lambda p: vars(p).update(key=OTHER_KEY),
    "a key that is not published": lambda p: vars(p).update(key=OTHER_KEY, key_id="k2"),
    "no signature": lambda p: vars(p).update(key=None, algorithm="none"),
    "a shared secret": lambda p: vars(p).update(key="x" * 32, algorithm="HS256"),
    "for another service": lambda p: p.claims.update(aud="another"),
    "of another provider": lambda p: p.claims.update(iss="https://evil.example"),
    "of long ago": lambda p: p.claims.update(exp=int(time.time()) - 3600),
    "of the future": lambda p: p.claims.update(nbf=int(time.time()) + 3600),
    "without an end": lambda p: p.claims.update(exp=None),
    "of another attempt": lambda p: p.claims.update(nonce="another"),
    "without a tenant": lambda p: p.claims.update(tilewright_tenant=None),
    "with a bad tenant": lambda p: p.claims.update(tilewright_tenant="../x"),
}


@pytest.mark.parametrize("how", FORGERIES)
def test_forged_tokens_sign_nobody_in(browser: httpx2.Client, provider: IdentityProvider, how: str) -> None:
    provider.claims = dict(provider.claims)
    FORGERIES[how](provider)
    refused = browser.get(BEGIN, headers=PAGE)
    assert refused.status_code == 403 and COOKIE not in browser.cookies, refused.text
    assert "FORBIDDEN" in refused.text


def test_only_the_browser_that_was_sent_comes_back(browser: httpx2.Client, address: str) -> None:
    sent = browser.get("/sign-in/oidc", follow_redirects=False)
    assert sent.status_code == 303 and "HttpOnly" in sent.headers["Set-Cookie"]
    back = browser.get(sent.headers["Location"], follow_redirects=False).headers["Location"]
    with httpx2.Client(trust_env=False, timeout=60) as other:
        assert other.get(back).status_code == 403
    state = httpx2.URL(back).params["state"]
    assert browser.get(back.replace(state, "A" * len(state))).status_code == 403
    assert browser.get("/sign-in/callback?error=access_denied&state=x").status_code == 403
    assert browser.get(back).status_code == 200 and browser.get("/v1/caller").status_code == 200
    assert browser.get(back).status_code == 403  # a code is good once


def test_a_token_of_the_provider_is_no_key(browser: httpx2.Client, provider: IdentityProvider) -> None:
    token = jwt.encode({"sub": "root", "iss": provider.address}, provider.published, algorithm="ES256")
    assert browser.get("/v1/jobs", headers={"Authorization": f"Bearer {token}"}).status_code == 401
