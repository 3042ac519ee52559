"""Signs people in to the dashboard with OpenID Connect: the authorization code flow with PKCE.

    browser ─ /sign-in/oidc ─▶ provider ─ /sign-in/callback?code&state ─▶ here ─ code, verifier ─▶ provider ─▶ ID token

What has to be known when the browser comes back (state, nonce, verifier, the page to go on to) lies in a cookie of that
browser. The provider is asked for its addresses and keys over HTTP once each, and for new keys when a token names one
that is not known (OpenID Connect Core 1.0, sections 3.1 and 10.1).
"""

import base64
import hmac
import json
import secrets
from dataclasses import asdict, dataclass
from hashlib import sha256
from typing import Any
from urllib.parse import urlencode

import httpx2
import jwt

from ..core.errors import Forbidden, StoreError
from ..service.callers import READ, SCOPES, SUBMIT, Caller
from ..service.settings import Settings
from ..service.submit import TENANT

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""Signatures by a key pair alone: a token that is signed with what others know, or not at all, is forged."""
LEEWAY_SECONDS = 30
TIMEOUT_SECONDS = 10.0


class ProviderAway(StoreError):
    """The OpenID provider does not answer."""

    code = "PROVIDER_AWAY"


@dataclass(frozen=True, slots=True)
class Attempt:
    """Holds what a browser keeps while its user is at the provider."""

    state: str
    nonce: str
    verifier: str
    onward: str

    def cookie(self) -> str:
        """Return it as the value of a cookie."""
        return base64.urlsafe_b64encode(json.dumps(asdict(self)).encode()).decode()

    @classmethod
    def from_cookie(cls, value: str) -> "Attempt":
        """Read such a value. Raises Forbidden for anything else."""
        try:
            return cls(**{name: str(part) for name, part in json.loads(base64.urlsafe_b64decode(value)).items()})
        except (ValueError, TypeError, AttributeError):
            raise Forbidden("this browser did not begin to sign in here; try again") from None


class OpenIdConnect:
    """Thread-safe and synchronous. Every method raises ProviderAway when the provider does not answer."""

    def __init__(self, settings: Settings) -> None:
        assert settings.oidc_issuer is not None
        self._settings = settings
        self._issuer = settings.oidc_issuer
        self._found: dict[str, Any] | None = None
        self._keys: jwt.PyJWKClient | None = None

    def begin(self, onward: str, callback: str) -> tuple[str, Attempt]:
        """Return the provider's address to send a browser to, and what the browser has to keep."""
        state, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(3))
        attempt = Attempt(state, nonce, verifier, onward)
        challenge = base64.urlsafe_b64encode(sha256(attempt.verifier.encode()).digest()).decode().rstrip("=")
        query = {
            "response_type": "code",
            "client_id": self._settings.oidc_client_id,
            "redirect_uri": callback,
            "scope": "openid profile email",
            "state": attempt.state,
            "nonce": attempt.nonce,
            "code_challenge": challenge,
            "code_challenge_method": "S256",
        }
        return f"{self._discovered()['authorization_endpoint']}?{urlencode(query)}", attempt

    def finish(self, code: str, state: str, attempt: Attempt, callback: str) -> Caller:
        """Return who came back from the provider with this code. Raises Forbidden for a browser that was not sent
        there, for a token that is not the provider's, and for people without a tenant."""
        if not hmac.compare_digest(state.encode(), attempt.state.encode()):
            raise Forbidden("the answer belongs to another attempt to sign in; try again", field="state")
        form = {"grant_type": "authorization_code", "code": code, "redirect_uri": callback}
        form |= {"code_verifier": attempt.verifier, "client_id": self._settings.oidc_client_id}
        if self._settings.oidc_client_secret is not None:
            form["client_secret"] = self._settings.oidc_client_secret.get_secret_value()
        answer = self._ask("POST", self._discovered()["token_endpoint"], data=form)
        if answer.status_code != 200:
            raise Forbidden(f"the provider refused the code ({answer.status_code})", field="code")
        return self._person(self._claims(str(_object(answer).get("id_token", "")), attempt.nonce))

    def _claims(self, token: str, nonce: str) -> dict[str, Any]:
        """Return the claims of an identity token. Raises Forbidden unless the provider signed it for this service and
        this attempt, and lately."""
        try:
            if self._keys is None:
                self._keys = jwt.PyJWKClient(self._discovered()["jwks_uri"], timeout=TIMEOUT_SECONDS)
            claims: dict[str, Any] = jwt.decode(
                token,
                self._keys.get_signing_key_from_jwt(token),
                algorithms=ALGORITHMS,
                audience=self._settings.oidc_client_id,
                issuer=self._issuer,
                leeway=LEEWAY_SECONDS,
                options={"require": ["exp", "iat", "iss", "aud", "sub"]},
            )
        except jwt.PyJWKClientConnectionError as error:
            raise ProviderAway(f"the OpenID provider does not give its keys: {error}") from error
        except jwt.PyJWTError as error:
            raise Forbidden(f"the identity token is not good: {error}", field="id_token") from error
        if not hmac.compare_digest(str(claims.get("nonce", "")).encode(), nonce.encode()):
            raise Forbidden("the identity token belongs to another attempt to sign in", field="nonce")
        return claims

    def _person(self, claims: dict[str, Any]) -> Caller:
        name = str(claims.get("email") or claims.get("preferred_username") or claims["sub"])[:128]
        is_admin = claims["sub"] in self._settings.oidc_admins
        tenant = claims.get(self._settings.oidc_tenant_claim, "default" if is_admin else None)
        if not isinstance(tenant, str) or not TENANT.fullmatch(tenant):
            claim = self._settings.oidc_tenant_claim
            raise Forbidden(f"the provider does not say which tenant you belong to (claim {claim})", field=claim)
        return Caller(name, tenant, frozenset(SCOPES if is_admin else (READ, SUBMIT)))

    def _discovered(self) -> dict[str, Any]:
        if self._found is None:
            answer = self._ask("GET", f"{self._issuer.rstrip('/')}/.well-known/openid-configuration")
            found = _object(answer) if answer.status_code == 200 else {}
            wanted = ("authorization_endpoint", "token_endpoint", "jwks_uri")
            if found.get("issuer") != self._issuer or not all(isinstance(found.get(name), str) for name in wanted):
                raise ProviderAway(f"{self._issuer} does not describe itself as an OpenID provider of that name")
            self._found = found
        return self._found

    def _ask(self, method: str, url: str, **options: Any) -> httpx2.Response:
        try:
            with httpx2.Client(trust_env=False, timeout=TIMEOUT_SECONDS) as http:
                return http.request(method, url, **options)
        except httpx2.HTTPError as error:
            raise ProviderAway(f"the OpenID provider does not answer: {error or type(error).__name__}") from error


def _object(answer: httpx2.Response) -> dict[str, Any]:
    try:
        data = answer.json()
    except ValueError:
        data = None
    if not isinstance(data, dict):
        raise ProviderAway("the OpenID provider answered with no JSON object")
    return data
