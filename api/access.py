"""Who may use a service that has a token: requests that show it, and browsers that signed in with it.

Authorization: Bearer TOKEN                    programs
Cookie: tilewright_session=HMAC(TOKEN, …)      browsers, which never keep the token itself
"""

import hmac
import ipaddress
from collections.abc import Mapping

from pydantic import SecretStr

from ..core.errors import InvalidParameter
from ..service.settings import Settings

COOKIE = "tilewright_session"
SIGN_IN = "/sign-in"
OPEN_PATHS = frozenset({"/healthz", "/readyz", SIGN_IN})
"""These are answered without the token; so are the static files of the dashboard."""
CHALLENGE = 'Bearer realm="tilewright"'


class AccessToken:
    """The token of a service. Comparisons take the same time wherever two texts differ."""

    def __init__(self, token: SecretStr) -> None:
        self._token = token.get_secret_value().encode()
        self.session = hmac.new(self._token, b"tilewright dashboard session", "sha256").hexdigest()
        """The value of the cookie of a browser that signed in."""

    def is_right(self, given: str) -> bool:
        """Return whether ``given`` is the token."""
        return hmac.compare_digest(given.encode(), self._token)

    def admits(self, path: str, headers: Mapping[bytes, bytes]) -> bool:
        """Return whether a request for ``path`` with these headers may pass."""
        if path in OPEN_PATHS or path.startswith("/static/"):
            return True
        scheme, _, given = headers.get(b"authorization", b"").decode("latin-1").partition(" ")
        if scheme.lower() == "bearer":
            return self.is_right(given.strip())
        cookies = headers.get(b"cookie", b"").decode("latin-1").split(";")
        sessions = (value for name, _, value in (cookie.strip().partition("=") for cookie in cookies) if name == COOKIE)
        return any(hmac.compare_digest(value.encode(), self.session.encode()) for value in sessions)


def check_token(settings: Settings) -> None:
    """Raise InvalidParameter (field ``token``) for a service that others can reach and that has no token."""
    if settings.token is None and not is_loopback(settings.host):
        raise InvalidParameter(
            f"a service on {settings.host or 'every address'} can be reached from other machines and needs a token: "
            "set TILEWRIGHT_TOKEN to a secret of 16 or more characters here and wherever commands run, or listen on "
            "127.0.0.1",
            field="token",
        )


def is_loopback(host: str) -> bool:
    """Return whether only programs of this machine reach an address to listen on."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
